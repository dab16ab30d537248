"""Calls of the compiled kernels; all but one take the edges of a group first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jaxgraph.ops.core.edges import EdgeGroup, match_variation


def call_kernel(
    target: str,
    over: EdgeGroup,
    side: str,
    arrays: Sequence[jax.Array],
    results: Sequence[tuple[tuple[int, ...], Any]],
    before: Mapping[int, int],
    **attributes: Any,
) -> list[jax.Array]:
    """Calls a kernel on the edges of a group."""
    orientation = over.edges.orientation(side)
    edges = (
        jnp.asarray(over.group, jnp.int32).reshape(1),
        orientation.compressed_ptr,
        orientation.compressed_rows,
        orientation.compressed_starts,
        orientation.neighbors,
        optional(orientation.edge_ids, jnp.int32),
    )
    aliases = {len(edges) + place: result for result, place in before.items() if arrays[place].size}
    return call_on_arrays(target, (*edges, *arrays), results, aliases, **attributes)


def call_on_arrays(
    target: str,
    arrays: Sequence[jax.Array],
    results: Sequence[tuple[tuple[int, ...], Any]],
    aliases: dict[int, int] | None = None,
    **attributes: Any,
) -> list[jax.Array]:
    """Calls a kernel on arrays."""
    operands = match_variation(tuple(arrays), tuple(arrays))
    like = jax.typeof(operands[0])
    shapes = [_shape(shape, dtype, like) for shape, dtype in results]
    # Under `jax.vmap` a kernel runs once for each entry of the mapped axis.
    call = jax.ffi.ffi_call(target, shapes, input_output_aliases=aliases, vmap_method="sequential")
    return list(call(*operands, **attributes))


def optional(array: jax.Array | None, dtype: Any) -> jax.Array:
    """`array`, or the empty array of that type that represents None in a call."""
    return jnp.zeros(0, dtype) if array is None else array


def _shape(shape: tuple[int, ...], dtype: Any, like: Any) -> jax.ShapeDtypeStruct:
    """A result that varies over the mesh axes as the operands do."""
    mesh = jax.sharding.get_abstract_mesh()
    sharding = NamedSharding(mesh, PartitionSpec(*(None,) * len(shape)))
    return jax.ShapeDtypeStruct(
        shape, dtype, sharding=sharding, manual_axis_type=like.manual_axis_type
    )
