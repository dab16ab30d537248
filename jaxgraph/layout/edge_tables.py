"""The arrays that describe the edges of one part, and the rows that travel along them."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxgraph.layout.manifest import Arrays, Manifest
from jaxgraph.layout.row_order import RowOrder

__all__ = ["Side", "edge_tables", "halo_arrays"]


@dataclasses.dataclass(frozen=True)
class Side:
    """One orientation of some edges.

    Attributes:
      order: the rows at this end.
      rows: int [rows of all groups], the number of each row in the table it is taken from.
      neighbors: int [edges], the number there of the row at the other end.
    """

    order: RowOrder
    rows: np.ndarray
    neighbors: np.ndarray


def edge_tables(
    name: str, by_receiver: Side, by_sender: Side, repetition: np.ndarray | None
) -> Arrays:
    """The compressed rows of some edges in both orientations.

    Args:
      name: what their names start with.
      by_receiver, by_sender: the same edges from both ends.
      repetition: int32 [edges], or None.

    Returns:
      The arrays by name, not padded.
    """
    arrays: Arrays = {}
    for side, name_of_side in ((by_receiver, "by_receiver"), (by_sender, "by_sender")):
        prefix = f"{name}/{name_of_side}"
        order, by_start = side.order, side.order.by_start()
        ends = np.append(order.starts[by_start], order.edge_ptr[-1])
        arrays[f"{prefix}/neighbors"] = order.in_row_order(side.neighbors)
        arrays[f"{prefix}/compressed_ptr"] = order.pointers
        arrays[f"{prefix}/compressed_rows"] = side.rows[by_start]
        arrays[f"{prefix}/compressed_starts"] = ends
    slots = by_receiver.order.slot_of_edge()
    arrays[f"{name}/by_sender/edge_ids"] = by_sender.order.in_row_order(slots)
    if repetition is not None:
        arrays[f"{name}/repetition"] = by_receiver.order.in_row_order(repetition)
    return arrays


def halo_arrays(name: str, order: RowOrder, groups: range, manifest: Manifest) -> Arrays:
    """The arrays of `jaxgraph.parallel.shard.HaloTable`.

    Args:
      name: what their names start with.
      order: the rows that other parts deal with.
      groups: the groups of other parts, one per step of the ring.
      manifest: the sizes that all parts agree on.

    Returns:
      The arrays by name, not padded.
    """
    pointers = order.pointers[groups.start : groups.stop + 1]
    position = np.full((len(groups), manifest.boundary_rows), -1, np.int32)
    for step, group in enumerate(groups):
        rows = order.rows[order.pointers[group] : order.pointers[group + 1]]
        position[step, rows] = np.arange(len(rows), dtype=np.int32)
    return {
        f"{name}/rows": order.rows[pointers[0] : pointers[-1]],
        f"{name}/ptr": pointers - pointers[0],
        f"{name}/position": position,
    }
