"""The lanes of a graph on one device, made on the host when it is placed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxgraph.layout.degrees import RUNS_JOINED
from jaxgraph.layout.manifest import Joins, Manifest
from jaxgraph.ops.xla.lanes import Join, Lanes, LaneTable, RunTable
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
        sizes, joins = _sizes(manifest, end)
        found |= _table_shapes(f"{prefix}/rows", sizes[0], manifest.lanes[0])
        runs = sum(sizes[1:]) + _runs(joins)[0]
        found |= _table_shapes(f"{prefix}/runs", runs, manifest.lanes[-1])
        found |= {f"{prefix}/further/{level}": (rows,) for level, rows in enumerate(sizes)}
        for number, rows_and_runs in enumerate(_join_sizes(joins)):
            for table, rows in zip(("rows", "runs"), rows_and_runs, strict=True):
                shapes = ((RUNS_JOINED, rows), (rows,))
                for field, shape in zip(_RUN_FIELDS, shapes, strict=True):
                    found[f"{prefix}/joins/{number}/{table}/{field}"] = shape
    return {name: (shape, np.dtype(np.int32)) for name, shape in found.items()}


def _table_shapes(prefix: str, rows: int, lanes: int) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}/{name}": (rows,) for name in _FIELDS[:-1]} | {
        f"{prefix}/neighbors": (rows, lanes)
    }


def _sizes(manifest: Manifest, end: str) -> tuple[tuple[int, ...], Joins]:
    """The rows of every level, and the joins, at one end."""
    levels, joins = (getattr(manifest, f"{end}_{name}") for name in ("levels", "joins"))
    return (manifest.node_rows, *levels), joins


def _runs(joins: Joins) -> list[int]:
    """The runs of edges, and those that each join leaves: none behind the last."""
    return [*(runs for _, runs in joins), 0]


def _join_sizes(joins: Joins) -> list[tuple[int, int]]:
    """The rows and the runs of each join."""
    return [(rows, runs) for (rows, _), runs in zip(joins, _runs(joins)[1:], strict=True)]


def lane_arrays(part: Mapping[str, np.ndarray], manifest: Manifest) -> dict[str, np.ndarray]:
    """The arrays of `jaxgraph.ops.xla.lanes.Lanes` in both orientations.

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
        lanes = _lanes(tables, manifest.lanes, *_sizes(manifest, end))
        found |= {f"{prefix}lanes/{name}": x.astype(np.int32)[None] for name, x in lanes.items()}
    return found


def _lanes(
    tables: Mapping[str, np.ndarray], lanes: Sequence[int], sizes: Sequence[int], joins: Joins
) -> dict[str, np.ndarray]:
    """The arrays of one orientation, from those of `jaxgraph.ops.core.edges.Orientation`."""
    starts, degrees = _starts_and_degrees(tables)
    (*of_levels, run), done, rows, levels = lanes, 0, np.arange(len(degrees)), []
    found: dict[str, np.ndarray] = {}
    for level, (count, size) in enumerate(zip(of_levels, sizes, strict=True)):
        levels.append((_padded(rows, size, -1), done, count))
        done += count
        goes_on = degrees[rows] > done
        further = np.full(size, -1)
        further[: len(rows)][goes_on] = np.arange(np.count_nonzero(goes_on))
        found[f"further/{level}"] = further
        rows = rows[goes_on]
    # Runs stand by row: neighbours of neighbouring rows are near each other. Those that are joined
    # to them are numbered by their runs, most first, so that each join leaves the first of them.
    counts = -(-(degrees[rows] - done) // run)
    firsts = np.cumsum(counts) - counts
    most_first = np.argsort(-counts, kind="stable")
    found |= _joins(firsts[most_first], counts[most_first], joins)
    last = found[f"further/{len(of_levels) - 1}"]
    last[last >= 0] = inverse_permutation(most_first)
    size = _runs(joins)[0]
    behind = np.repeat(done - run * firsts, counts) + run * np.arange(counts.sum())
    levels.append((_padded(np.repeat(rows, counts), size, -1), _padded(behind, size, 0), run))
    first, *others = (_edges_of_rows(starts, degrees, *level) for level in levels)
    runs = [np.concatenate(each) for each in zip(*others, strict=True)]
    found |= _table("rows", first, tables["neighbors"], lanes[0])
    return found | _table("runs", runs, tables["neighbors"], run)


def _edges_of_rows(
    starts: np.ndarray, degrees: np.ndarray, rows: np.ndarray, done: np.ndarray | int, most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Some rows, the first slot of each behind `done` edges, and its edges there, `most` at most.

    Rows without edges are called by the first row that has some, and start at slot 0, as padding
    does (-1).
    """
    lengths = np.where(rows >= 0, np.clip(degrees[rows] - done, 0, most), 0)
    has = lengths > 0
    return (
        np.where(has, rows, np.argmax(degrees > 0)),
        np.where(has, starts[rows] + done, 0),
        lengths,
    )


def _starts_and_degrees(tables: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """int64 [rows], the first slot of every row and its edges."""
    count = tables["compressed_ptr"][1]
    rows, bounds = tables["compressed_rows"][:count], tables["compressed_starts"][: count + 1]
    starts, degrees = np.zeros((2, len(tables["position"])), np.int64)
    starts[rows], degrees[rows] = bounds[:-1], np.diff(bounds)
    return starts, degrees


def _joins(firsts: np.ndarray, counts: np.ndarray, joins: Joins) -> dict[str, np.ndarray]:
    """The arrays of the joins of rows of so many runs, descending, from their first ones on."""
    found: dict[str, np.ndarray] = {}
    for number, (rows, further) in enumerate(_join_sizes(joins)):
        found |= _run_table(f"joins/{number}/rows", firsts, counts, rows)
        groups = np.maximum(-(-counts // RUNS_JOINED) - 1, 0)
        row = np.repeat(np.arange(len(counts)), groups)
        place = np.arange(len(row)) - np.repeat(np.cumsum(groups) - groups, groups)
        done = RUNS_JOINED * (place + 1)
        found |= _run_table(f"joins/{number}/runs", firsts[row] + done, counts[row] - done, further)
        counts = groups[groups > 0]
        firsts = np.cumsum(counts) - counts
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
    name: str, edges_of_rows: Sequence[np.ndarray], neighbors: np.ndarray, lanes: int
) -> dict[str, np.ndarray]:
    _, starts, lengths = edges_of_rows
    last = np.maximum(lengths - 1, 0)
    by_lane = np.empty((len(starts), lanes), np.int32)
    for lane in range(lanes):
        by_lane[:, lane] = neighbors[starts + np.minimum(lane, last)]
    values = (*edges_of_rows, by_lane)
    return {f"{name}/{field}": x for field, x in zip(_FIELDS, values, strict=True)}


def lanes_at(arrays: Mapping[str, Any], prefix: str) -> Lanes | None:
    """The lanes whose arrays have names that start with a prefix, or None."""
    if f"{prefix}/lanes/further/0" not in arrays:
        return None

    def table(name: str) -> LaneTable:
        return LaneTable(*(arrays[f"{prefix}/lanes/{name}/{field}"] for field in _FIELDS))

    def run_table(name: str) -> RunTable:
        return RunTable(*(arrays[f"{prefix}/lanes/{name}/{field}"] for field in _RUN_FIELDS))

    def numbered(name: str, end: str) -> list[str]:
        names = (f"{name}/{number}" for number in itertools.count())
        known = itertools.takewhile(lambda each: f"{prefix}/lanes/{each}{end}" in arrays, names)
        return list(known)

    further = tuple(arrays[f"{prefix}/lanes/{name}"] for name in numbered("further", ""))
    joins = tuple(
        Join(run_table(f"{name}/rows"), run_table(f"{name}/runs"))
        for name in numbered("joins", "/rows/runs")
    )
    return Lanes(table("rows"), table("runs"), further, joins)
