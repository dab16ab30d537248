"""The arrays of a part for mode "sar": edges by the part of their sender, and those that leave."""

from __future__ import annotations

import numpy as np

from jaxgraph.layout.edge_tables import Side, edge_tables, halo_arrays, positions
from jaxgraph.layout.manifest import Manifest
from jaxgraph.layout.node_tables import edge_arrays
from jaxgraph.layout.part_edges import outgoing_edges
from jaxgraph.layout.row_counts import RowCounts
from jaxgraph.layout.survey import Survey

__all__ = ["sar_arrays"]

Arrays = dict[str, np.ndarray]
BothCounts = tuple[RowCounts, RowCounts]
"""By receiver, and by sender."""


def sar_arrays(survey: Survey, part: int, manifest: Manifest, row_counts: BothCounts) -> Arrays:
    """The edges that end in a part, by step on the ring of their senders, and those that leave it.

    Args:
      survey: the graph, ordered.
      part: the part.
      manifest: the sizes that all parts agree on.
      row_counts: of edges by receiver, and by sender.

    Returns:
      The arrays by name, without room behind the end.
    """
    arrays = _incoming_arrays(survey, part, manifest, row_counts)
    if survey.num_parts > 1:
        arrays |= _outgoing_arrays(survey, part, manifest, row_counts)
    return arrays


def _incoming_arrays(
    survey: Survey, part: int, manifest: Manifest, row_counts: BothCounts
) -> Arrays:
    order, edges = survey.order, survey.incoming[part]
    senders, receivers = edges.by_sender, edges.by_receiver
    cut_receivers, cut_senders = (counts.cut(part) for counts in row_counts)
    # Own rows for the first group, compact rows of what arrived for the others.
    own_edges, own_senders = senders.edge_ptr[1], senders.pointers[1]
    sender = senders.compact_of_edge()
    sender[:own_edges] = edges.sender_rows[:own_edges]
    sender_rows = senders.numbers()
    sender_rows[:own_senders] = senders.rows[:own_senders]
    first = range(1)
    arrays = edge_tables(
        "incoming",
        Side(
            receivers,
            *cut_receivers,
            receivers.rows,
            sender,
            positions(receivers, first, manifest.node_rows)[0],
        ),
        Side(
            senders,
            *cut_senders,
            sender_rows,
            edges.receiver_rows,
            positions(senders, first, manifest.node_rows)[0],
        ),
        edges.repetition,
    )
    arrays |= edge_arrays(survey.graph, receivers.in_row_order(edges.edges))
    arrays["incoming/receivers"] = receivers.in_row_order(edges.receiver_rows)
    own = order.nodes_of(part)
    owner = (part - senders.groups()[own_senders:].astype(np.int64)) % survey.num_parts
    halo = order.nodes[order.part_ptr[owner] + senders.rows[own_senders:]]
    arrays["incoming/sender_ids"] = np.concatenate([own, halo])
    arrays["incoming/sender_ptr"] = np.concatenate(
        [[0], senders.pointers[1:-1] - own_senders + len(own)]
    )
    return arrays


def _outgoing_arrays(
    survey: Survey, part: int, manifest: Manifest, row_counts: BothCounts
) -> Arrays:
    """The edges that leave a part, the rows that it sends along them, and those that it answers."""
    order, parts = survey.order, survey.num_parts
    edges = outgoing_edges(survey.incoming, part)
    senders, receivers = edges.by_sender, edges.by_receiver
    cut_receivers, cut_senders = (counts.leaving().cut(part) for counts in row_counts)
    none = np.zeros(0, np.int32)
    arrays = edge_tables(
        "outgoing",
        Side(receivers, *cut_receivers, receivers.numbers(), edges.sender_rows, none),
        Side(senders, *cut_senders, senders.rows, receivers.compact_of_edge(), none),
        edges.repetition,
    )
    owner = (part + 1 + receivers.groups().astype(np.int64)) % parts
    arrays["outgoing/receiver_ids"] = order.nodes[order.part_ptr[owner] + receivers.rows]
    arrays["outgoing/receiver_ptr"] = receivers.pointers[:-1]
    arrays |= halo_arrays("send", senders, range(parts - 1), manifest)
    return arrays | halo_arrays(
        "reach", survey.incoming[part].by_receiver, range(1, parts), manifest
    )
