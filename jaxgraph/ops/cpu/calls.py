"""The kernels as functions of arrays, under the checks and the shapes that they rely on.

Every function reduces the edges of one group, found in compressed rows (`jaxgraph.ops.edges`). The
rows of the orientation are those that are written; its neighbors are those that are looked up. A
`before` continues from an earlier result (its memory is reused), else rows without edges are 0 or,
where `missing` says so, take in their own value. None is differentiable: ops define derivatives.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxgraph.ops.cpu.custom_call import Group, call_kernel, optional
from jaxgraph.ops.edges import Orientation
from jaxgraph.ops.precision import accumulation_dtype

__all__ = ["KERNEL_TYPES", "edge_products", "neighbor_extremum", "neighbor_sum", "winner_gradient"]


KERNEL_TYPES = tuple(map(jnp.dtype, (jnp.float32, jnp.bfloat16, jnp.float64)))
"""Types of the numbers that the kernels take."""


def neighbor_sum(
    orientation: Orientation,
    group: Group,
    x: jax.Array,
    num_rows: int,
    *,
    weights: jax.Array | None = None,
    missing: jax.Array | None = None,
    before: jax.Array | None = None,
) -> jax.Array:
    """y_i = sum_{e: j -> i} w_e x_j, added to `before`.

    Args:
      orientation, group: whose edges.
      x: [neighbor rows, ...], float32, bfloat16 or float64.
      num_rows: rows of the result.
      weights: [slots], or [slots, heads] for x [neighbor rows, heads, ...], of x's type; None: 1.
      missing: bool [rows], rows that take in their own x (which then are the first of x); not with
        `before`.
      before: [rows, ...], of the type in which x is accumulated.

    Returns:
      [rows, ...], of the type in which x is accumulated.
    """
    dtype = accumulation_dtype(x.dtype)
    heads = 1 if weights is None or weights.ndim == 1 else weights.shape[1]
    arrays = (
        x,
        optional(weights, x.dtype),
        optional(missing, jnp.bool_),
        optional(before, dtype),
    )
    results = [((num_rows, *x.shape[1:]), dtype)]
    return call_kernel(
        "jaxgraph_sum", orientation, group, arrays, results, {0: 3}, heads=np.int64(heads)
    )[0]


def edge_products(
    orientation: Orientation,
    group: Group,
    x: jax.Array,
    z: jax.Array,
    num_slots: int,
    *,
    heads: int = 1,
    before: jax.Array | None = None,
) -> jax.Array:
    """y_e = <x_i, z_j> for e: j -> i, per head.

    Args:
      orientation, group: whose edges.
      x: [rows, heads, features] or any shape of as many numbers per row.
      z: [neighbor rows, ...], of the same shape and type otherwise.
      num_slots: rows of the result.
      heads: into how many products the numbers of a row are split.
      before: [slots, heads], of the slots of other groups.

    Returns:
      [slots, heads], of x's type; without `before` 0 in the slots of other groups.
    """
    arrays = (x, z, optional(before, x.dtype))
    results = [((num_slots, heads), x.dtype)]
    return call_kernel(
        "jaxgraph_product", orientation, group, arrays, results, {0: 2}, heads=np.int64(heads)
    )[0]


def neighbor_extremum(
    orientation: Orientation,
    group: Group,
    x: jax.Array,
    ids: jax.Array,
    repetition: jax.Array | None,
    num_rows: int,
    *,
    maximum: bool,
    missing: jax.Array | None = None,
    before: tuple[jax.Array, jax.Array, jax.Array] | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The state of `jaxgraph.ops.reducers.Extremum` after all messages m_ij = x_j of a group.

    Args:
      orientation, group: whose edges.
      x: [neighbor rows, ...].
      ids: int32 [neighbor rows], global ids.
      repetition: int32 [slots], or None.
      num_rows: rows of the result.
      maximum: whether the largest wins, or the smallest.
      missing: bool [rows], rows that take in their own x.
      before: the state to continue from.

    Returns:
      best and count [rows, ...], of the type in which x is accumulated, and identity uint32.
    """
    dtype, shape = accumulation_dtype(x.dtype), (num_rows, *x.shape[1:])
    kinds = (dtype, dtype, jnp.uint32)
    state = before or (None, None, None)
    arrays = (
        x,
        ids,
        optional(repetition, jnp.int32),
        optional(missing, jnp.bool_),
        *(optional(part, kind) for part, kind in zip(state, kinds, strict=True)),
    )
    results = [(shape, kind) for kind in kinds]
    best, count, identity = call_kernel(
        "jaxgraph_extremum",
        orientation,
        group,
        arrays,
        results,
        {0: 4, 1: 5, 2: 6},
        maximum=np.bool_(maximum),
    )
    return best, count, identity


def winner_gradient(
    orientation: Orientation,
    group: Group,
    x: jax.Array,
    ids: jax.Array,
    repetition: jax.Array | None,
    adjoint: tuple[jax.Array, jax.Array, jax.Array, jax.Array],
    *,
    missing: jax.Array | None = None,
    before: jax.Array | None = None,
) -> jax.Array:
    """dx_j = sum_{e: j -> i} g_i where x_j won at i, added to `before`.

    Args:
      orientation: by sender.
      group: whose edges.
      x: [rows, ...], the senders' values.
      ids: int32 [rows], global ids of the senders.
      repetition: int32 [slots], or None.
      adjoint: what `Extremum.adjoint` returns, [neighbor rows, ...].
      missing: bool [rows], rows that took in their own x.
      before: [rows, ...].

    Returns:
      [rows, ...], of the type in which x is accumulated.
    """
    dtype = accumulation_dtype(x.dtype)
    y, gradient, several, identity = adjoint
    arrays = (
        x,
        ids,
        optional(repetition, jnp.int32),
        optional(missing, jnp.bool_),
        y,
        gradient,
        several,
        identity,
        optional(before, dtype),
    )
    return call_kernel("jaxgraph_winner", orientation, group, arrays, [(x.shape, dtype)], {0: 8})[0]
