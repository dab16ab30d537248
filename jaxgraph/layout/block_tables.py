"""The edges between two tables of rows, as one edge group in both orientations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from jaxgraph.layout.compressed_rows import compress
from jaxgraph.layout.derived.chunks import (
    CHUNKS_ALONE,
    LARGEST_CHUNK,
    PIECE,
    SMALLEST_CHUNK,
    choose_chunk,
    choose_longest,
)
from jaxgraph.layout.derived.rows import visited_rows
from jaxgraph.layout.edge_tables import Side, edge_tables
from jaxgraph.layout.manifest import Arrays
from jaxgraph.layout.part_edges import repetitions
from jaxgraph.layout.row_lengths import count_lengths, join_lengths
from jaxgraph.partition.sorting import counting_argsort


@dataclasses.dataclass(frozen=True, eq=False)
class BlockTables:
    """Edges between a table of senders and one of receivers.

    Attributes:
      by_receiver, by_sender: arrays of `jaxgraph.ops.core.edges.Orientation` by name.
      receiver_of_slot: int32 [slots], the row of the receiver of each slot.
      repetition: int32 [slots], the number of each edge among its equals; None: all edges differ.
      edge_of_slot: int32 [slots], the edge in each slot by receiver; 0 after the last edge.
      slot_of_edge: int32 [edges], its inverse.
      chunk: edges handled at a time.
      receiver_capacity, sender_capacity: as in `jaxgraph.ops.core.edges.EdgeGroups`.
    """

    by_receiver: Arrays
    by_sender: Arrays
    receiver_of_slot: np.ndarray
    repetition: np.ndarray | None
    edge_of_slot: np.ndarray
    slot_of_edge: np.ndarray
    chunk: int
    receiver_capacity: int
    sender_capacity: int


@dataclasses.dataclass(frozen=True)
class BlockSizes:
    """The sizes of a block, from which all its shapes follow, whatever its edges.

    A function that was compiled for one block then runs on all blocks of these sizes. Rows past the
    nodes and slots past the edges are padding.

    Args:
      num_senders, num_receivers: rows of the tables.
      num_edges: edges that there is room for.

    Raises:
      ValueError: a size is no positive integer.
    """

    num_senders: int
    num_receivers: int
    num_edges: int

    def __post_init__(self) -> None:
        for name, size in dataclasses.asdict(self).items():
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"{name} is {size!r}; expected a positive integer")

    @property
    def chunk(self) -> int:
        """Edges handled at a time, a power of two."""
        limit = max(SMALLEST_CHUNK, min(LARGEST_CHUNK, self.num_receivers // CHUNKS_ALONE))
        return 1 << (limit.bit_length() - 1)

    @property
    def longest(self) -> int:
        """Edges of the longest run, so that a chunk has room for the runs of all heavy rows."""
        room = self.chunk - self.chunk // PIECE
        return max(PIECE, -(-2 * self.num_edges // room))

    def entries(self, rows: int) -> int:
        """The most rows and runs that are visited at an end with so many rows."""
        return min(rows, self.num_edges) + 2 * self.num_edges // self.longest


def block_tables(
    senders: np.ndarray,
    receivers: np.ndarray,
    num_senders: int,
    num_receivers: int,
    sizes: BlockSizes | None = None,
) -> BlockTables:
    """Orders edges by receiver and by sender; with sizes, all shapes follow from these."""
    by_key = counting_argsort(senders, num_senders)
    senders, receivers = (rows[by_key].astype(np.int32) for rows in (senders, receivers))
    by_row, ends = counting_argsort(receivers, num_receivers), np.asarray([0, len(senders)])
    by_sender = compress(senders, None, ends)
    by_receiver = compress(receivers[by_row], by_row, ends)
    lengths = [count_lengths([order]) for order in (by_receiver, by_sender)]
    chunk = choose_chunk(join_lengths(lengths), num_receivers, 1) if sizes is None else sizes.chunk
    listed = edge_tables(
        "block",
        Side(by_receiver, by_receiver.rows, senders),
        Side(by_sender, by_sender.rows, receivers),
        repetitions(receivers, senders, by_row, ends),
    )
    found, capacities = {}, []
    sides = zip(("receiver", "sender"), lengths, (num_receivers, num_senders), strict=True)
    for end, counts, num_rows in sides:
        prefix = f"block/by_{end}/"
        tables = {
            name.removeprefix(prefix): x for name, x in listed.items() if name.startswith(prefix)
        }
        longest = choose_longest(counts, chunk)[0] if sizes is None else sizes.longest
        tables |= visited_rows(tables, longest, num_rows)
        entries = int(tables["run_ptr"][-1]) if sizes is None else sizes.entries(num_rows)
        capacities.append(entries + chunk // PIECE)
        lengths_of = {} if sizes is None else _lengths(sizes, entries, num_rows)
        found[end] = {n: _with_room(n, x, chunk, lengths_of) for n, x in tables.items()}
    slots = by_receiver.in_row_order(by_key)
    count = len(slots) if sizes is None else sizes.num_edges
    slot_of_edge = np.zeros(count, np.int32)
    slot_of_edge[slots] = np.arange(len(slots), dtype=np.int32)
    repetition = listed.get("block/repetition")
    if sizes is not None:
        repetition = _padded(np.zeros(0, np.int32) if repetition is None else repetition, 0, count)
    return BlockTables(
        found["receiver"],
        found["sender"],
        _padded(by_receiver.in_row_order(receivers), chunk, count),
        repetition,
        _padded(slots, chunk, count),
        slot_of_edge,
        chunk,
        *capacities,
    )


def _lengths(sizes: BlockSizes, entries: int, num_rows: int) -> dict[str, int]:
    """The lengths of the arrays of an orientation whose shapes follow from sizes."""
    rows = min(num_rows, sizes.num_edges)
    return {
        **dict.fromkeys(("neighbors", "edge_ids"), sizes.num_edges),
        **dict.fromkeys(("rows", "starts", "degrees"), entries),
        "compressed_rows": rows,
        "compressed_starts": rows + 1,
    }


def _with_room(name: str, values: np.ndarray, chunk: int, lengths: Mapping[str, int]) -> np.ndarray:
    """Adds padding: a chunk may extend past the last slot and past the last visited row."""
    has_room = name in ("neighbors", "edge_ids", "rows", "starts", "degrees")
    return _padded(values, chunk if has_room else 0, lengths.get(name, 0))


def _padded(values: np.ndarray, room: int, least: int = 0) -> np.ndarray:
    """int32 [entries], at least so many, and room for more."""
    room += max(least - len(values), 0)
    return np.append(values, np.zeros(room, values.dtype)).astype(np.int32)
