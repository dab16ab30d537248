"""Programs for the parts of a turn, traced and compiled once for the types of their arguments."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from jaxgraph.ops.core.message_programs import needed_inputs
from pallas_kernels.pytrees import pytree

Pytree = Any


@pytree
class Spread:
    """An array of each part of a turn, each on its device; programs see that of their device.

    An axis of devices would cost copies: XLA writes in place only to what it gets as it is.

    Attributes:
      array: [devices * rows, ...], one below the other; of numbers [devices], and on one device [].
      is_number: whether they are numbers.
    """

    array: Any
    is_number: bool = dataclasses.field(default=False, metadata={"static": True})

    @property
    def dtype(self) -> Any:
        """Their type."""
        return self.array.dtype


@pytree
class Summed:
    """A result of a program that is summed over the devices, and then the same on all.

    Attributes:
      array: of each device.
    """

    array: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Waiting:
    """An array of each part of a turn, on the host; no pytree, but a leaf of one.

    Attributes:
      arrays: those of the devices of this process, in order.
    """

    arrays: tuple[Any, ...]


def spread_type(leaf: Any, devices: int) -> Spread:
    """The type of `Spread` arrays."""
    shape = tuple(leaf.shape)
    if devices > 1:
        shape = (devices * shape[0], *shape[1:]) if shape else (devices,)
    return Spread(jax.ShapeDtypeStruct(shape, leaf.dtype), not leaf.shape)


def is_spread(value: Any) -> bool:
    """True for `Spread`."""
    return isinstance(value, Spread)


def map_arrays(function: Callable[[Any], Any], tree: Pytree) -> Pytree:
    """Maps leaves of a pytree, of which a `Spread` is one."""
    return jax.tree.map(function, tree, is_leaf=is_spread)


@dataclasses.dataclass(frozen=True, eq=False)
class Executable:
    """A program for the types of its arguments.

    Attributes:
      run: the compiled program, of leaves of the arguments; None: it was not compiled.
      outputs: the types of its results.
      donated: for each leaf of its arguments, whether a result takes its memory.
      temporary: bytes of a device that it takes beside arguments and results; 0 where it was not
        compiled.
    """

    run: jax.stages.Compiled | None
    outputs: Pytree
    donated: tuple[bool, ...]
    temporary: int


class Executables:
    """Programs, each traced and compiled once for the types of its arguments.

    A program is a function of arrays, of one part or shared by all parts. It runs on all devices at
    once. Where an argument is `Spread`, it sees the array of its device, and its results are
    `Spread`, but for those that it returns in `Summed`. Without such an argument its results are
    shared.

    Args:
      mesh: the devices, where programs run; they need not exist to compile for them.
      axis: of the mesh.
      compile: whether to compile.
    """

    def __init__(self, mesh: Mesh, axis: Any, *, compile: bool = True) -> None:
        self.mesh, self.axis = mesh, axis
        self.spread: Any = NamedSharding(mesh, PartitionSpec(axis))
        self.shared: Any = NamedSharding(mesh, PartitionSpec())
        if mesh.size == 1:
            self.spread = self.shared = SingleDeviceSharding(mesh.devices.flat[0])
        self._compile = compile
        self._known: dict[Any, Executable] = {}

    def of(
        self,
        program: Callable[..., Pytree],
        leaves: list[Any],
        structure: Any,
        donates: bool = False,
        options: tuple[tuple[str, Any], ...] = (),
    ) -> Executable:
        """The executable of a function."""
        types = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        key = program, structure, types, donates, options
        if key not in self._known:
            run = functools.partial(program, **dict(options))
            arguments = structure.unflatten(map(type_of, leaves))
            self._known[key] = self._made(run, arguments, donates)
        return self._known[key]

    def _made(self, program: Any, types: tuple[Any, ...], donates: bool) -> Executable:
        given = range(len(jax.tree.leaves(types[0]))) if donates else ()
        leaves, structure = jax.tree.flatten(map_arrays(self._placed, types))
        if any(map(is_spread, jax.tree.leaves(types, is_leaf=is_spread))):
            run, shardings = self._over_devices(program), {}
        else:
            run, shardings = _of_shared(program), {"out_shardings": self.shared}

        # Python flattens a pytree more slowly than some programs run: each is flattened once.
        def flat(*leaves: Any) -> Pytree:
            return run(*structure.unflatten(leaves))

        traced = jax.jit(flat, donate_argnums=tuple(given), **shardings).trace(*leaves)
        donated = tuple(bool(each.donated) for each in jax.tree.leaves(traced.args_info))
        made = Executable(None, types_of(traced.out_info), donated, 0)
        if not self._compile:
            return made
        compiled = traced.lower().compile()
        memory = compiled.memory_analysis()
        temporary = memory.temp_size_in_bytes if memory else 0
        return dataclasses.replace(made, run=compiled, temporary=temporary)

    def _over_devices(self, program: Any) -> Any:
        """The program on arrays of all devices."""
        structures: list[Any] = []
        numbers: list[bool] = []

        def on_device(*arguments: Any) -> tuple[list[Any], list[Any]]:
            found = program(*map_arrays(self._on_device, arguments))
            results, structure = jax.tree.flatten(found, is_leaf=_is_summed)
            structures[:] = [(structure, [_is_summed(each) for each in results])]
            own = [jnp.asarray(each) for each in results if not _is_summed(each)]
            numbers[:] = [not each.ndim for each in own]
            if self.mesh.size > 1:
                own = [each if each.ndim else each[None] for each in own]
            return own, [self._summed(each.array) for each in results if _is_summed(each)]

        def run(*arguments: Any) -> Pytree:
            call, axis = on_device, PartitionSpec(self.axis)
            if self.mesh.size > 1:
                specs = map_arrays(
                    lambda each: axis if is_spread(each) else PartitionSpec(), arguments
                )
                results = (axis, PartitionSpec())
                call = jax.shard_map(
                    on_device, mesh=self.mesh, in_specs=specs, out_specs=results, check_vma=False
                )
            own, summed = call(*arguments)
            structure, is_summed = structures[0]
            spread, summed = iter(map(Spread, own, numbers)), iter(summed)
            return structure.unflatten(
                [next(summed) if each else next(spread) for each in is_summed]
            )

        return run

    def used(self, program: Callable[..., Pytree], types: tuple[Any, ...]) -> frozenset[int]:
        """The leaves of the arguments that the results of a program depend on."""
        spread = jax.tree.map(lambda leaf: spread_type(leaf, self.mesh.size), types)
        jaxpr = jax.make_jaxpr(self._over_devices(program))(*spread).jaxpr
        needed = needed_inputs(jaxpr)
        return frozenset(at for at, each in enumerate(jaxpr.invars) if each in needed)

    def _on_device(self, value: Any) -> Any:
        """The value that a device sees."""
        if not is_spread(value):
            return value
        return value.array[0] if value.is_number and self.mesh.size > 1 else value.array

    def _summed(self, value: Any) -> Any:
        return jax.lax.psum(value, self.axis) if self.mesh.size > 1 else value

    def _placed(self, leaf: Any) -> Any:
        if is_spread(leaf):
            shape, dtype = leaf.array.shape, leaf.array.dtype
            placed = jax.ShapeDtypeStruct(shape, dtype, sharding=self.spread)
            return Spread(placed, leaf.is_number)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self.shared)

    def compiled(self) -> tuple[jax.stages.Compiled, ...]:
        """All programs that were compiled."""
        return tuple(each.run for each in self._known.values() if each.run is not None)


def _of_shared(program: Any) -> Any:
    """The program on arrays that are the same on all devices."""

    def run(*arguments: Any) -> Pytree:
        found = program(*arguments)
        plain = lambda each: each.array if _is_summed(each) else each  # noqa: E731
        return jax.tree.map(plain, found, is_leaf=_is_summed)

    return run


def _is_summed(value: Any) -> bool:
    return isinstance(value, Summed)


def type_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape and type of an array."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def types_of(tree: Pytree) -> Pytree:
    """Shapes and types of arrays."""
    return jax.tree.map(type_of, tree)
