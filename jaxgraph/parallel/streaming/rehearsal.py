"""A rehearsal of a run: the same loop over the parts, on shapes instead of arrays.

It can compile every program that the run calls, and counts the bytes that it holds and moves.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future
from typing import Any

import jax
import numpy as np

from jaxgraph.parallel.streaming.devices import Devices
from jaxgraph.parallel.streaming.feeding import Packing, Threads
from jaxgraph.parallel.streaming.graph import HostParts, Moved
from jaxgraph.parallel.streaming.programs import (
    Executables,
    Spread,
    Waiting,
    is_spread,
    map_arrays,
    spread_type,
    type_of,
)
from jaxgraph.parallel.streaming.store import MemoryStore

Pytree = Any


@dataclasses.dataclass(frozen=True)
class Needs:
    """The bytes that a run needs and moves.

    Attributes:
      device: the most that is on each device at one time.
      host: the most that waits on the host, in memory or in files, beside the parts.
      sent: from the host to the devices of this process.
      returned: from these devices to the host.
    """

    device: int
    host: int
    sent: int
    returned: int

    def then(self, other: Needs) -> Needs:
        """Those of this run and then another."""
        return Needs(
            max(self.device, other.device),
            max(self.host, other.host),
            self.sent + other.sent,
            self.returned + other.returned,
        )


@dataclasses.dataclass
class _Count:
    now: int = 0
    most: int = 0

    def add(self, size: int) -> None:
        """Counts bytes that are held from now on."""
        self.now += size
        self.most = max(self.most, self.now)


class _OnDevice:
    """The type of an array on the devices, which is counted as long as anything refers to it.

    Args:
      like: the type.
      count: the bytes of each device.
      devices: over how many of them it is split.
    """

    def __init__(self, like: Any, count: _Count, devices: int = 1) -> None:
        self.shape, self.dtype = tuple(like.shape), like.dtype
        self._count, self._held = count, _size(self) // devices
        count.add(self._held)

    def donate(self) -> None:
        """Gives the memory to a result."""
        self._count.now -= self._held
        self._held = 0

    def __del__(self) -> None:
        self._count.now -= self._held


class _Types(MemoryStore):
    """A store of types."""

    def __init__(self) -> None:
        super().__init__()
        self.count = _Count()

    def put(self, key: Hashable, part: int, values: Any) -> None:
        self.drop(key, part)
        super().put(key, part, type_of(values))
        self.count.add(_size(values))

    def add(self, key: Hashable, part: int, rows: Any, values: Any, like: Any) -> None:
        if not self.has(key, part):
            self.put(key, part, like)

    def drop(self, key: Hashable, part: int) -> None:
        if self.has(key, part):
            self.count.now -= _size(self.get(key, part))
        super().drop(key, part)


class _Packing(Packing):
    """Packs types of rows; no program runs."""

    def rows(self, values: Any, rows: np.ndarray, room: int) -> Any:
        return jax.ShapeDtypeStruct((room, *values.shape[1:]), values.dtype)

    def read_by(self, token: Any, buffers: list[Any]) -> None: ...


class _AtOnce(Executor):
    """Runs each call when it is given, in place of a thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Rehearsal(Devices):
    """Devices that compute types, in place of `Devices`.

    Args:
      host: the parts of the graph; their arrays are not read.
      executables: the programs so far; those that are not compiled have no temporary memory.
    """

    def __init__(self, host: HostParts, executables: Executables) -> None:
        super().__init__(host, executables, Threads(_AtOnce(), _AtOnce()))
        self.moved, self.packing, self.store = Moved(), _Packing(0), _Types()
        self._count, self._leaves = _Count(), jax.tree.leaves(host.like)

    @property
    def needs(self) -> Needs:
        """The bytes of the run so far."""
        return Needs(self._count.most, self.store.count.most, self.moved.sent, self.moved.returned)

    def _shared(self, leaf: Any) -> _OnDevice:
        return leaf if isinstance(leaf, _OnDevice) else _OnDevice(leaf, self._count)

    def _counted(self, like: Spread) -> Spread:
        return Spread(_OnDevice(like.array, self._count, self.host.devices), like.is_number)

    def hold(self, tree: Pytree) -> Pytree:
        """See `Devices.hold`."""
        return jax.tree.map(self._shared, tree)

    def leaf(self, number: int, turn: int) -> Waiting:
        """See `Devices.leaf`."""
        return Waiting((self._leaves[number],) * len(self.host.local))

    def send(self, tree: Pytree) -> Pytree:
        """See `Devices.send`."""

        def one(leaf: Any) -> Any:
            if isinstance(leaf, Waiting):
                self.moved.sent += sum(map(_size, leaf.arrays))
                return self._counted(spread_type(leaf.arrays[0], self.host.devices))
            if isinstance(leaf, np.ndarray):
                self.moved.sent += leaf.nbytes
            return self._shared(leaf)

        return jax.tree.map(one, tree)

    def call(
        self, program: Callable[..., Any], *arguments: Any, donates: bool = False, **options: Any
    ) -> Any:
        """See `Devices.call`."""
        leaves, structure = jax.tree.flatten(arguments)
        found = self.executables.of(program, leaves, structure, donates, tuple(options.items()))
        for leaf, donated in zip(leaves, found.donated, strict=True):
            if donated and isinstance(leaf, _OnDevice):
                leaf.donate()
        results = map_arrays(
            lambda leaf: self._counted(leaf) if is_spread(leaf) else self._shared(leaf),
            found.outputs,
        )
        self._count.most = max(self._count.most, self._count.now + found.temporary)
        return results

    def bring(self, value: Spread, write: Callable[[int, Any], None]) -> None:
        """See `Devices.bring`."""
        rows, *columns = value.array.shape or (1,)
        shape = () if value.is_number else (rows // self.host.devices, *columns)
        like = jax.ShapeDtypeStruct(shape, value.dtype)
        self.moved.returned += _size(like) * len(self.host.local)

        def written() -> Any:
            for number in self.host.local:
                write(number, like)
            return value  # It is there until the write was waited for.

        self._writer.submit(written)


def total_bytes(tree: Pytree) -> int:
    """The bytes of arrays, or of types of arrays."""
    return sum(map(_size, jax.tree.leaves(tree)))


def _size(leaf: Any) -> int:
    return math.prod(leaf.shape) * leaf.dtype.itemsize
