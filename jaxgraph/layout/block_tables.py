"""The edges between two tables of rows, as one edge group in both orientations."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxgraph.layout.compressed_rows import compress
from jaxgraph.layout.derived.chunks import PIECE, choose_chunk, choose_longest
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


def block_tables(
    senders: np.ndarray, receivers: np.ndarray, num_senders: int, num_receivers: int
) -> BlockTables:
    """Orders edges by receiver and by sender."""
    by_key = counting_argsort(senders, num_senders)
    senders, receivers = (rows[by_key].astype(np.int32) for rows in (senders, receivers))
    by_row, ends = counting_argsort(receivers, num_receivers), np.asarray([0, len(senders)])
    by_sender = compress(senders, None, ends)
    by_receiver = compress(receivers[by_row], by_row, ends)
    lengths = [count_lengths([order]) for order in (by_receiver, by_sender)]
    chunk = choose_chunk(join_lengths(lengths), num_receivers, 1)
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
        tables |= visited_rows(tables, choose_longest(counts, chunk)[0], num_rows)
        capacities.append(int(tables["run_ptr"][-1]) + chunk // PIECE)
        found[end] = {name: _with_room(name, x, chunk) for name, x in tables.items()}
    slots = by_receiver.in_row_order(by_key)
    slot_of_edge = np.empty(len(slots), np.int32)
    slot_of_edge[slots] = np.arange(len(slots), dtype=np.int32)
    return BlockTables(
        found["receiver"],
        found["sender"],
        _padded(by_receiver.in_row_order(receivers), chunk),
        listed.get("block/repetition"),
        _padded(slots, chunk),
        slot_of_edge,
        chunk,
        *capacities,
    )


def _with_room(name: str, values: np.ndarray, chunk: int) -> np.ndarray:
    """Adds padding: a chunk may extend past the last slot and past the last visited row."""
    has_room = name in ("neighbors", "edge_ids", "rows", "starts", "degrees")
    return _padded(values, chunk if has_room else 0)


def _padded(values: np.ndarray, room: int) -> np.ndarray:
    return np.append(values, np.zeros(room, values.dtype)).astype(np.int32)
