"""The arrays that describe the edges of one part, and the rows that travel along them."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from jaxgraph.layout.compressed_rows import CompressedRows
from jaxgraph.layout.manifest import Arrays
from jaxgraph.layout.part_edges import PartEdges
from jaxgraph.partition.sorting import inverse_permutation


@dataclasses.dataclass(frozen=True)
class Side:
    """One orientation of some edges.

    Attributes:
      rows: the rows at this end.
      numbers: int [rows of all groups], the number of each in the table that it is read from.
      neighbors: int [edges], the row at the other end, by its number in that end's table.
    """

    rows: CompressedRows
    numbers: np.ndarray
    neighbors: np.ndarray


def edge_tables(
    name: str, by_receiver: Side, by_sender: Side, repetition: np.ndarray | None
) -> Arrays:
    """The compressed rows of some edges in both orientations."""
    arrays: Arrays = {}
    for side, name_of_side in ((by_receiver, "by_receiver"), (by_sender, "by_sender")):
        prefix = f"{name}/{name_of_side}"
        rows = side.rows
        arrays[f"{prefix}/neighbors"] = rows.in_row_order(side.neighbors)
        arrays[f"{prefix}/compressed_ptr"] = rows.pointers
        arrays[f"{prefix}/compressed_rows"] = side.numbers
        arrays[f"{prefix}/compressed_starts"] = np.append(rows.starts, rows.edge_ptr[-1])
    edges = by_receiver.rows.edges
    assert edges is not None
    arrays[f"{name}/by_sender/edge_ids"] = by_sender.rows.in_row_order(inverse_permutation(edges))
    if repetition is not None:
        arrays[f"{name}/repetition"] = by_receiver.rows.in_row_order(repetition)
    return arrays


def group_tables(name: str, edges: PartEdges) -> Arrays:
    """The compressed rows of edges that form one group, in both orientations."""
    by_receiver, by_sender = edges.by_receiver, edges.by_sender
    return edge_tables(
        name,
        Side(by_receiver, by_receiver.rows, edges.sender_rows),
        Side(by_sender, by_sender.rows, edges.receiver_rows),
        edges.repetition,
    )


def halo_arrays(name: str, rows: CompressedRows, groups: range, boundary: int) -> Arrays:
    """The arrays of `jaxgraph.parallel.exchange.HaloTable`."""
    pointers = rows.pointers[groups.start : groups.stop + 1]
    sent = rows.rows[rows.halo_order()[pointers[0] : pointers[-1]]]
    pointers = pointers - pointers[0]
    position = np.full((len(groups), boundary), -1, np.int32)
    for step, (first, stop) in enumerate(itertools.pairwise(pointers)):
        position[step, sent[first:stop]] = np.arange(stop - first, dtype=np.int32)
    return {f"{name}/rows": sent, f"{name}/ptr": pointers, f"{name}/position": position}
