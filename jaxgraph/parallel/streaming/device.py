"""The device that parts visit: transfers to it and back, and the programs that run there."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxgraph.parallel.streaming.feeding import Feed, Packing, Writer
from jaxgraph.parallel.streaming.graph import HostParts

__all__ = ["Device", "Executable", "Executables"]

Pytree = Any


@dataclasses.dataclass(frozen=True, eq=False)
class Executable:
    """A program for the types of its arguments.

    Attributes:
      run: the compiled program; None: it was not compiled.
      outputs: the types of its results.
      donated: for each leaf of its arguments, whether a result takes its memory.
      temporary: bytes that it takes beside arguments and results; 0 where it was not compiled.
    """

    run: jax.stages.Compiled | None
    outputs: Pytree
    donated: tuple[bool, ...]
    temporary: int


class Executables:
    """Programs, each traced and compiled once for the types of its arguments.

    Args:
      device: a device of jax, where they run; it need not exist to compile for it.
      compile: whether to compile.
    """

    def __init__(self, device: Any, *, compile: bool = True) -> None:
        self.sharding = SingleDeviceSharding(device)
        self._compile = compile
        self._known: dict[Any, Executable] = {}

    def of(self, program: Any, arguments: tuple[Any, ...]) -> Executable:
        """The executable of a jitted function for some arguments, or their types."""
        leaves, structure = jax.tree.flatten(arguments)
        key = program, structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        if key not in self._known:
            self._known[key] = self._made(program, types_of(arguments))
        return self._known[key]

    def _made(self, program: Any, types: tuple[Any, ...]) -> Executable:
        placed = functools.partial(_placed, self.sharding)
        traced = program.trace(*jax.tree.map(placed, types))
        donated = tuple(bool(each.donated) for each in jax.tree.leaves(traced.args_info))
        outputs = types_of(traced.out_info)
        if not self._compile:
            return Executable(None, outputs, donated, 0)
        compiled = traced.lower().compile()
        memory = compiled.memory_analysis()
        return Executable(compiled, outputs, donated, memory.temp_size_in_bytes if memory else 0)

    def compiled(self) -> tuple[jax.stages.Compiled, ...]:
        """All programs that were compiled."""
        return tuple(each.run for each in self._known.values() if each.run is not None)


def _placed(sharding: Any, leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def type_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape and type of an array."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def types_of(tree: Pytree) -> Pytree:
    """Shapes and types of arrays."""
    return jax.tree.map(type_of, tree)


class Device:
    """The device, in one run of a streamed function.

    Args:
      host: the parts of the graph.
      executables: the programs that were compiled so far.
    """

    def __init__(self, host: HostParts, executables: Executables) -> None:
        self.host, self.executables = host, executables
        self.moved = host.moved
        self.store = host.store.empty()
        self.packing = Packing(host.pipeline.in_flight)
        self._writer = Writer(host.pipeline.in_flight)

    def hold(self, tree: Pytree) -> Pytree:
        """Arrays that all parts share, which are on the device already."""
        return tree

    def leaf(self, number: int, part: int) -> Any:
        """An array of a part, on the host."""
        return self.host.leaf(number, part)

    def send(self, tree: Pytree) -> Pytree:
        """Sends arrays of the host to the device; those that are there stay."""
        leaves = jax.tree.leaves(tree)
        self.moved.sent += sum(leaf.nbytes for leaf in leaves if isinstance(leaf, np.ndarray))
        return jax.device_put(tree, self.executables.sharding)

    def call(self, program: Any, *arguments: Any) -> Any:
        """Runs a jitted function, compiled for these arguments."""
        run = self.executables.of(program, arguments).run
        assert run is not None
        return run(*arguments)

    def apply(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Runs a few operations on small arrays, not compiled ahead."""
        return function(*arguments)

    def bring(self, value: Any, write: Callable[[Any], None]) -> None:
        """Brings an array back, and gives it to `write`, in a thread, in order."""
        self.moved.returned += value.nbytes
        self._writer.submit(lambda: write(np.asarray(value)))

    def feed(self, loads: Iterable[Callable[[], Any]]) -> Any:
        """The results of loads, a few of them ahead."""
        return Feed(loads, self.host.pipeline.ahead)

    def finish(self) -> None:
        """Waits for all programs and writes."""
        self.packing.finish()
        self._writer.finish()
        self.store.recycle()

    def close(self) -> None:
        """Ends the run."""
        self._writer.close()
        self.store.close()
