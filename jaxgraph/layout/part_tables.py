"""The arrays of a part, not padded: those of its nodes, edges and halos.

In mode "sar" the edges that end in a part form a group for each ring step of their senders, and
those that leave it are listed, too. In mode "domain" all form one group, whose table of senders
holds the own rows, then the halos, with equally many rows per part.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from jaxgraph.layout.compressed_rows import CompressedRows
from jaxgraph.layout.edge_tables import Side, edge_tables, halo_arrays
from jaxgraph.layout.local_order import LocalOrder, SharedHalos
from jaxgraph.layout.manifest import Arrays, Manifest
from jaxgraph.layout.part_edges import outgoing_edges, outgoing_rows
from jaxgraph.layout.survey import OrderedParts


def part_arrays(
    parts: OrderedParts, index: int, manifest: Manifest, shared: SharedHalos | None = None
) -> Arrays:
    """The arrays of a part by name; an array that its graph lacks is empty."""
    order, edges = parts.order, parts.incoming[index]
    of_senders, halos = order, edges.by_sender
    if shared is not None:
        of_senders, halos = shared.order, shared.of_parts[index]
    numbered = _by_step if manifest.mode == "sar" else _with_halos
    senders = numbered(edges.by_sender, halos, of_senders, index, manifest)
    receivers = edges.by_receiver
    arrays = parts.node_data(index) | edge_tables(
        "incoming",
        Side(receivers, receivers.rows, senders.rows.by_edge(senders.numbers)),
        Side(senders.rows, senders.numbers, edges.receiver_rows),
        edges.repetition,
    )
    arrays |= parts.edge_data(index, receivers.in_row_order(edges.edges))
    arrays |= {"incoming/sender_ids": senders.ids, "incoming/sender_ptr": senders.pointers}
    if order.num_parts > 1:
        read = [x.by_sender for x in parts.incoming] if shared is None else shared.of_parts
        sent, boundary = outgoing_rows(read, index), manifest.own_senders.boundary_rows
        arrays |= halo_arrays("send", sent, range(order.num_parts - 1), boundary)
    if manifest.has_outgoing:
        arrays |= _outgoing_arrays(parts, index, manifest)
    if manifest.columns is None:
        arrays |= parts.feature_data(index)
    missing = [shape for shape in manifest.shapes if shape[0] not in arrays]
    return arrays | {name: np.zeros((0,) * len(shape), dtype) for name, shape, dtype in missing}


class _Senders(NamedTuple):
    """The senders of the edges that end in a part.

    Attributes:
      rows: in the groups that edges are visited in.
      numbers: the number of each row in its group's table.
      ids: global ids of the rows of all tables.
      pointers: where those of each group start.
    """

    rows: CompressedRows
    numbers: np.ndarray
    ids: np.ndarray
    pointers: np.ndarray


def _by_step(
    senders: CompressedRows,
    halos: CompressedRows,
    order: LocalOrder,
    index: int,
    manifest: Manifest,
) -> _Senders:
    # Senders of the first group are own rows; those of others are numbered within their halo.
    own_senders, numbers = senders.pointers[1], senders.numbers_in(halos)
    numbers[:own_senders] = senders.rows[:own_senders]
    own, first = order.nodes_of(index), halos.pointers[1]
    owner = (index - halos.groups()[first:].astype(np.int64)) % order.num_parts
    arrived = halos.rows[halos.halo_order()[first:]]
    ids = np.concatenate([own, order.nodes[order.part_ptr[owner] + arrived]])
    pointers = np.concatenate([[0], halos.pointers[1:-1] - first + len(own)])
    return _Senders(senders, numbers, ids, pointers)


def _with_halos(
    halo: CompressedRows, halos: CompressedRows, order: LocalOrder, index: int, manifest: Manifest
) -> _Senders:
    owner = (index - halo.groups().astype(np.int64)) % order.num_parts
    first = manifest.own_senders.node_rows + owner * manifest.halo_rows
    numbers = first + halo.numbers_in(halos)
    place = np.where(owner == index, halo.rows, numbers).astype(np.int32)
    ends = np.asarray([0, len(place)])
    senders = dataclasses.replace(halo, pointers=ends, edge_ptr=halo.edge_ptr[[0, -1]])
    own = order.nodes_of(index)
    ids = np.zeros(manifest.sender_rows, order.nodes.dtype)
    ids[: len(own)] = own
    ids[place] = order.nodes[order.part_ptr[owner] + halo.rows]
    return _Senders(senders, place, ids, np.zeros(1, np.int64))


def _outgoing_arrays(parts: OrderedParts, index: int, manifest: Manifest) -> Arrays:
    """The edges that leave a part, the rows that it sends along them, and their receivers."""
    order, steps = parts.order, manifest.num_parts - 1
    edges = outgoing_edges(parts.incoming, index)
    senders, receivers = edges.by_sender, edges.by_receiver
    numbers, answered = receivers.halo_numbers(), receivers.rows[receivers.halo_order()]
    arrays = edge_tables(
        "outgoing",
        Side(receivers, numbers, edges.sender_rows),
        Side(senders, senders.rows, receivers.by_edge(numbers)),
        edges.repetition,
    )
    owner = (index + 1 + receivers.groups().astype(np.int64)) % manifest.num_parts
    arrays["outgoing/receiver_ids"] = order.nodes[order.part_ptr[owner] + answered]
    arrays["outgoing/receiver_ptr"] = receivers.pointers[:-1]
    reached = parts.incoming[index].by_receiver
    return arrays | halo_arrays("reach", reached, range(1, steps + 1), manifest.boundary_rows)
