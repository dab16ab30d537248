"""The lanes of a graph on one device, made on the host when it is placed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxgraph.ops.lanes import Join, Lanes, LaneTable, RunTable
from jaxgraph.partition.degrees import RUNS_JOINED
from jaxgraph.partition.manifest import Levels, Manifest
from jaxgraph.partition.sorting import inverse_permutation

__all__ = ["lane_arrays", "lane_shapes", "lanes_at"]

_ENDS = ("receiver", "sender")
_FIELDS = ("rows", "starts", "lengths", "neighbors")
_RUN_FIELDS = ("runs", "lengths")


def lane_shapes(manifest: Manifest) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shapes and types of the arrays that `lane_arrays` makes.

    Args:
      manifest: of a graph in one part.

    Returns:
      The shapes by name.
    """
    found: dict[str, tuple[int, ...]] = {}
    for end in _ENDS:
        prefix = f"incoming/by_{end}/lanes"
        levels = _levels(manifest, end)
        for table, rows in (("rows", manifest.node_rows), ("runs", _runs(levels)[0])):
            found |= {f"{prefix}/{table}/{name}": (rows,) for name in _FIELDS[:-1]}
            found[f"{prefix}/{table}/neighbors"] = (rows, manifest.longest)
        found[f"{prefix}/heavy"] = (manifest.node_rows,)
        for number, sizes in enumerate(_join_sizes(levels)):
            for table, rows in zip(("rows", "runs"), sizes, strict=True):
                shapes = ((RUNS_JOINED, rows), (rows,))
                for field, shape in zip(_RUN_FIELDS, shapes, strict=True):
                    found[f"{prefix}/joins/{number}/{table}/{field}"] = shape
    return {name: (shape, np.dtype(np.int32)) for name, shape in found.items()}


def _levels(manifest: Manifest, end: str) -> Levels:
    return manifest.receiver_levels if end == "receiver" else manifest.sender_levels


def _runs(levels: Levels) -> list[int]:
    """The runs of edges, and those that each join leaves: none behind the last."""
    return [*(runs for _, runs in levels), 0]


def _join_sizes(levels: Levels) -> list[tuple[int, int]]:
    """The rows and the runs of each join."""
    return [(heavy, runs) for (heavy, _), runs in zip(levels, _runs(levels)[1:], strict=True)]


def lane_arrays(part: Mapping[str, np.ndarray], manifest: Manifest) -> dict[str, np.ndarray]:
    """The arrays of `jaxgraph.ops.lanes.Lanes` in both orientations.

    Args:
      part: the arrays of the only part, [1, ...] each, in their padded shapes.
      manifest: of the graph.

    Returns:
      Arrays [1, ...] by name.
    """
    found: dict[str, np.ndarray] = {}
    for end in _ENDS:
        prefix = f"incoming/by_{end}/"
        tables = {
            name.removeprefix(prefix): x[0] for name, x in part.items() if name.startswith(prefix)
        }
        lanes = _lanes(tables, manifest.longest, _levels(manifest, end))
        found |= {f"{prefix}lanes/{name}": x.astype(np.int32)[None] for name, x in lanes.items()}
    return found


def _lanes(tables: Mapping[str, np.ndarray], lanes: int, levels: Levels) -> dict[str, np.ndarray]:
    """The arrays of one orientation, from those of `jaxgraph.ops.edges.Orientation`."""
    rows, starts, degrees = (tables[name] for name in ("rows", "starts", "degrees"))
    position, heavy = tables["position"], int(tables["heavy_rows"][0])
    has, is_heavy = position >= 0, (position >= 0) & (position < heavy)
    # A row, or of a heavy row the first of its runs, which has as many edges as there are lanes.
    first = np.where(is_heavy, starts[position], position)
    own = np.where(has, np.arange(len(position)), rows[0])
    firsts, lengths = (np.where(has, values[first], 0) for values in (starts, degrees))
    found = _table("rows", own, firsts, lengths, tables, lanes)
    behind = np.arange(tables["compressed_ptr"][1], tables["run_ptr"][1])
    runs = np.setdiff1d(behind, starts[:heavy], assume_unique=True)
    # Neighbours of neighbouring rows are near each other, those of rows of equal degree are not.
    by_row = np.argsort(rows[runs], kind="stable")
    runs = _padded(runs[by_row], _runs(levels)[0], -1)
    own = np.where(runs >= 0, rows[runs], rows[0])
    firsts, lengths = (np.where(runs >= 0, values[runs], 0) for values in (starts, degrees))
    found |= _table("runs", own, firsts, lengths, tables, lanes)
    found["heavy"] = np.where(is_heavy, position, -1)
    joins = _joins(degrees[:heavy].astype(np.int64) - 1, levels)
    places = _padded(inverse_permutation(by_row), len(runs), 0)
    for name in joins.keys() & {"joins/0/rows/runs", "joins/0/runs/runs"}:
        joins[name] = places[joins[name]]
    return found | joins


def _joins(counts: np.ndarray, levels: Levels) -> dict[str, np.ndarray]:
    """The arrays of the joins of rows of so many runs, descending, which stand in that order."""
    found: dict[str, np.ndarray] = {}
    for number, (heavy, further) in enumerate(_join_sizes(levels)):
        firsts = np.cumsum(counts) - counts
        found |= _run_table(f"joins/{number}/rows", firsts, counts, heavy)
        groups = np.maximum(-(-counts // RUNS_JOINED) - 1, 0)
        row = np.repeat(np.arange(len(counts)), groups)
        place = np.arange(len(row)) - np.repeat(np.cumsum(groups) - groups, groups)
        done = RUNS_JOINED * (place + 1)
        found |= _run_table(f"joins/{number}/runs", firsts[row] + done, counts[row] - done, further)
        counts = groups[groups > 0]
    return found


def _run_table(
    name: str, starts: np.ndarray, counts: np.ndarray, size: int
) -> dict[str, np.ndarray]:
    lengths = _padded(np.minimum(counts, RUNS_JOINED), size, 0)
    lanes = np.minimum(np.arange(RUNS_JOINED)[:, None], np.maximum(lengths - 1, 0))
    return {f"{name}/runs": _padded(starts, size, 0) + lanes, f"{name}/lengths": lengths}


def _padded(values: np.ndarray, size: int, fill: int) -> np.ndarray:
    return np.append(values, np.full(size - len(values), fill, values.dtype))


def _table(
    name: str,
    rows: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    tables: Mapping[str, np.ndarray],
    lanes: int,
) -> dict[str, np.ndarray]:
    last = np.maximum(lengths - 1, 0)
    neighbors = np.empty((len(rows), lanes), np.int32)
    for lane in range(lanes):
        neighbors[:, lane] = tables["neighbors"][starts + np.minimum(lane, last)]
    values = (rows, starts, lengths, neighbors)
    return {f"{name}/{field}": x for field, x in zip(_FIELDS, values, strict=True)}


def lanes_at(arrays: Mapping[str, Any], prefix: str) -> Lanes | None:
    """The lanes whose arrays have names that start with a prefix, or None."""
    if f"{prefix}/lanes/heavy" not in arrays:
        return None

    def table(name: str) -> LaneTable:
        return LaneTable(*(arrays[f"{prefix}/lanes/{name}/{field}"] for field in _FIELDS))

    def run_table(name: str) -> RunTable:
        return RunTable(*(arrays[f"{prefix}/lanes/{name}/{field}"] for field in _RUN_FIELDS))

    numbers = itertools.takewhile(
        lambda number: f"{prefix}/lanes/joins/{number}/rows/runs" in arrays, itertools.count()
    )
    joins = (Join(run_table(f"joins/{n}/rows"), run_table(f"joins/{n}/runs")) for n in numbers)
    return Lanes(table("rows"), table("runs"), arrays[f"{prefix}/lanes/heavy"], tuple(joins))
