"""The kernels as functions of the edges of one group, under the shapes that they rely on.

The counterpart of `jaxgraph.ops.cpu.calls`. A result is written over `before`, or over zeros; where
a row takes in a message from itself, it starts from that. None is differentiable: ops define
derivatives.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxgraph.ops.edges import EdgeGroup, Orientation, match_variation
from jaxgraph.ops.self_messages import check_start
from pallas_kernels import edge_products as products
from pallas_kernels import extremum
from pallas_kernels import neighbor_sum as sums
from pallas_kernels.rows import RowList, Rows
from pallas_kernels.teams import Launch

__all__ = [
    "KERNEL_TYPES",
    "edge_products",
    "neighbor_extremum",
    "neighbor_sum",
    "row_schedule",
    "winner_gradient",
]

KERNEL_TYPES = tuple(map(jnp.dtype, (jnp.float32, jnp.bfloat16, jnp.float16)))
"""Types of the numbers that the kernels take."""


def row_schedule(over: EdgeGroup, side: str) -> Rows:
    """The rows of a group as kernels walk over them.

    Args:
      over: the edges.
      side: "receiver" or "sender", which of both ends are the rows.

    Returns:
      The rows that have edges.
    """
    orientation, group = over.edges.orientation(side), jnp.asarray(over.group, jnp.int32)
    first, stop = _between(orientation.compressed_ptr, group)
    cut = orientation.cut
    if cut is None:
        return Rows(_in_row_order(orientation, first, stop))
    begin = first + cut.counts[group]
    whole = _listed(cut.whole_rows, cut.whole_starts, cut.whole_lengths, (begin, stop), 0)
    if not cut.partials:
        return Rows(whole)
    between = _between(cut.piece_ptr, group)
    parts = (cut.piece_rows, cut.piece_starts, cut.piece_lengths)
    return Rows(
        whole,
        _listed(*parts, between, cut.longest[group]),
        _listed(cut.rows, cut.firsts, cut.pieces, _between(cut.row_ptr, group), 0),
        cut.partials,
    )


def _between(pointers: jax.Array, group: jax.Array) -> tuple[jax.Array, jax.Array]:
    return pointers[group], pointers[group + 1]


def _listed(
    rows: jax.Array,
    starts: jax.Array,
    lengths: jax.Array,
    between: tuple[jax.Array, jax.Array],
    longest: jax.Array | int,
) -> RowList:
    bounds = jnp.stack([*between, jnp.asarray(longest, jnp.int32)])
    return RowList(rows, starts, lengths, bounds)


def _in_row_order(orientation: Orientation, first: jax.Array, stop: jax.Array) -> RowList:
    starts = orientation.compressed_starts
    lengths = starts[1:] - starts[:-1]
    place = jnp.arange(len(lengths), dtype=jnp.int32)
    own = jnp.where((place >= first) & (place < stop), lengths, 0)
    longest = jnp.max(own, initial=0)
    return _listed(orientation.compressed_rows, starts, lengths, (first, stop), longest)


def neighbor_sum(
    over: EdgeGroup,
    side: str,
    x: jax.Array,
    num_rows: int,
    *,
    weights: jax.Array | None = None,
    before: jax.Array | None = None,
    launch: Launch | None = None,
) -> jax.Array:
    """y_i = sum_{e: j -> i} w_e x_j, added to `before`.

    Args:
      over: the edges; rows that take in their own x add it unweighted.
      side: "receiver" or "sender", whose sums.
      x: of the other side, [rows, ...], float32, bfloat16 or float16.
      num_rows: rows of the result.
      weights: [slots], or [slots, heads] for x [rows, heads, ...]; None: 1.
      before: float32 [rows, ...]; not with `over.missing`.
      launch: how the kernel is started; None: for Hopper.

    Returns:
      float32 [rows, ...].

    Raises:
      ValueError: `before` and `over.missing` are both given.
    """
    check_start(over, before)
    shape = (num_rows, *x.shape[1:])
    start = jnp.zeros(shape, jnp.float32) if before is None else before
    if over.missing is not None:
        start = start.at[: len(over.missing)].set(_own(over.missing, x, 0.0))
    orientation = over.edges.orientation(side)
    if not start.size or not orientation.neighbors.size:
        return start
    operands = (
        _table(x),
        row_schedule(over, side),
        orientation.neighbors,
        _table(start),
        None if weights is None else weights.reshape(weights.shape[0], -1),
        None if weights is None else orientation.edge_ids,
    )
    x, rows, neighbors, start, weights, slots = match_variation(operands, operands)
    fresh = before is None and over.missing is None
    total = sums.neighbor_sum(
        x, rows, neighbors, start, weights=weights, slots=slots, fresh=fresh, launch=launch
    )
    return total.reshape(shape)


def edge_products(
    over: EdgeGroup,
    x: jax.Array,
    z: jax.Array,
    *,
    heads: int = 1,
    before: jax.Array | None = None,
    launch: Launch | None = None,
) -> jax.Array:
    """y_e = <x_i, z_j> for e: j -> i, per head.

    Args:
      over: the edges; what rows send themselves has no slot and is left out.
      x: [receivers, heads, features] or any shape of as many numbers per row.
      z: [senders, ...], of the same shape otherwise.
      heads: into how many products the numbers of a row are split.
      before: [slots, heads], of the slots of other groups, of the common type.
      launch: how the kernel is started; None: for Hopper.

    Returns:
      [slots, heads], of the common type; without `before` 0 in the slots of other groups.
    """
    orientation, dtype = over.edges.by_receiver, jnp.promote_types(x.dtype, z.dtype)
    start = before
    if start is None:
        start = jnp.zeros((orientation.neighbors.shape[0], heads), dtype)
    if not start.size or not x.size or not z.size:
        return start
    operands = (
        _table(x),
        _table(z),
        row_schedule(over, "receiver"),
        orientation.neighbors,
        start,
    )
    return products.edge_products(*match_variation(operands, operands), launch=launch)


def neighbor_extremum(
    over: EdgeGroup,
    x: jax.Array,
    num_rows: int,
    *,
    maximum: bool,
    before: tuple[jax.Array, jax.Array, jax.Array] | None = None,
    launch: Launch | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The state of `jaxgraph.ops.reducers.Extremum` after all messages m_ij = x_j of a group.

    Args:
      over: the edges.
      x: [senders, ...].
      num_rows: rows of the result.
      maximum: whether the largest wins, or the smallest.
      before: the state to continue from; not with `over.missing`.
      launch: how the kernel is started; None: for Hopper.

    Returns:
      best and count float32 [rows, ...], and identity uint32.

    Raises:
      ValueError: `before` and `over.missing` are both given.
    """
    shape, worst = (num_rows, *x.shape[1:]), -jnp.inf if maximum else jnp.inf
    check_start(over, *(before or ()))
    ids = over.sender_ids(x.shape[0])
    state = before
    if state is None:
        state = (jnp.full(shape, worst), jnp.zeros(shape), jnp.zeros(shape, jnp.uint32))
    if over.missing is not None:
        rows = len(over.missing)
        own = jnp.broadcast_to(_like(over.missing, x), x[:rows].shape)
        identity = jnp.where(own, _like(ids[:rows].astype(jnp.uint32), x), jnp.uint32(0))
        heads = (_own(over.missing, x, worst), own.astype(jnp.float32), identity)
        state = tuple(part.at[:rows].set(new) for part, new in zip(state, heads, strict=True))
    orientation = over.edges.by_receiver
    if not state[0].size or not orientation.neighbors.size:
        return state[0], state[1], state[2]
    operands = (
        _table(x),
        row_schedule(over, "receiver"),
        orientation.neighbors,
        ids,
        tuple(map(_table, state)),
        over.edges.repetition,
    )
    *arrays, repetition = match_variation(operands, operands)
    fresh = before is None and over.missing is None
    best, count, identity = extremum.neighbor_extremum(
        *arrays, maximum=maximum, repetition=repetition, fresh=fresh, launch=launch
    )
    return best.reshape(shape), count.reshape(shape), identity.reshape(shape)


def winner_gradient(
    over: EdgeGroup,
    x: jax.Array,
    adjoint: tuple[jax.Array, jax.Array, jax.Array, jax.Array],
    *,
    before: jax.Array | None = None,
    launch: Launch | None = None,
) -> jax.Array:
    """dx_j = sum_{e: j -> i} g_i where x_j won at i, added to `before`.

    Args:
      over: the edges.
      x: [senders, ...].
      adjoint: what `Extremum.adjoint` returns, [receivers, ...].
      before: float32 [senders, ...]; not with `over.missing`.
      launch: how the kernel is started; None: for Hopper.

    Returns:
      float32 [senders, ...].

    Raises:
      ValueError: `before` and `over.missing` are both given.
    """
    check_start(over, before)
    y, gradient, several, identity = adjoint
    # NaN is equal to nothing, so that one array tells the value and whether it counts.
    equal = jnp.where(several, y, jnp.asarray(jnp.nan, y.dtype))
    ids = over.sender_ids(x.shape[0])
    start = jnp.zeros(x.shape, jnp.float32) if before is None else before
    if over.missing is not None:
        rows = len(over.missing)
        known = identity[:rows] == _like(ids[:rows].astype(jnp.uint32), x)
        wins = _like(over.missing, x) & (known | (x[:rows] == equal[:rows]))
        start = start.at[:rows].set(jnp.where(wins, gradient[:rows], 0))
    orientation = over.edges.by_sender
    if not start.size or not gradient.size or not orientation.neighbors.size:
        return start
    operands = (
        _table(x),
        row_schedule(over, "sender"),
        orientation.neighbors,
        ids,
        tuple(map(_table, (equal, gradient, identity))),
        _table(start),
        over.edges.repetition,
        orientation.edge_ids,
    )
    *arrays, repetition, slots = match_variation(operands, operands)
    fresh = before is None and over.missing is None
    total = extremum.winner_gradient(
        *arrays, repetition=repetition, slots=slots, fresh=fresh, launch=launch
    )
    return total.reshape(x.shape)


def _table(x: jax.Array) -> jax.Array:
    return x.reshape(x.shape[0], -1)


def _like(values: jax.Array, x: jax.Array) -> jax.Array:
    """One value per row, with the axes of x."""
    return values.reshape(-1, *(1,) * (x.ndim - 1))


def _own(missing: jax.Array, x: jax.Array, otherwise: float) -> jax.Array:
    """The x of rows that take in their own, as float32."""
    own = x[: len(missing)].astype(jnp.float32)
    return jnp.where(_like(missing, x), own, otherwise)
