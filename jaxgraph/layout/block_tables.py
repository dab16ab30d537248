"""The edges between two tables of rows, as one edge group in both orientations."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxgraph.layout.derived import rows
from jaxgraph.layout.derived.orientations import fill
from jaxgraph.layout.edge_tables import group_tables
from jaxgraph.layout.manifest import Arrays
from jaxgraph.layout.part_edges import edge_lengths, edges_between, repetitions
from jaxgraph.layout.schema import EdgeSet


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
    edges = edges_between(senders, receivers, num_senders, num_receivers)
    by_receiver = edges.by_receiver
    lengths = (edge_lengths([edges]),)
    block = EdgeSet("block", 1, num_receivers, num_senders, lengths, data="")
    integer, listed = np.dtype(np.int32), group_tables("block", edges)
    shapes = {name: (values.shape, integer) for name, values in listed.items()}
    shapes |= rows.shapes(shapes, [block])
    made = listed | rows.arrays(listed, shapes, [block])
    made = {name: fill(name, values, *shapes[name]) for name, values in made.items()}
    sizes, slots = rows.sizes_of(block), by_receiver.in_row_order(edges.edges)
    slot_of_edge = np.empty(len(slots), np.int32)
    slot_of_edge[slots] = np.arange(len(slots), dtype=np.int32)
    edge_of_slot = fill("edges", slots, (len(slots) + sizes.chunk,), integer)
    assert by_receiver.edges is not None
    repetition = repetitions(
        edges.receiver_rows, edges.sender_rows, by_receiver.edges, by_receiver.edge_ptr
    )
    by_side = {
        prefix: {
            name.removeprefix(f"{prefix}/"): values
            for name, values in made.items()
            if name.startswith(f"{prefix}/")
        }
        for prefix in block.prefixes.values()
    }
    return BlockTables(
        *by_side.values(),
        receiver_of_slot=made["block/receivers"],
        repetition=None if repetition is None else by_receiver.in_row_order(repetition),
        edge_of_slot=edge_of_slot,
        slot_of_edge=slot_of_edge,
        chunk=sizes.chunk,
        receiver_capacity=sizes.by_receiver.capacity,
        sender_capacity=sizes.by_sender.capacity,
    )
