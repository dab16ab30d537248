"""The arrays that describe the edges of one part, and the rows that travel along them."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxgraph.layout.manifest import Manifest
from jaxgraph.layout.row_order import RowOrder

__all__ = ["Side", "edge_tables", "halo_arrays", "positions"]

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Side:
    """One orientation of some edges.

    Attributes:
      order: the rows at this end.
      heavy_rows: int [groups], how many rows are cut into runs.
      longest: edges of a run.
      rows: int [compact rows of all groups], what each row is called in the table it is taken from.
      neighbors: int [edges], what the row at the other end is called there.
      position: int32 [...], the compact row of each row of the first group.
    """

    order: RowOrder
    heavy_rows: np.ndarray
    longest: int
    rows: np.ndarray
    neighbors: np.ndarray
    position: np.ndarray


def edge_tables(
    name: str, by_receiver: Side, by_sender: Side, repetition: np.ndarray | None
) -> Arrays:
    """The arrays of `jaxgraph.ops.core.edges.EdgeGroups` in both orientations.

    Args:
      name: what their names start with.
      by_receiver, by_sender: the same edges from both ends.
      repetition: int32 [edges], or None.

    Returns:
      The arrays, without room behind the end.
    """
    arrays: Arrays = {}
    for side, name_of_side in ((by_receiver, "by_receiver"), (by_sender, "by_sender")):
        prefix = f"{name}/{name_of_side}"
        arrays[f"{prefix}/neighbors"] = side.order.in_row_order(side.neighbors)
        arrays[f"{prefix}/heavy_rows"] = side.heavy_rows
        arrays[f"{prefix}/position"] = side.position
        arrays |= _compressed_rows(prefix, side) | _visited_rows(prefix, side)
    slots = by_receiver.order.slot_of_edge()
    arrays[f"{name}/by_sender/edge_ids"] = by_sender.order.in_row_order(slots)
    if repetition is not None:
        arrays[f"{name}/repetition"] = by_receiver.order.in_row_order(repetition)
    return arrays


def _compressed_rows(prefix: str, side: Side) -> Arrays:
    order, by_start = side.order, side.order.by_start()
    return {
        f"{prefix}/compressed_ptr": order.pointers,
        f"{prefix}/compressed_rows": side.rows[by_start],
        f"{prefix}/compressed_starts": np.append(order.starts[by_start], order.edge_ptr[-1]),
    }


def _visited_rows(prefix: str, side: Side) -> Arrays:
    """The compact rows of every group, and behind them the runs that its heavy rows are cut into.

    Of a heavy row, what stands for its first slot and its edges numbers its runs in that order.
    """
    order, longest = side.order, side.longest
    group, place = order.groups().astype(np.int64), order.numbers()
    heavy = np.flatnonzero(place < side.heavy_rows[group])
    counts = -(-order.degrees[heavy].astype(np.int64) // longest)
    row = np.repeat(heavy, counts)
    first = np.cumsum(counts) - counts
    done = (np.arange(len(row)) - np.repeat(first, counts)) * longest
    rows_of_group = np.diff(order.pointers)
    runs_of_group = np.bincount(group[row], minlength=order.num_groups)
    run_ptr = np.concatenate([[0], np.cumsum(rows_of_group + runs_of_group)])
    # Behind the compact rows of a group stand its runs, those of earlier groups not counted.
    ahead = rows_of_group - (np.cumsum(runs_of_group) - runs_of_group)
    starts, degrees = order.starts.copy(), order.degrees.copy()
    starts[heavy], degrees[heavy] = ahead[group[heavy]] + first, counts
    places = (run_ptr[group] + place, (run_ptr[:-1] + ahead)[group[row]] + np.arange(len(row)))
    found = {
        "rows": (side.rows, side.rows[row]),
        "starts": (starts, order.starts[row] + done),
        "degrees": (degrees, np.minimum(order.degrees[row] - done, longest)),
    }
    arrays = {f"{prefix}/run_ptr": run_ptr}
    for name, values in found.items():
        arrays[f"{prefix}/{name}"] = joined = np.empty(run_ptr[-1], np.int32)
        for at, some in zip(places, values, strict=True):
            joined[at] = some
    return arrays


def positions(order: RowOrder, groups: range, num_rows: int) -> np.ndarray:
    """The compact row of each of the first rows, in some consecutive groups.

    Args:
      order: the rows that have edges.
      groups: which groups.
      num_rows: how many rows.

    Returns:
      int32 [groups, num_rows], -1 where a row has no edge.
    """
    found = np.full((len(groups), num_rows), -1, np.int32)
    for place, group in enumerate(groups):
        rows = order.rows[order.pointers[group] : order.pointers[group + 1]]
        found[place, rows] = np.arange(len(rows), dtype=np.int32)
    return found


def halo_arrays(name: str, order: RowOrder, groups: range, manifest: Manifest) -> Arrays:
    """The arrays of `jaxgraph.parallel.shard.HaloTable`.

    Args:
      name: what their names start with.
      order: the rows that other parts deal with.
      groups: the groups of other parts, one per step of the ring.
      manifest: the sizes that all parts agree on.

    Returns:
      The arrays by name, without room behind the end.
    """
    pointers = order.pointers[groups.start : groups.stop + 1]
    return {
        f"{name}/rows": order.rows[pointers[0] : pointers[-1]],
        f"{name}/ptr": pointers - pointers[0],
        f"{name}/position": positions(order, groups, manifest.boundary_rows),
    }
