"""Flax NNX objects among the arguments of a function on shards, and their updates.

A module inside `jax.shard_map` is a traced copy of the one outside. As in `nnx.jit`,
`split_objects` splits those outside, `changes` finds the values that a function wrote to the copies
inside, and `write_back` writes them to the objects outside.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import jax
from flax import nnx
from flax.errors import TraceContextError
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxgraph.ops.core.edges import varying_axes
from pallas_kernels.pytrees import pytree

Pytree = Any


@pytree
class _Mark:
    """A mark in the place of an object among the arguments, with its index in `Objects`."""

    index: int = dataclasses.field(metadata={"static": True})


@pytree
class Objects:
    """NNX objects, split.

    Attributes:
      state: their variables.
      graphdef: their structure, shared variables included.
    """

    state: Any
    graphdef: Any = dataclasses.field(metadata={"static": True})


def _is_object(part: Any) -> bool:
    return isinstance(part, nnx.Pytree)


def split_objects(arguments: Pytree) -> tuple[Pytree, tuple[Any, ...], Objects | None]:
    """Splits the NNX objects among arguments."""
    leaves, structure = jax.tree.flatten(arguments, is_leaf=_is_object)
    found: dict[int, Any] = {id(leaf): leaf for leaf in leaves if _is_object(leaf)}
    if not found:
        return arguments, (), None
    objects = tuple(found.values())
    for each in objects:
        refuse_local_modules(each)
    graphdef, state = nnx.split(objects)
    places = {key: _Mark(i) for i, key in enumerate(found)}
    marked = structure.unflatten([places.get(id(leaf), leaf) for leaf in leaves])
    return marked, objects, Objects(state, graphdef)


def on_mesh(objects: Objects, mesh: Mesh, *, abstract: bool = False) -> tuple[Objects, bool]:
    """Places the variables of objects on all devices of a mesh, as an update leaves them.

    Otherwise JAX would compile one program for variables on one device, and another for those on a
    mesh.
    """
    if jax.process_count() > 1:
        return objects, False
    everywhere, moved = NamedSharding(mesh, PartitionSpec()), []

    def placed(leaf: Any) -> Any:
        if isinstance(leaf, Tracer) or not isinstance(leaf, jax.Array):
            return leaf
        if isinstance(leaf.sharding, NamedSharding) and leaf.sharding.mesh == mesh:
            return leaf
        moved.append(leaf)
        if abstract:
            return jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=everywhere, weak_type=leaf.weak_type
            )
        return jax.device_put(leaf, everywhere)

    return dataclasses.replace(objects, state=jax.tree.map(placed, objects.state)), bool(moved)


def store_placed(objects: Sequence[Any], state: Any) -> None:
    """Stores placed variables in their objects, so that the next call copies nothing.

    Values do not change. Inside a JAX transformation, objects from outside stay as they are: the
    placed values belong to the transformation.
    """
    # NNX refuses to write to objects from outside of a transformation.
    with suppress(TraceContextError):
        nnx.update(tuple(objects), state)


def merge_objects(arguments: Pytree, objects: Sequence[Any]) -> Pytree:
    """Puts objects in the places of the marks of `split_objects`, or of `mark_objects`."""
    return jax.tree.map(
        lambda part: objects[part.index] if isinstance(part, _Mark) else part,
        arguments,
        is_leaf=lambda part: isinstance(part, _Mark),
    )


def mark_objects(outputs: Pytree, objects: Sequence[Any]) -> Pytree:
    """Puts marks in the places of objects that were among the arguments."""
    places = {id(each): _Mark(i) for i, each in enumerate(objects)}
    return jax.tree.map(lambda part: places.get(id(part), part), outputs, is_leaf=_is_object)


def refuse_local_modules(model: Any) -> None:
    """Refuses modules of Flax whose result would depend on the number of devices."""
    for path, module in nnx.iter_graph(model):
        where = ".".join(map(str, path)) or "the module"
        if isinstance(module, nnx.BatchNorm) and not module.use_running_average:
            raise ValueError(
                f"{where} is flax.nnx.BatchNorm, which normalises every device's rows by their own "
                "statistics, padding included; use jaxgraph.nn.BatchNorm, called as "
                "norm(shard, x, train), which takes those of all nodes (model.eval() makes "
                "nnx.BatchNorm use its running statistics)"
            )
        if isinstance(module, nnx.Dropout) and module.rate and not module.deterministic:
            raise ValueError(
                f"{where} is flax.nnx.Dropout, which draws its mask by the position of a row on "
                "its device; use jaxgraph.nn.dropout(shard, x, key, rate), which draws by node "
                "(model.eval() turns nnx.Dropout off)"
            )


def values_of(state: Any) -> list[tuple[tuple[Any, ...], Any, Any]]:
    """Lists the variables of a state."""
    return [
        (path, leaf, leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf)
        for path, leaf in nnx.to_flat_state(state)
    ]


def changes(
    before: list[tuple[tuple[Any, ...], Any, Any]],
    graphdef: Any,
    objects: Sequence[Any],
    splits: list[bool],
) -> tuple[dict[int, Any], dict[int, Any]]:
    """Finds the values that a function wrote to objects, by the index of the variable."""
    now, state = nnx.split(tuple(objects))
    found = values_of(state)
    if now != graphdef or [path for path, *_ in found] != [path for path, *_ in before]:
        raise ValueError(
            "the function changed the structure of an NNX object: an attribute that is no "
            "nnx.Variable, or its set of variables (as do model.train(), model.eval(), a new "
            "layer, or nnx.Rngs forked in place). Do that outside of jaxgraph.parallel.spmd, "
            "before the call"
        )
    same: dict[int, Any] = {}
    rows: dict[int, Any] = {}
    for i, ((path, _, old), (_, variable, new)) in enumerate(zip(before, found, strict=True)):
        if new is old:
            continue
        if not splits[i] and varying_axes(new):
            name = ".".join(map(str, path[1:])) or "a variable"
            raise ValueError(
                f"the function stored a value in {type(variable).__name__} {name} that differs "
                "between devices; it belongs to all of them. Reduce it first: "
                "shard.sum(...) of sums over the device's rows; of a mean, sum and count, each "
                "summed, then divided. A random count or key must not depend on the shard's data"
            )
        (rows if splits[i] else same)[i] = new
    return same, rows


def write_back(objects: Sequence[Any], state: Any, new: dict[int, Any]) -> None:
    """Writes new values to the variables of objects."""
    if not new:
        return
    flat = values_of(state)
    changed = [
        (flat[i][0], flat[i][1].replace(value) if isinstance(flat[i][1], nnx.Variable) else value)
        for i, value in sorted(new.items())
    ]
    nnx.update(tuple(objects), nnx.from_flat_state(changed))
