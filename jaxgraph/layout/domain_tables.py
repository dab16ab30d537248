"""The arrays of a part for mode "domain": all its edges as one group.

Its senders are the own rows followed by all halos, one block of equal size per part.
"""

from __future__ import annotations

import numpy as np

from jaxgraph.layout.edge_tables import Side, edge_tables, halo_arrays, positions
from jaxgraph.layout.manifest import Manifest
from jaxgraph.layout.node_tables import edge_arrays
from jaxgraph.layout.part_edges import outgoing_rows
from jaxgraph.layout.row_counts import RowCounts
from jaxgraph.layout.row_order import renumbered
from jaxgraph.layout.survey import Survey

__all__ = ["domain_arrays"]

Arrays = dict[str, np.ndarray]


def domain_arrays(
    survey: Survey, part: int, manifest: Manifest, row_counts: tuple[RowCounts, RowCounts]
) -> Arrays:
    """The edges that end in a part, and the rows that it sends.

    Args:
      survey: the graph, ordered.
      part: the part.
      manifest: the sizes that all parts agree on.
      row_counts: of edges by receiver, and by sender.

    Returns:
      The arrays by name, without room behind the end.
    """
    order, edges = survey.order, survey.incoming[part]
    halo, receivers = edges.by_sender, edges.by_receiver
    owner = (part - halo.groups().astype(np.int64)) % survey.num_parts
    place = np.where(
        owner == part, halo.rows, manifest.node_rows + owner * manifest.halo_rows + halo.numbers()
    ).astype(np.int32)
    senders = renumbered(halo, place)
    cut_receivers, cut_senders = (counts.cut(part) for counts in row_counts)
    first = range(1)
    arrays = edge_tables(
        "incoming",
        Side(
            receivers,
            *cut_receivers,
            receivers.rows,
            senders.rows[senders.compact_of_edge()],
            positions(receivers, first, manifest.node_rows)[0],
        ),
        Side(
            senders,
            *cut_senders,
            senders.rows,
            edges.receiver_rows,
            positions(senders, first, manifest.sender_rows)[0],
        ),
        edges.repetition,
    )
    arrays |= edge_arrays(survey.graph, receivers.in_row_order(edges.edges))
    arrays["incoming/receivers"] = receivers.in_row_order(edges.receiver_rows)
    own = order.nodes_of(part)
    ids = np.zeros(manifest.sender_rows, order.nodes.dtype)
    ids[: len(own)] = own
    ids[place] = order.nodes[order.part_ptr[owner] + halo.rows]
    arrays["incoming/sender_ids"] = ids
    arrays["incoming/sender_ptr"] = np.zeros(1, np.int64)
    if survey.num_parts > 1:
        sent = outgoing_rows([edges.by_sender for edges in survey.incoming], part)
        arrays |= halo_arrays("send", sent, range(survey.num_parts - 1), manifest)
    return arrays
