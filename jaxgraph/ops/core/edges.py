"""Edges of one shard, laid out so that no reduction over them needs a scatter.

The edges of a *group* (all edges whose senders are in one table: this part's own, or that of one
other part) are stored once per orientation. In the orientation "by receiver" the rows are the
receivers, in "by sender" the senders. Slots are in *row order*: by group, then by row; the edges of
a row are consecutive. These are compressed sparse rows, which native kernels reduce row by row.
Arrays with one row per edge, such as the user's data, are in the row order by receiver.

XLA has no fast loop over rows of unequal length. For it, the rows that have edges in a group are
renumbered ("compact" rows) by descending degree, so that neighbouring rows have about equal
degrees, and are reduced a *block* at a time. A step reads the next few edges (a *piece*) of every
row of the block, a chunk of edges in all, and adds up the messages of each piece by an unrolled
sum: XLA makes one fused, parallel and vectorised loop of it, gathers included. The running result
of a block stays in place until its longest row ends, and is then written to consecutive compact
rows. Rows of high degree ("heavy" rows, the first compact ones) are cut into *runs* of edges, which
are reduced like rows, after the compact rows; at the end the results of a row's runs are merged.

Values per edge are computed slot after slot. Trip counts are data, so a device does the
work of its own edges, not of the largest shard's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxgraph.ops.core.rows import entry_at, rows_from, take_rows, with_rows_from
from jaxgraph.ops.core.stored import stored_branch
from pallas_kernels.pytrees import pytree

Pytree = Any


def varying_axes(leaf: Any) -> frozenset[str]:
    """Returns the mesh axes over which an array or a number varies between devices."""
    return jax.typeof(leaf).manual_axis_type.varying


def match_variation(tree: Pytree, like: Pytree) -> Pytree:
    """Makes `tree` vary over the mesh axes of `like`, as loop carries under `shard_map` must."""
    axes: frozenset[str] = frozenset()
    for leaf in jax.tree.leaves(like):
        axes |= varying_axes(leaf)

    def cast(leaf: jax.Array) -> jax.Array:
        leaf = jnp.asarray(leaf)
        missing = tuple(sorted(axes - varying_axes(leaf)))
        return lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(cast, tree)


@pytree
class RowSplits:
    """The order in which GPU kernels reduce rows, and the splits of long rows.

    See `pallas_kernels.schedule`.

    Attributes:
      whole_ptr: int32 [groups + 1], where each group starts in the next three arrays.
      whole_rows, whole_starts, whole_lengths: int32 [all rows of group 0, and the rows with edges
        of the other groups], the row, first slot and number of edges of each, by descending number
        of edges within its group.
      counts: int32 [groups], number of rows that are cut, the first ones.
      longest: int32 [groups], edges of the longest split.
      split_ptr: int32 [groups + 1], where the splits of each group start.
      split_rows, split_starts, split_lengths: int32 [splits of all groups], the row, first slot and
        edges of each split.
      row_ptr: int32 [groups + 1], where the cut rows of each group start.
      rows, firsts, splits: int32 [cut rows of all groups], each row, its first split in its group,
        and its number of splits.
      partials: the most splits of a group; 0: no row is cut.
      spread: whether a row may be so long that the whole chip shares its splits.
    """

    whole_ptr: jax.Array
    whole_rows: jax.Array
    whole_starts: jax.Array
    whole_lengths: jax.Array
    counts: jax.Array
    longest: jax.Array
    split_ptr: jax.Array
    split_rows: jax.Array
    split_starts: jax.Array
    split_lengths: jax.Array
    row_ptr: jax.Array
    rows: jax.Array
    firsts: jax.Array
    splits: jax.Array
    partials: int = dataclasses.field(metadata={"static": True})
    spread: bool = dataclasses.field(metadata={"static": True})


@pytree
class Orientation:
    """One direction of the edges of several groups (see the module's docstring).

    Attributes:
      neighbors: int32 [slots], the row at the other end of each edge.
      edge_ids: int32 [slots], the slot of the same edge in the orientation by receiver; None where
        this is that orientation.
      rows: int32 [compact rows and runs of all groups], the row of each. Each group has its compact
        rows, then the runs of its heavy rows, row by row.
      starts, degrees: int32 [compact rows and runs of all groups], the first slot and the number of
        edges of each; for a heavy row the index of its first run in the group, and the number of
        its runs.
      run_ptr: int32 [groups + 1], where each group starts in these.
      heavy_rows: int32 [groups], number of heavy rows, which are the first compact ones.
      position: int32 [rows of group 0], the compact row of each row of group 0; -1: no edges.
      compressed_ptr: int32 [groups + 1], where the rows of each group start in `compressed_rows`.
      compressed_rows: int32 [rows that have edges, of all groups], in row order and numbered as in
        `rows`; within each group a permutation of its compact rows.
      compressed_starts: int32 [rows that have edges, of all groups, + 1], the first slot of each;
        after the last row, the number of edges.
      cut: the order and splits of rows for GPU kernels; None: they read the compressed rows,
        slower.
    """

    neighbors: jax.Array
    edge_ids: jax.Array | None
    rows: jax.Array
    starts: jax.Array
    degrees: jax.Array
    run_ptr: jax.Array
    heavy_rows: jax.Array
    position: jax.Array
    compressed_ptr: jax.Array
    compressed_rows: jax.Array
    compressed_starts: jax.Array
    cut: RowSplits | None = None


@pytree
class EdgeGroups:
    """The edges of one shard, grouped by the table of their senders, in both orientations.

    Attributes:
      by_receiver, by_sender: the two orientations.
      sender_ids, receiver_ids: int32, global ids of the rows that `neighbors` and `rows` index;
        group g starts at `sender_ptr[g]` (`receiver_ptr[g]`); None: all groups at 0.
      repetition: int32 [slots], the index of each edge among equal edges; None: no equal edges.
      receivers: int32 [slots], the receiver's row of each slot by receiver; None where edges carry
        no data.
      chunk: edges reduced at a time, a power of two.
      piece: edges of a row that are reduced at a time, a power of two, at most `chunk`.
      receiver_capacity, sender_capacity: compact rows and runs of the largest group, plus one
        block of rows.
      implementation: which kernels reduce over the edges: "xla", "cpu" or "mosaic_gpu".
    """

    by_receiver: Orientation
    by_sender: Orientation
    sender_ids: jax.Array
    sender_ptr: jax.Array | None
    receiver_ids: jax.Array
    receiver_ptr: jax.Array | None
    repetition: jax.Array | None
    receivers: jax.Array | None
    chunk: int = dataclasses.field(metadata={"static": True})
    piece: int = dataclasses.field(metadata={"static": True})
    receiver_capacity: int = dataclasses.field(metadata={"static": True})
    sender_capacity: int = dataclasses.field(metadata={"static": True})
    implementation: str = dataclasses.field(default="xla", metadata={"static": True})

    @property
    def rows_at_once(self) -> int:
        """Rows of a block."""
        return self.chunk // self.piece

    def orientation(self, side: str) -> Orientation:
        """The orientation by "receiver" or by "sender"."""
        return self.by_receiver if side == "receiver" else self.by_sender


@dataclasses.dataclass(frozen=True)
class EdgeChunk:
    """Up to `chunk` edges of one group, as handed to an edge function.

    Attributes:
      senders, receivers: int32 [chunk], rows of the sender and receiver tables of the group.
      edge_ids: int32 [chunk], slots in the orientation by receiver.
      mask: bool [chunk], False where a lane holds no edge (it then repeats an edge of its row, or
        of another row of the group).
      side: "sender" or "receiver", the end at which equally many consecutive lanes share a row;
        None: at no end.
      rows: int32 [rows of a block], the shared rows, or None.
    """

    senders: jax.Array
    receivers: jax.Array
    edge_ids: jax.Array
    mask: jax.Array
    side: str | None = None
    rows: jax.Array | None = None

    def at_end(self, side: str, tree: Pytree) -> Pytree:
        """Gathers each edge's row from arrays of the senders or the receivers, [chunk, ...]."""
        if self.rows is None or side != self.side:
            return take_rows(tree, self.senders if side == "sender" else self.receivers)
        lanes, size = len(self.mask), len(self.rows)

        # A row that many lanes share is read once, and never stored for each of them.
        def spread(leaf: jax.Array) -> jax.Array:
            shape = (size, lanes // size, *leaf.shape[1:])
            return jnp.broadcast_to(leaf[:, None], shape).reshape(lanes, *leaf.shape[1:])

        return jax.tree.map(spread, take_rows(tree, self.rows))


@dataclasses.dataclass(frozen=True)
class _Block:
    """Some consecutive rows or runs of a group.

    Attributes:
      orientation: that of the rows.
      rows: int32 [rows at once], the row of each lane.
      starts: int32 [rows at once], the slot of the lane's first edge.
      lengths: int32 [rows at once], the lane's edges; 0 after the end of the group, where the
        lane repeats the first one.
    """

    orientation: Orientation
    rows: jax.Array
    starts: jax.Array
    lengths: jax.Array

    def pieces(self, done: jax.Array, piece: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Neighbors, slots by receiver and mask [rows at once, piece] of the next edges."""
        places = done + jnp.arange(piece, dtype=jnp.int32)[None]
        mask = places < self.lengths[:, None]
        slots = self.starts[:, None] + jnp.minimum(
            places, jnp.maximum(self.lengths - 1, 0)[:, None]
        )

        def known() -> tuple[jax.Array, jax.Array]:
            ids = self.orientation.edge_ids
            ids = slots if ids is None else take_rows(ids, slots)
            return take_rows(self.orientation.neighbors, slots), ids

        # Stored, as XLA would fuse them into the gathers and compute them for every element of a
        # row.
        neighbors, ids = stored_branch(done, known, lambda: (slots, slots))
        return neighbors, ids, mask


def _block(edges: EdgeGroups, side: str, first: jax.Array, stop: jax.Array) -> _Block:
    """The block that starts at a compact row or run, of a group that ends before `stop`."""
    orientation, size = edges.orientation(side), edges.rows_at_once
    inside = first + jnp.arange(size, dtype=jnp.int32) < stop
    rows, starts, degrees = (
        rows_from(array, first, size)
        for array in (orientation.rows, orientation.starts, orientation.degrees)
    )
    return _Block(
        orientation=orientation,
        rows=jnp.where(inside, rows, rows[0]),
        starts=jnp.where(inside, starts, starts[0]),
        lengths=jnp.where(inside, degrees, 0),
    )


def by_row(tree: Pytree, rows: int) -> Pytree:
    """Arrays [chunk, ...] as [rows, lanes of a row, ...]."""
    return jax.tree.map(
        lambda leaf: leaf.reshape(rows, leaf.shape[0] // rows, *leaf.shape[1:]), tree
    )


def visit_rows(
    edges: EdgeGroups,
    side: str,
    group: jax.Array | int,
    visit: Callable[[EdgeChunk, Pytree, Pytree], tuple[Pytree, Pytree]],
    merge: Callable[..., Pytree],
    empty: Pytree,
    table: Pytree,
    carry: Pytree,
) -> tuple[Pytree, Pytree]:
    """Reduces the edges of every row of a group, block by block."""
    orientation, size = edges.orientation(side), edges.rows_at_once
    begin, end = (entry_at(orientation.run_ptr, group + more) for more in (0, 1))
    heavy = entry_at(orientation.heavy_rows, group)

    def body(first: jax.Array, loop: tuple[Pytree, Pytree]) -> tuple[Pytree, Pytree]:
        table, carry = loop
        block = _block(edges, side, begin + first, end)
        state, carry = _reduce_block(edges, side, block, visit, empty, carry)
        return _written(table, state, first), carry

    start = match_variation(heavy, (end, table, carry))
    table, carry = _in_steps(start, end - begin, size, body, (table, carry))
    return _merge_runs(edges, side, begin, heavy, merge, empty, table), carry


def _in_steps(
    start: jax.Array, stop: jax.Array, step: int, body: Callable[..., Any], carry: Any
) -> Any:
    """The carry after `carry = body(number, carry)` for start, start + step, ... below stop.

    Counts by 1: where XLA's simplifier knows all bounds, it takes a loop from 0 to 1 in steps of
    more than 1 for an empty one.
    """
    trips = lax.div(stop - start + (step - 1), jnp.int32(step))

    def run(loop: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
        done, carry = loop
        return done + 1, body(start + done * step, carry)

    zero = start - start
    return lax.while_loop(lambda loop: loop[0] < trips, run, (zero, carry))[1]


def _written(table: Pytree, rows: Pytree, first: jax.Array) -> Pytree:
    """`table` with `rows` in place of its rows from `first` on."""

    def write(leaf: jax.Array, new: jax.Array) -> jax.Array:
        return with_rows_from(leaf, first, new.astype(leaf.dtype))

    return jax.tree.map(write, table, rows)


def _reduce_block(
    edges: EdgeGroups,
    side: str,
    block: _Block,
    visit: Callable[[EdgeChunk, Pytree, Pytree], tuple[Pytree, Pytree]],
    empty: Pytree,
    carry: Pytree,
) -> tuple[Pytree, Pytree]:
    """The state of a block's rows after all their edges."""
    shape = (edges.rows_at_once, edges.piece)
    own_rows = jnp.broadcast_to(block.rows[:, None], shape).reshape(-1)
    longest = jnp.max(block.lengths)

    def body(done: jax.Array, loop: tuple[Pytree, Pytree]) -> tuple[Pytree, Pytree]:
        state, carry = loop
        neighbors, edge_ids, mask = (each.reshape(-1) for each in block.pieces(done, edges.piece))
        senders, receivers = (own_rows, neighbors) if side == "sender" else (neighbors, own_rows)
        chunk = EdgeChunk(senders, receivers, edge_ids, mask, side, block.rows)
        return visit(chunk, state, carry)

    start = match_variation(jnp.int32(0), (longest, empty, carry))
    return _in_steps(start, longest, edges.piece, body, (empty, carry))


def _merge_runs(
    edges: EdgeGroups,
    side: str,
    begin: jax.Array,
    heavy: jax.Array,
    merge: Callable[..., Pytree],
    empty: Pytree,
    table: Pytree,
) -> Pytree:
    """`table` with the states of the heavy rows, each merged from the states of its runs."""
    orientation, size = edges.orientation(side), edges.rows_at_once
    lanes = jnp.arange(size, dtype=jnp.int32)

    def where(mask: jax.Array, some: Pytree, others: Pytree) -> Pytree:
        def pick(one: jax.Array, other: jax.Array) -> jax.Array:
            shape = (size,) + (1,) * (one.ndim - 1)
            return jnp.where(mask.reshape(shape), one, other).astype(other.dtype)

        return jax.tree.map(pick, some, others)

    def body(first: jax.Array, table: Pytree) -> Pytree:
        starts, counts = (
            rows_from(array, begin + first, size)
            for array in (orientation.starts, orientation.degrees)
        )
        inside = first + lanes < heavy

        def add_runs(inner: tuple[jax.Array, Pytree]) -> tuple[jax.Array, Pytree]:
            done, state = inner
            some = inside & (done < counts)
            runs = take_rows(table, jnp.where(some, starts + done, 0))
            return done + 1, merge(state, where(some, runs, empty))

        # The first row has the most runs.
        most = counts[0]
        start = match_variation(jnp.int32(0), (most, table))
        state = lax.while_loop(lambda inner: inner[0] < most, add_runs, (start, empty))[1]
        old = jax.tree.map(lambda leaf: rows_from(leaf, first, size), table)
        return _written(table, where(inside, state, old), first)

    start = match_variation(jnp.int32(0), (heavy, table))
    return _in_steps(start, heavy, size, body, table)


def visit_slots(
    edges: EdgeGroups,
    group: jax.Array | int,
    visit: Callable[[EdgeChunk, jax.Array, Pytree], Pytree],
    carry: Pytree,
) -> Pytree:
    """Runs `visit(chunk, first_slot, carry)` over the slots of a group, a chunk at a time."""
    orientation = edges.by_receiver
    start, stop = (
        entry_at(orientation.compressed_starts, entry_at(orientation.compressed_ptr, group + more))
        for more in (0, 1)
    )
    lanes = jnp.arange(edges.chunk, dtype=jnp.int32)

    def body(first: jax.Array, carry: Pytree) -> Pytree:
        mask = first + lanes < stop

        def active(values: jax.Array) -> jax.Array:
            return jnp.where(mask, values, values[0])

        slots = active(first + lanes)
        senders = active(rows_from(orientation.neighbors, first, edges.chunk))
        if edges.receivers is None:
            receivers = _rows_of_slots(orientation, group, slots)
        else:
            receivers = active(rows_from(edges.receivers, first, edges.chunk))
        chunk = EdgeChunk(senders, receivers, slots, mask)
        return visit(chunk, first, carry)

    start = match_variation(start, (start, stop, carry))
    return _in_steps(start, stop, edges.chunk, body, carry)


def _rows_of_slots(orientation: Orientation, group: jax.Array | int, slots: jax.Array) -> jax.Array:
    """The row of each slot of a group, found by bisection of the rows' starts."""
    first, last = (entry_at(orientation.compressed_ptr, group + more) for more in (0, 1))
    low, high = (jnp.broadcast_to(each, slots.shape) for each in (first, last))
    # The slot belongs to a row from `low` to `high` - 1; a step halves that range.
    for _ in range(orientation.compressed_rows.shape[0].bit_length()):
        middle = (low + high) // 2
        starts_before = take_rows(orientation.compressed_starts, middle) <= slots
        low, high = jnp.where(starts_before, middle, low), jnp.where(starts_before, high, middle)
    return take_rows(orientation.compressed_rows, low)


def with_implementation(tree: Pytree, name: str) -> Pytree:
    """The same edges, reduced by another implementation."""

    def renamed(part: Any) -> Any:
        is_edges = isinstance(part, EdgeGroups)
        return dataclasses.replace(part, implementation=name) if is_edges else part

    return jax.tree.map(renamed, tree, is_leaf=lambda part: isinstance(part, EdgeGroups))


@pytree
class EdgeGroup:
    """One group of edges, as a kernel reduces it.

    Attributes:
      edges: all groups.
      group: which of them, static or traced.
      missing: bool [receiver rows], rows with a self-loop that no edge stores; the first rows of
        the senders are then the receivers. None: no such row.
    """

    edges: EdgeGroups
    group: jax.Array | int
    missing: jax.Array | None = None

    def sender_ids(self, num_rows: int) -> jax.Array:
        """Global ids of the group's senders, int32 [num_rows] or longer, any after the last."""
        edges = self.edges
        if edges.sender_ptr is None:
            return edges.sender_ids
        rows = entry_at(edges.sender_ptr, self.group) + jnp.arange(num_rows, dtype=jnp.int32)
        return edges.sender_ids.at[rows].get(mode="clip")


@pytree
class AllEdges:
    """The data of a block: all edges between one table of senders and one of receivers."""

    edges: EdgeGroups
    node_ids: jax.Array
    missing_self_loop: jax.Array | None

    @property
    def sender_rows(self) -> int:
        """Rows of the table of senders, padding included."""
        return self.edges.by_sender.position.shape[0]

    @property
    def receiver_rows(self) -> int:
        """Rows of the table of receivers, padding included."""
        return self.node_ids.shape[0]

    @property
    def edge_slots(self) -> int:
        """Slots of an array with one row per edge, padding included."""
        return self.edges.by_receiver.neighbors.shape[0]

    @property
    def implementation(self) -> str:
        """The implementation that reduces over the edges: "xla", "cpu" or "mosaic_gpu"."""
        return self.edges.implementation

    @property
    def as_group(self) -> EdgeGroup:
        """The same edges, as one group."""
        return EdgeGroup(self.edges, 0, self.missing_self_loop)
