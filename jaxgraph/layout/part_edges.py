"""The edges of one part, grouped by the part at their other end and ordered by row.

Parts form a ring. Edges from part p - s to part p are in incoming group s of part p. Edges from
part p to part p + s are in outgoing group s - 1 of part p. A group's edges are ordered by (sender's
row, edge), so that both parts store the edges between them in the same order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.layout.compressed_rows import CompressedRows, compress
from jaxgraph.layout.local_order import LocalOrder
from jaxgraph.layout.row_lengths import EdgeLengths, count_lengths
from jaxgraph.partition.sorting import counting_argsort, index_dtype


@dataclasses.dataclass(frozen=True)
class PartEdges:
    """Edges seen from one part; rows are those of the parts that own the nodes.

    Attributes:
      edges: int [edges of the part], their numbers in the graph.
      repetition: int32 [edges of the part], the number of each edge among its equals, in the
        graph's order; None: all edges differ.
      by_sender, by_receiver: the rows of each group.
    """

    edges: np.ndarray
    repetition: np.ndarray | None
    by_sender: CompressedRows
    by_receiver: CompressedRows

    @property
    def sender_rows(self) -> np.ndarray:
        """int32 [edges of the part], the row of each edge's sender."""
        return self.by_sender.by_edge(self.by_sender.rows)

    @property
    def receiver_rows(self) -> np.ndarray:
        """int32 [edges of the part], the row of each edge's receiver."""
        return self.by_receiver.by_edge(self.by_receiver.rows)


def incoming_edges(
    graph: Graph, order: LocalOrder, part: int, *, one_group_of_receivers: bool = False
) -> PartEdges:
    """The edges that end in a part."""
    edges = order.edges[order.edge_ptr[part] : order.edge_ptr[part + 1]]
    return ordered_edges(
        order,
        part,
        edges,
        graph.senders[edges],
        graph.receivers[edges],
        one_group_of_receivers=one_group_of_receivers,
    )


def ordered_edges(
    order: LocalOrder,
    part: int,
    edges: np.ndarray,
    senders: np.ndarray,
    receivers: np.ndarray,
    *,
    one_group_of_receivers: bool = False,
    of_senders: LocalOrder | None = None,
) -> PartEdges:
    """Orders the edges that end in a part; the senders may be nodes of another table."""
    of_senders = order if of_senders is None else of_senders
    key, key_ptr = _sender_keys(of_senders, part, senders)
    del senders
    by_key = counting_argsort(key, len(of_senders.part))
    receiver_rows = order.row[receivers][by_key]
    del receivers
    edges, key = edges[by_key], key[by_key]
    # The dtypes must agree: NumPy would otherwise convert all keys.
    edge_ptr = np.searchsorted(key, key_ptr.astype(key.dtype))
    counts = np.diff(edge_ptr)
    sender_rows = (key - np.repeat(key_ptr[:-1], counts)).astype(np.int32)

    by_row = counting_argsort(receiver_rows, len(order.nodes_of(part)))
    if one_group_of_receivers:
        receiver_ptr = edge_ptr[[0, -1]]
    else:
        receiver_ptr = edge_ptr
        groups = np.repeat(np.arange(order.num_parts, dtype=order.part.dtype), counts)
        by_row = by_row[np.argsort(groups[by_row], kind="stable")]
    return PartEdges(
        edges,
        _repetitions(receiver_rows, key, by_row),
        compress(sender_rows, None, edge_ptr),
        compress(receiver_rows[by_row], by_row, receiver_ptr),
    )


def edge_lengths(tables: Sequence[PartEdges], *, whole: bool = False) -> EdgeLengths:
    """The lengths of the rows of some tables; `whole` joins the groups of senders."""
    by_receiver = count_lengths([edges.by_receiver for edges in tables])
    by_sender = count_lengths([edges.by_sender for edges in tables], whole=whole)
    return EdgeLengths(by_receiver, by_sender)


def edges_between(
    senders: np.ndarray,
    receivers: np.ndarray,
    num_senders: int,
    num_receivers: int,
    *,
    numbered: bool = False,
) -> PartEdges:
    """Orders edges between two tables of rows as one group; equal ones are `numbered`, or not."""
    by_key, ends = counting_argsort(senders, num_senders), np.asarray([0, len(senders)])
    senders, receivers = (rows[by_key].astype(np.int32) for rows in (senders, receivers))
    by_row = counting_argsort(receivers, num_receivers)
    return PartEdges(
        by_key,
        _repetitions(receivers, senders, by_row) if numbered else None,
        compress(senders, None, ends),
        compress(receivers[by_row], by_row, ends),
    )


def _sender_keys(
    order: LocalOrder, part: int, senders: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the senders by (group, row), and where the numbers of each group start."""
    ring = (part - np.arange(order.num_parts)) % order.num_parts
    sizes = np.diff(order.part_ptr)
    key_ptr = np.concatenate([[0], np.cumsum(sizes[ring])])
    first_key = np.empty(order.num_parts, index_dtype(len(order.part)))
    first_key[ring] = key_ptr[:-1]
    return order.row[senders] + first_key[order.part[senders]], key_ptr


def _repetitions(
    receiver_rows: np.ndarray, sender_keys: np.ndarray, by_row: np.ndarray
) -> np.ndarray | None:
    """Numbers each edge among the edges that are equal to it, from 0."""
    # Sorted by both ends, equal edges are consecutive and in the graph's order.
    receivers, senders = receiver_rows[by_row], sender_keys[by_row]
    again = (receivers[1:] == receivers[:-1]) & (senders[1:] == senders[:-1])
    if not again.any():
        return None
    places = np.flatnonzero(again) + 1
    second = np.maximum.accumulate(np.where(np.diff(places, prepend=-1) > 1, places, 0))
    repetition = np.zeros(len(by_row), np.int32)
    repetition[by_row[places]] = places - second + 1
    return repetition


def outgoing_edges(incoming: Sequence[PartEdges], part: int) -> PartEdges:
    """The edges that leave a part for others."""
    numbers, repetition = [], []
    for step in range(1, len(incoming)):
        edges = incoming[(part + step) % len(incoming)]
        own = slice(*edges.by_sender.edge_ptr[step : step + 2])
        numbers.append(edges.edges[own])
        known = np.zeros_like(numbers[-1]) if edges.repetition is None else edges.repetition[own]
        repetition.append(known.astype(np.int32))
    repeated = np.concatenate(repetition)
    return PartEdges(
        np.concatenate(numbers),
        repeated if repeated.any() else None,
        outgoing_rows([edges.by_sender for edges in incoming], part),
        outgoing_rows([edges.by_receiver for edges in incoming], part),
    )


def outgoing_rows(incoming: Sequence[CompressedRows], part: int) -> CompressedRows:
    """The rows at one end of the edges that leave a part for others."""
    rows, starts, edges, pointers, edge_ptr = [], [], [], [0], [0]
    for step in range(1, len(incoming)):
        some = incoming[(part + step) % len(incoming)]
        own = slice(*some.pointers[step : step + 2].tolist())
        first, stop = some.edge_ptr[step : step + 2].tolist()
        shift = edge_ptr[-1] - first
        rows.append(some.rows[own])
        starts.append(some.starts[own] + shift)
        if some.edges is not None:
            edges.append(some.edges[first:stop] + shift)
        pointers.append(pointers[-1] + own.stop - own.start)
        edge_ptr.append(stop + shift)
    return CompressedRows(
        np.concatenate(rows),
        np.concatenate(starts),
        np.asarray(pointers),
        np.concatenate(edges) if edges else None,
        np.asarray(edge_ptr),
    )
