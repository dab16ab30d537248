"""Lanes: XLA's layout of the rows of a graph in one part, for reductions over all rows at once.

See `jaxgraph.ops.xla.whole_graph`. The first level holds a few edges of every row. Each further
level holds a run of edges of every row that has more. The remaining edges are cut into runs whose
sums are joined.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from jaxgraph.layout.derived.orientations import tables_of
from jaxgraph.layout.index_check import part_error
from jaxgraph.layout.manifest import Arrays, Manifest, Shapes
from jaxgraph.layout.row_lengths import RowLengths, join_lengths
from jaxgraph.partition.sorting import inverse_permutation

__all__ = [
    "FIELDS",
    "MOST_LANES",
    "RUNS_JOINED",
    "RUN_FIELDS",
    "LaneSizes",
    "arrays",
    "choose_lanes",
    "compare",
    "count_joins",
    "count_levels",
    "lane_sizes",
    "shapes",
]

Joins = tuple[tuple[int, int], ...]
"""Rows and runs of each join."""
FEWEST_LANES, MOST_LANES = 5, 16
"""Range of the edges of a row that are summed at a time: XLA compiles longer sums slowly, and
unrolls shorter ones of 16 columns before it could vectorise them."""
RUN_LANES = (6, 8, 11, 16)
"""Candidates for the edges of a run."""
MOST_LEVELS = 4
"""The largest number of levels, without the joined runs: XLA has a loop for each."""
ROW_COST, CACHED_ROW_COST, LEVEL_COST = 4, 2, 8192
"""Cost of storing the sum of a row and reading it, and of a level, in edges."""
CACHED_ROWS = 1 << 15
"""Rows whose sums stay in the caches until they are read: 128 columns in 16 MiB."""
RUNS_JOINED = 8
"""Runs of a row whose states are joined at a time."""
FIELDS = ("rows", "starts", "lengths", "neighbors")
"""Arrays of `jaxgraph.ops.xla.lanes.LaneTable`."""
RUN_FIELDS = ("runs", "lengths")
"""Arrays of `jaxgraph.ops.xla.lanes.RunTable`."""
_ENDS = ("receiver", "sender")


@dataclasses.dataclass(frozen=True)
class LaneSizes:
    """Sizes of the levels and joins of a graph in one part.

    Attributes:
      lanes: of each level, and of the runs that are joined.
      levels: by end, rows of each level after the first.
      joins: by end, rows and runs of each join (see `count_joins`).
    """

    lanes: tuple[int, ...]
    levels: Mapping[str, tuple[int, ...]]
    joins: Mapping[str, Joins]


@functools.lru_cache(maxsize=32)
def lane_sizes(manifest: Manifest, like: Manifest | None = None) -> LaneSizes:
    """Chooses the lanes of each level, and bounds its rows and runs.

    Args:
      manifest: of a graph in one part.
      like: the manifest whose lanes to use; None: the cheapest for the graph.

    Returns:
      The sizes.
    """
    like = manifest if like is None else like
    sides = [side for each in like.lengths for side in (each.by_receiver, each.by_sender)]
    lanes = choose_lanes(join_lengths(sides))
    levels, joins = {}, {}
    for end in _ENDS:
        several = [(getattr(each, f"by_{end}"), each.more) for each in manifest.lengths]
        rows = [
            [math.ceil(more * size) for size in count_levels(counts, lanes)]
            for counts, more in several
        ]
        levels[end] = tuple(map(max, zip(*rows, strict=True)))
        joins[end] = _most_joins(
            [_joins_with_room(counts, lanes, more) for counts, more in several]
        )
    return LaneSizes(lanes, levels, joins)


def _joins_with_room(counts: RowLengths, lanes: Sequence[int], more: float) -> Joins:
    """The joins of `more` times as many rows, and one more join for a longer longest row."""
    found = count_joins(counts, lanes)
    if more == 1 or not found:
        return found
    larger = ((math.ceil(more * heavy), math.ceil(more * runs)) for heavy, runs in found)
    return (*larger, (1, 1))


def _most_joins(several: Sequence[Joins]) -> Joins:
    """The largest of each join."""
    zipped = itertools.zip_longest(*several, fillvalue=(0, 0))
    return tuple((max(h for h, _ in join), max(r for _, r in join)) for join in zipped)


def compare(manifest: Manifest, pad_to: Manifest) -> dict[str, tuple[int, int]]:
    """Compares the rows and runs of a graph with the room of other shapes.

    Args:
      manifest: of the graph.
      pad_to: the shapes.

    Returns:
      Rows and runs that are needed and offered, by name; empty for several parts.
    """
    if manifest.num_parts > 1:
        return {}
    needed, offered = (_by_name(lane_sizes(each, pad_to)) for each in (manifest, pad_to))
    return {name: (size, offered.get(name, 0)) for name, size in needed.items()}


def _by_name(sizes: LaneSizes) -> dict[str, int]:
    found = {}
    for end in _ENDS:
        for level, rows in enumerate(sizes.levels[end], 1):
            found[f"incoming/by_{end}: rows of level {level}"] = rows
        for join, (rows, runs) in enumerate(sizes.joins[end]):
            found[f"incoming/by_{end}: rows of join {join}"] = rows
            found[f"incoming/by_{end}: runs of join {join}"] = runs
    return found


def choose_lanes(counts: RowLengths) -> tuple[int, ...]:
    """Chooses the number of lanes of each level.

    Few lanes leave many rows for the next level; many lanes leave many lanes without an edge.

    Args:
      counts: the row lengths in both orientations.

    Returns:
      The lanes of each level, then those of the joined runs, of the cheapest plan; all but the
      first are equal.
    """
    plans = [
        (first, *(run,) * further)
        for further in range(1, MOST_LEVELS + 1)
        for run in RUN_LANES
        for first in range(FEWEST_LANES, MOST_LANES + 1)
    ]
    return min(plans, key=lambda lanes: _cost_of_lanes(counts, lanes))


def _cost_of_lanes(counts: RowLengths, lanes: Sequence[int]) -> int:
    """The cost of reducing all edges in these lanes, in edges."""
    *levels, run = lanes
    rows = (int(counts.rows.sum()), *count_levels(counts, lanes))
    per_row = CACHED_ROW_COST if rows[0] <= CACHED_ROWS * counts.num_groups else ROW_COST
    cost = sum(count * (width + per_row) for count, width in zip(rows, levels, strict=True))
    heavy, runs = next(_each_join(counts, lanes), (0, 0))
    cost += runs * (run + per_row) + heavy * (RUNS_JOINED + per_row)
    return cost + LEVEL_COST * counts.num_groups * (len(levels) + 2 * (heavy > 0))


def count_levels(counts: RowLengths, lanes: Sequence[int]) -> tuple[int, ...]:
    """Counts the rows of every level after the first.

    Args:
      counts: the row lengths of one orientation.
      lanes: of each level, and of the runs.

    Returns:
      The number of rows with edges in each level, at least 1, so that no table is empty.
    """
    done = itertools.accumulate(lanes[:-2])
    return tuple(max(int(counts.rows[counts.lengths > each].sum()), 1) for each in done)


def count_joins(counts: RowLengths, lanes: Sequence[int]) -> Joins:
    """Counts the rows and runs of each join.

    The first join takes the rows with edges after the last level, and their runs of edges. Each
    further join takes the rows with more runs than one join takes.

    Args:
      counts: the row lengths of one orientation.
      lanes: of each level, and of the runs.

    Returns:
      The rows and the runs of each join. The runs of a further join are groups of `RUNS_JOINED`
      runs of the join before, without the first group of each row.
    """
    return tuple(_each_join(counts, lanes))


def _each_join(counts: RowLengths, lanes: Sequence[int]) -> Iterator[tuple[int, int]]:
    runs = -(-np.maximum(counts.lengths - sum(lanes[:-1]), 0) // lanes[-1])
    while (runs > 0).any():
        yield int(counts.rows[runs > 0].sum()), int((runs * counts.rows).sum())
        runs = np.maximum(-(-runs // RUNS_JOINED) - 1, 0)


def shapes(listed: Shapes, manifest: Manifest) -> Shapes:
    """Shapes and dtypes of the arrays that `arrays` makes.

    Args:
      listed: shapes of the arrays that the manifest lists.
      manifest: of the graph.

    Returns:
      Shapes and dtypes by name; empty for several parts.
    """
    if manifest.num_parts > 1:
        return {}
    of_lanes = lane_sizes(manifest)
    found: dict[str, tuple[int, ...]] = {}
    for end in _ENDS:
        prefix, joins = f"incoming/by_{end}/lanes", of_lanes.joins[end]
        sizes = (manifest.table_rows(f"incoming/by_{end}"), *of_lanes.levels[end])
        found |= _table_shapes(f"{prefix}/rows", sizes[0], of_lanes.lanes[0])
        runs = sum(sizes[1:]) + _runs(joins)[0]
        found |= _table_shapes(f"{prefix}/runs", runs, of_lanes.lanes[-1])
        found |= {f"{prefix}/further/{level}": (rows,) for level, rows in enumerate(sizes)}
        for number, rows_and_runs in enumerate(_join_sizes(joins)):
            for table, rows in zip(("rows", "runs"), rows_and_runs, strict=True):
                of_table = ((RUNS_JOINED, rows), (rows,))
                for field, shape in zip(RUN_FIELDS, of_table, strict=True):
                    found[f"{prefix}/joins/{number}/{table}/{field}"] = shape
    return {name: (shape, np.dtype(np.int32)) for name, shape in found.items()}


def _table_shapes(prefix: str, rows: int, lanes: int) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}/{name}": (rows,) for name in FIELDS[:-1]} | {
        f"{prefix}/neighbors": (rows, lanes)
    }


def _runs(joins: Joins) -> list[int]:
    """The runs of edges, and the runs that remain after each join: none after the last."""
    return [*(runs for _, runs in joins), 0]


def _join_sizes(joins: Joins) -> list[tuple[int, int]]:
    """The rows and the runs of each join."""
    return [(rows, runs) for (rows, _), runs in zip(joins, _runs(joins)[1:], strict=True)]


def arrays(part: Arrays, placed: Shapes, manifest: Manifest) -> Arrays:
    """Cuts the rows of a graph in one part into levels and runs.

    Args:
      part: the arrays of a part that the manifest lists, in the shapes that devices hold.
      placed: these shapes, and those of the new arrays.
      manifest: of the graph.

    Returns:
      The arrays of `jaxgraph.ops.xla.lanes.Lanes` in both orientations; empty for several parts.

    Raises:
      ValueError: a level or a join has more rows or runs than the manifest has room for.
    """
    if manifest.num_parts > 1:
        return {}
    of_lanes, found = lane_sizes(manifest), {}
    for end in _ENDS:
        prefix = f"incoming/by_{end}"
        sizes = (manifest.table_rows(prefix), *of_lanes.levels[end])
        tables = tables_of(part, prefix)
        made = _lanes(tables, of_lanes.lanes, sizes, of_lanes.joins[end])
        for name, values in made.items():
            found[f"{prefix}/lanes/{name}"] = values.astype(np.int32, copy=False)
    return found


def _lanes(tables: Arrays, lanes: Sequence[int], sizes: Sequence[int], joins: Joins) -> Arrays:
    """The arrays of one orientation, from its compressed rows."""
    starts, degrees = _starts_and_degrees(tables, sizes[0])
    (*of_levels, run), done, rows, levels = lanes, 0, np.arange(len(degrees)), []
    found: Arrays = {}
    for level, (count, size) in enumerate(zip(of_levels, sizes, strict=True)):
        levels.append((_padded(rows, size, -1), done, count))
        done += count
        goes_on = degrees[rows] > done
        further = np.full(size, -1)
        further[: len(rows)][goes_on] = np.arange(np.count_nonzero(goes_on))
        found[f"further/{level}"] = further
        rows = rows[goes_on]
    # Runs are in the order of rows: neighbours of neighbouring rows are near each other. Joins
    # take rows by descending number of runs: those left for the next join are the first ones.
    counts = -(-(degrees[rows] - done) // run)
    firsts = np.cumsum(counts) - counts
    most_first = np.argsort(-counts, kind="stable")
    found |= _joins(firsts[most_first], counts[most_first], joins)
    last = found[f"further/{len(of_levels) - 1}"]
    last[last >= 0] = inverse_permutation(most_first)
    size = _runs(joins)[0]
    passed = np.repeat(done - run * firsts, counts) + run * np.arange(counts.sum())
    levels.append((_padded(np.repeat(rows, counts), size, -1), _padded(passed, size, 0), run))
    first, *others = (_edges_of_rows(starts, degrees, *level) for level in levels)
    runs = [np.concatenate(each) for each in zip(*others, strict=True)]
    found |= _table("rows", first, tables["neighbors"], lanes[0])
    return found | _table("runs", runs, tables["neighbors"], run)


def _edges_of_rows(
    starts: np.ndarray, degrees: np.ndarray, rows: np.ndarray, done: np.ndarray | int, most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Some rows, the slot of each after `done` edges, and its edges from there, at most `most`.

    A row without such edges, and padding (-1), gets the number of the first row with edges, and
    slot 0.
    """
    lengths = np.where(rows >= 0, np.clip(degrees[rows] - done, 0, most), 0)
    has = lengths > 0
    return (
        np.where(has, rows, np.argmax(degrees > 0)),
        np.where(has, starts[rows] + done, 0),
        lengths,
    )


def _starts_and_degrees(tables: Arrays, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """int64 [rows], the first slot of every row and its edges."""
    count = tables["compressed_ptr"][1]
    rows, bounds = tables["compressed_rows"][:count], tables["compressed_starts"][: count + 1]
    starts, degrees = np.zeros((2, num_rows), np.int64)
    starts[rows], degrees[rows] = bounds[:-1], np.diff(bounds)
    return starts, degrees


def _joins(firsts: np.ndarray, counts: np.ndarray, joins: Joins) -> Arrays:
    """The arrays of all joins, from each row's first run and number of runs (descending)."""
    found: Arrays = {}
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


def _run_table(name: str, starts: np.ndarray, counts: np.ndarray, size: int) -> Arrays:
    lengths = _padded(np.minimum(counts, RUNS_JOINED), size, 0)
    lanes = np.minimum(np.arange(RUNS_JOINED)[:, None], np.maximum(lengths - 1, 0))
    return {f"{name}/runs": _padded(starts, size, 0) + lanes, f"{name}/lengths": lengths}


def _padded(values: np.ndarray, size: int, fill: int) -> np.ndarray:
    if len(values) > size:
        raise part_error(
            f"a level or a join of the edges that end in the part has {len(values)} rows or runs; "
            f"expected at most {size}, which is what the manifest's row lengths come to"
        )
    return np.append(values, np.full(size - len(values), fill, values.dtype))


def _table(
    name: str, edges_of_rows: Sequence[np.ndarray], neighbors: np.ndarray, lanes: int
) -> Arrays:
    _, starts, lengths = edges_of_rows
    last = np.maximum(lengths - 1, 0)
    by_lane = np.empty((len(starts), lanes), np.int32)
    for lane in range(lanes):
        by_lane[:, lane] = neighbors[starts + np.minimum(lane, last)]
    values = (*edges_of_rows, by_lane)
    return {f"{name}/{field}": x for field, x in zip(FIELDS, values, strict=True)}
