"""The arrays of a part for mode "domain": all its edges as one group.

Its table of senders holds the own rows, then the halos, with equally many rows per part.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxgraph.layout.edge_tables import Side, edge_tables, halo_arrays
from jaxgraph.layout.local_order import SharedHalos
from jaxgraph.layout.manifest import Arrays, Manifest
from jaxgraph.layout.part_edges import outgoing_rows
from jaxgraph.layout.survey import OrderedParts


def domain_arrays(
    survey: OrderedParts, part: int, manifest: Manifest, shared: SharedHalos | None = None
) -> Arrays:
    """The edges that end in a part, and the rows that it sends."""
    edges = survey.incoming[part]
    halo, receivers = edges.by_sender, edges.by_receiver
    order = survey.order if shared is None else shared.order
    halos = halo if shared is None else shared.of_parts[part]
    owner = (part - halo.groups().astype(np.int64)) % survey.num_parts
    numbers = manifest.own_sender_rows + owner * manifest.halo_rows + halo.numbers_in(halos)
    place = np.where(owner == part, halo.rows, numbers).astype(np.int32)
    ends = np.asarray([0, len(place)])
    senders = dataclasses.replace(halo, pointers=ends, edge_ptr=halo.edge_ptr[[0, -1]])
    arrays = edge_tables(
        "incoming",
        Side(receivers, receivers.rows, senders.by_edge(place)),
        Side(senders, place, edges.receiver_rows),
        edges.repetition,
    )
    arrays |= survey.edge_data(part, receivers.in_row_order(edges.edges))
    own = order.nodes_of(part)
    ids = np.zeros(manifest.sender_rows, order.nodes.dtype)
    ids[: len(own)] = own
    ids[place] = order.nodes[order.part_ptr[owner] + halo.rows]
    arrays["incoming/sender_ids"] = ids
    arrays["incoming/sender_ptr"] = np.zeros(1, np.int64)
    if survey.num_parts > 1:
        of_parts = (
            [edges.by_sender for edges in survey.incoming] if shared is None else shared.of_parts
        )
        sent = outgoing_rows(of_parts, part)
        arrays |= halo_arrays(
            "send", sent, range(survey.num_parts - 1), manifest.boundary_of_senders
        )
    return arrays
