"""The arrays of a part for mode "sar": incoming edges by their sender's part, outgoing edges."""

from __future__ import annotations

import numpy as np

from jaxgraph.layout.edge_tables import Side, edge_tables, halo_arrays
from jaxgraph.layout.local_order import SharedHalos
from jaxgraph.layout.manifest import Arrays, Manifest
from jaxgraph.layout.part_edges import outgoing_edges, outgoing_rows
from jaxgraph.layout.survey import OrderedParts


def sar_arrays(
    survey: OrderedParts, part: int, manifest: Manifest, shared: SharedHalos | None = None
) -> Arrays:
    """The edges that end in a part, by the ring step of their senders, and those that leave it."""
    arrays = _incoming_arrays(survey, part, shared)
    if survey.num_parts > 1:
        arrays |= _outgoing_arrays(survey, part, manifest, shared)
    return arrays


def _incoming_arrays(survey: OrderedParts, part: int, shared: SharedHalos | None) -> Arrays:
    edges = survey.incoming[part]
    senders, receivers = edges.by_sender, edges.by_receiver
    order = survey.order if shared is None else shared.order
    halos = senders if shared is None else shared.of_parts[part]
    # Senders of the first group are own rows; those of others are numbered within their halo.
    own_senders, numbers = senders.pointers[1], senders.numbers_in(halos)
    numbers[:own_senders] = senders.rows[:own_senders]
    arrays = edge_tables(
        "incoming",
        Side(receivers, receivers.rows, senders.by_edge(numbers)),
        Side(senders, numbers, edges.receiver_rows),
        edges.repetition,
    )
    arrays |= survey.edge_data(part, receivers.in_row_order(edges.edges))
    own, first = order.nodes_of(part), halos.pointers[1]
    owner = (part - halos.groups()[first:].astype(np.int64)) % survey.num_parts
    arrived = halos.rows[halos.halo_order()[first:]]
    halo = order.nodes[order.part_ptr[owner] + arrived]
    arrays["incoming/sender_ids"] = np.concatenate([own, halo])
    arrays["incoming/sender_ptr"] = np.concatenate([[0], halos.pointers[1:-1] - first + len(own)])
    return arrays


def _outgoing_arrays(
    survey: OrderedParts, part: int, manifest: Manifest, shared: SharedHalos | None
) -> Arrays:
    """The edges that leave a part, the rows that it sends along them, and their receivers."""
    order, parts = survey.order, survey.num_parts
    edges = outgoing_edges(survey.incoming, part)
    senders, receivers = edges.by_sender, edges.by_receiver
    numbers, answered = receivers.halo_numbers(), receivers.rows[receivers.halo_order()]
    arrays = edge_tables(
        "outgoing",
        Side(receivers, numbers, edges.sender_rows),
        Side(senders, senders.rows, receivers.by_edge(numbers)),
        edges.repetition,
    )
    owner = (part + 1 + receivers.groups().astype(np.int64)) % parts
    arrays["outgoing/receiver_ids"] = order.nodes[order.part_ptr[owner] + answered]
    arrays["outgoing/receiver_ptr"] = receivers.pointers[:-1]
    sent = senders if shared is None else outgoing_rows(shared.of_parts, part)
    arrays |= halo_arrays("send", sent, range(parts - 1), manifest.boundary_of_senders)
    return arrays | halo_arrays(
        "reach", survey.incoming[part].by_receiver, range(1, parts), manifest.boundary_rows
    )
