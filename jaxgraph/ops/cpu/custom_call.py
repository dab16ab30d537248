"""Calls of the compiled kernels, which all take the edges of one group first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jaxgraph.ops.edges import EdgeGroup, match_variation

__all__ = ["call_kernel", "optional"]


def call_kernel(
    target: str,
    over: EdgeGroup,
    side: str,
    arrays: Sequence[jax.Array],
    results: Sequence[tuple[tuple[int, ...], Any]],
    before: Mapping[int, int],
    **attributes: Any,
) -> list[jax.Array]:
    """Calls a kernel on the edges of a group.

    Args:
      target: name of the custom call.
      over: the edges.
      side: "receiver" or "sender", which of both ends are the rows.
      arrays: what comes after the edges.
      results: shape and dtype of each result.
      before: place in `arrays` of what each result continues from, by result.
      attributes: static arguments, as NumPy scalars or bool.

    Returns:
      The results.
    """
    orientation = over.edges.orientation(side)
    edges = (
        jnp.asarray(over.group, jnp.int32).reshape(1),
        orientation.compressed_ptr,
        orientation.compressed_rows,
        orientation.compressed_starts,
        orientation.neighbors,
        optional(orientation.edge_ids, jnp.int32),
    )
    operands = match_variation((*edges, *arrays), (edges, arrays))
    like = jax.typeof(operands[0])
    call = jax.ffi.ffi_call(
        target,
        [_shape(shape, dtype, like) for shape, dtype in results],
        input_output_aliases={
            len(edges) + place: result
            for result, place in before.items()
            if operands[len(edges) + place].size
        },
    )
    return list(call(*operands, **attributes))


def optional(array: jax.Array | None, dtype: Any) -> jax.Array:
    """`array`, or the empty array of that type that stands for None in a call."""
    return jnp.zeros(0, dtype) if array is None else array


def _shape(shape: tuple[int, ...], dtype: Any, like: Any) -> jax.ShapeDtypeStruct:
    """A result that varies over the mesh axes as the operands do."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return jax.ShapeDtypeStruct(shape, dtype)
    sharding = NamedSharding(mesh, PartitionSpec(*(None,) * len(shape)))
    return jax.ShapeDtypeStruct(
        shape, dtype, sharding=sharding, manual_axis_type=like.manual_axis_type
    )
