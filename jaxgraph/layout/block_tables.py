"""The edges between two tables of rows, as one group in both orientations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from jaxgraph.layout.degrees import choose_chunk, count_degrees, join_counts
from jaxgraph.layout.edge_tables import Side, edge_tables, positions
from jaxgraph.layout.manifest import room_behind
from jaxgraph.layout.part_edges import repetitions
from jaxgraph.layout.row_counts import RowCounts, choose_runs
from jaxgraph.layout.row_order import RowOrder, order_rows
from jaxgraph.partition.sorting import counting_argsort

__all__ = ["PREFIX", "BlockTables", "block_tables"]

PREFIX = "block"
"""What the names of the arrays start with."""


@dataclasses.dataclass(frozen=True, eq=False)
class BlockTables:
    """Edges between a table of senders and one of receivers.

    Attributes:
      arrays: those of `jaxgraph.ops.core.edges.EdgeGroups` by name.
      edge_of_slot: int32 [slots], which edge each slot by receiver holds; 0 behind the last edge.
      slot_of_edge: int32 [edges], its inverse.
      chunk: edges handled at a time.
      receiver_capacity, sender_capacity: as of `EdgeGroups`.
      receiver_longest, sender_longest: edges of a row, at most.
    """

    arrays: Mapping[str, np.ndarray]
    edge_of_slot: np.ndarray
    slot_of_edge: np.ndarray
    chunk: int
    receiver_capacity: int
    sender_capacity: int
    receiver_longest: int
    sender_longest: int


def block_tables(
    senders: np.ndarray, receivers: np.ndarray, num_senders: int, num_receivers: int
) -> BlockTables:
    """Orders edges by receiver and by sender.

    Args:
      senders, receivers: int [edges], rows of the two tables, in range.
      num_senders, num_receivers: rows of the tables.

    Returns:
      The tables.
    """
    by_key = counting_argsort(senders, num_senders)
    senders, receivers = (rows[by_key].astype(np.int32) for rows in (senders, receivers))
    by_row, ends = counting_argsort(receivers, num_receivers), np.asarray([0, len(senders)])
    by_sender = order_rows(senders, None, ends)
    by_receiver = order_rows(receivers[by_row], by_row, ends)
    degrees = [count_degrees([order]) for order in (by_receiver, by_sender)]
    chunk = choose_chunk(join_counts(degrees), num_receivers, 1)
    of_receivers, of_senders = (choose_runs(each, chunk, 1) for each in degrees)
    repeated = repetitions(receivers, senders, by_row, ends)
    arrays = edge_tables(
        PREFIX,
        _side(by_receiver, of_receivers, senders, num_receivers),
        _side(by_sender, of_senders, receivers, num_senders),
        repeated,
    )
    arrays[f"{PREFIX}/receivers"] = by_receiver.in_row_order(receivers)
    slots = by_receiver.in_row_order(by_key)
    slot_of_edge = np.empty(len(slots), np.int32)
    slot_of_edge[slots] = np.arange(len(slots), dtype=np.int32)
    return BlockTables(
        {name: _with_room(name, values, chunk) for name, values in arrays.items()},
        np.append(slots, np.zeros(chunk, slots.dtype)).astype(np.int32),
        slot_of_edge,
        chunk,
        of_receivers.capacity(chunk),
        of_senders.capacity(chunk),
        of_receivers.longest_row,
        of_senders.longest_row,
    )


def _side(order: RowOrder, counts: RowCounts, neighbors: np.ndarray, num_rows: int) -> Side:
    place = positions(order, range(1), num_rows)[0]
    return Side(order, *counts.cut(0), order.rows, neighbors, place)


def _with_room(name: str, values: np.ndarray, chunk: int) -> np.ndarray:
    return np.append(values, np.zeros(room_behind(name, chunk), values.dtype)).astype(np.int32)
