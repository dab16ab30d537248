"""Edges of one shard, laid out so that no reduction over them needs a scatter.

The edges of a *group* (all edges whose senders live in one place: this shard, or one remote
partition) are stored once per orientation. In the orientation "by receiver" the rows are the
receivers, in "by sender" the senders. Slots are in *row order*: by group, then by row, the edges of
a row side by side. These are compressed sparse rows, which native kernels reduce row by row. Arrays
with one row per edge, such as the user's data, are in the row order by receiver.

XLA has no loop over rows of unequal length that is fast; it *walks* the edges instead, in the order
of jagged diagonal storage, which is a permutation of the slots. For the walk, the rows that have
edges in a group are renumbered ("compact" rows) by descending degree: slab k holds the k-th edge of
every row with more than k edges, so that any run of consecutive places of a slab belongs to
consecutive compact rows, each once, and one chunk is added to a contiguous slice of the
accumulator. Rows of very high degree would make slabs of a single row; their edges are walked row
by row instead ("heavy" runs) and a chunk of them is reduced to one row.

No slot is spent on padding inside a group; a chunk that runs past its slab masks its last lanes.
Trip counts are data, so a device does the work of its own edges, not of the largest shard's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

__all__ = [
    "EdgeChunk",
    "EdgeGroups",
    "Orientation",
    "for_each_chunk",
    "match_variation",
    "take_rows",
    "to_slot_order",
    "when_ready",
]

Pytree = Any


def match_variation(tree: Pytree, like: Pytree) -> Pytree:
    """Gives `tree` the device-variation of `like`, which loop carries under `shard_map` need.

    Args:
      tree: arrays that may be replicated over the mesh axes.
      like: arrays whose mesh axes of variation are taken.

    Returns:
      `tree`, varying over every axis over which a leaf of `like` varies.
    """
    axes: frozenset[str] = frozenset()
    for leaf in jax.tree.leaves(like):
        axes |= jax.typeof(leaf).manual_axis_type.varying

    def cast(leaf: jax.Array) -> jax.Array:
        leaf = jnp.asarray(leaf)
        missing = tuple(sorted(axes - jax.typeof(leaf).manual_axis_type.varying))
        return lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(cast, tree)


def when_ready(tree: Pytree) -> jax.Array:
    """0, as int32, known only when the first floating array of `tree` is.

    Adding it to the zeros that a loop starts from keeps XLA from making them all at once before the
    first loop (equal constants become one, and a copy per loop). XLA's CPU compiler drops
    optimization barriers before it schedules; a dependence on data it keeps.
    """
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.size:
            first = leaf[(0,) * leaf.ndim]
            return jnp.minimum(jnp.isnan(first).astype(jnp.int32), 0)
    return jnp.int32(0)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Orientation:
    """One direction of the edges of several groups (see the module's docstring).

    Attributes:
      neighbors: int32 [slots], the row at the other end of each edge.
      edge_ids: int32 [slots], the slot of the same edge in the orientation by receiver; None where
        this is that orientation.
      walk: int32 [slots], the slot of this orientation to which each step of the walk leads.
      light_ptr, heavy_ptr: int32 [groups + 1], the chunks of each group.
      light_slots, light_rows, light_counts: int32 [light chunks], first place in `walk`, first
        compact row and number of edges of a chunk that lies in one slab.
      heavy_slots, heavy_rows, heavy_counts: int32 [heavy chunks], the same for chunks of one row.
      row_ptr: int32 [groups], where the compact rows of a group start in `rows`.
      rows: int32 [compact rows of all groups], the row each compact row stands for.
      position: int32 [rows of group 0], the compact row of each row of group 0, -1: no edges.
      compressed_ptr: int32 [groups + 1], where the rows of each group start in `compressed_rows`.
      compressed_rows: int32 [rows that have edges, of all groups], in row order, numbered as in
        `rows`, of which they are a permutation within each group.
      compressed_starts: int32 [rows that have edges, of all groups, + 1], the first slot of each;
        behind the last row, the number of edges.
    """

    neighbors: jax.Array
    edge_ids: jax.Array | None
    walk: jax.Array
    light_ptr: jax.Array
    light_slots: jax.Array
    light_rows: jax.Array
    light_counts: jax.Array
    heavy_ptr: jax.Array
    heavy_slots: jax.Array
    heavy_rows: jax.Array
    heavy_counts: jax.Array
    row_ptr: jax.Array
    rows: jax.Array
    position: jax.Array
    compressed_ptr: jax.Array
    compressed_rows: jax.Array
    compressed_starts: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EdgeGroups:
    """The edges of one shard, grouped by where their far end lives, in both orientations.

    Attributes:
      by_receiver, by_sender: the two orientations.
      sender_ids, receiver_ids: int32, global ids of the rows that `neighbors` and `rows` number;
        group g starts at `sender_ptr[g]` (`receiver_ptr[g]`); None: all groups at 0.
      repetition: int32 [slots], which of several equal edges each one is; None: no equal edges.
      walk_position: int32 [slots], the place of each slot by receiver in `by_receiver.walk`, -1:
        no edge; None where edges carry no data.
      chunk: edges handled at a time.
      receiver_capacity, sender_capacity: compact rows of the largest group, plus one chunk.
      implementation: which kernels reduce over the edges: "xla", "cpu" or "mosaic_gpu".
    """

    by_receiver: Orientation
    by_sender: Orientation
    sender_ids: jax.Array
    sender_ptr: jax.Array | None
    receiver_ids: jax.Array
    receiver_ptr: jax.Array | None
    repetition: jax.Array | None
    walk_position: jax.Array | None
    chunk: int = dataclasses.field(metadata={"static": True})
    receiver_capacity: int = dataclasses.field(metadata={"static": True})
    sender_capacity: int = dataclasses.field(metadata={"static": True})
    implementation: str = dataclasses.field(default="xla", metadata={"static": True})


@dataclasses.dataclass(frozen=True)
class EdgeChunk:
    """Up to `chunk` edges of one group, as handed to an edge function.

    Attributes:
      senders, receivers: int32 [chunk], rows of the sender and receiver tables of the group.
      edge_ids: int32 [chunk], slots in the orientation by receiver.
      mask: bool [chunk], False where a lane holds no edge (it then repeats the first lane's).
      first_place: int32, where the chunk starts in the walk of its orientation.
      heavy: whether all lanes reduce into one row.
    """

    senders: jax.Array
    receivers: jax.Array
    edge_ids: jax.Array
    mask: jax.Array
    first_place: jax.Array
    heavy: bool


def take_rows(tree: Pytree, rows: jax.Array) -> Pytree:
    """Rows [chunk, ...] of every array of a pytree; `rows` must be in bounds."""
    return jax.tree.map(lambda leaf: leaf.at[rows].get(mode="promise_in_bounds"), tree)


def to_slot_order(edges: EdgeGroups, walked: Pytree) -> Pytree:
    """Brings values per edge from the places of the walk by receiver to their slots.

    Args:
      edges: the edges; their `walk_position` is known wherever there are values.
      walked: pytree of arrays [slots, ...], by place in `edges.by_receiver.walk`.

    Returns:
      Arrays of the same shapes by slot, 0 in slots without an edge.
    """
    if not jax.tree.leaves(walked):
        return walked
    position = edges.walk_position
    assert position is not None  # edges without data have no values either
    has = position >= 0
    found = take_rows(walked, jnp.maximum(position, 0))
    return jax.tree.map(
        lambda leaf: jnp.where(has.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, 0), found
    )


def _slice(array: jax.Array, start: jax.Array, size: int) -> jax.Array:
    return lax.dynamic_slice_in_dim(array, start, size, 0)


def for_each_chunk(
    edges: EdgeGroups,
    side: str,
    group: jax.Array | int,
    body: Callable[[EdgeChunk, jax.Array, Pytree], Pytree],
    carry: Pytree,
) -> Pytree:
    """Runs `body(chunk, first_compact_row, carry)` over the chunks of one group, one at a time.

    Args:
      edges: the edges.
      side: "receiver" or "sender", the orientation.
      group: which group, static or traced.
      body: returns the new carry; a heavy chunk has `chunk.heavy` True and one compact row.
      carry: pytree of arrays that vary as `edges` does.

    Returns:
      The last carry.
    """
    orientation = edges.by_receiver if side == "receiver" else edges.by_sender
    lanes = jnp.arange(edges.chunk, dtype=jnp.int32)

    def load(place: jax.Array, count: jax.Array, rows: jax.Array, heavy: bool) -> EdgeChunk:
        mask = lanes < count

        def active(values: jax.Array) -> jax.Array:
            return jnp.where(mask, values, values[0])

        slots = active(_slice(orientation.walk, place, edges.chunk))
        neighbors = take_rows(orientation.neighbors, slots)
        by_sender = orientation.edge_ids
        edge_ids = slots if by_sender is None else take_rows(by_sender, slots)
        rows = active(rows)
        senders, receivers = (neighbors, rows) if side == "receiver" else (rows, neighbors)
        return EdgeChunk(senders, receivers, edge_ids, mask, place, heavy)

    def light(index: jax.Array, carry: Pytree) -> Pytree:
        first = orientation.light_rows[index]
        rows = _slice(orientation.rows, orientation.row_ptr[group] + first, edges.chunk)
        place, count = orientation.light_slots[index], orientation.light_counts[index]
        return body(load(place, count, rows, False), first, carry)

    def heavy(index: jax.Array, carry: Pytree) -> Pytree:
        first = orientation.heavy_rows[index]
        row = orientation.rows[orientation.row_ptr[group] + first]
        place, count = orientation.heavy_slots[index], orientation.heavy_counts[index]
        return body(load(place, count, jnp.broadcast_to(row, lanes.shape), True), first, carry)

    # A shard may have chunks of one kind only, or none at all.
    if orientation.light_slots.shape[0]:
        carry = _loop(orientation.light_ptr, group, light, carry)
    if orientation.heavy_slots.shape[0]:
        carry = _loop(orientation.heavy_ptr, group, heavy, carry)
    return carry


def _loop(
    pointers: jax.Array,
    group: jax.Array | int,
    step: Callable[[jax.Array, Pytree], Pytree],
    carry: Pytree,
) -> Pytree:
    """`for index in range(pointers[group], pointers[group + 1])` with a trip count that is data."""
    stop = pointers[group + 1]

    def body(state: tuple[jax.Array, Pytree]) -> tuple[jax.Array, Pytree]:
        index, carry = state
        return index + 1, step(index, carry)

    start, stop = pointers[group], stop
    start = match_variation(start, (start, carry))
    return lax.while_loop(lambda state: state[0] < stop, body, (start, carry))[1]
