"""What it costs to visit the edges of rows of given degrees, and which rows to cut into runs.

Edges are handled a chunk at a time. A chunk takes the next few edges of every row of a block of
rows of about equal degree. Rows of high degree are cut into runs of edges, each of which is visited
like a row, as SpMM kernels that split rows do. Everything here follows from the distinct degrees of
a group, which are few.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from jaxgraph.layout.row_order import RowOrder
from jaxgraph.partition.sorting import run_starts

__all__ = [
    "MOST_LANES",
    "PIECE",
    "RUNS_JOINED",
    "SMALLEST_CHUNK",
    "DegreeCounts",
    "choose_chunk",
    "choose_lanes",
    "choose_longest",
    "count_chunks",
    "count_degrees",
    "count_joins",
    "count_levels",
    "count_runs",
    "heavy_rows",
    "join_counts",
]

PIECE = 4
"""Edges of a row that are taken at a time: more of them make more lanes without an edge."""
CHUNK_OVERHEAD = 512
"""Cost of starting a chunk, in edges: what a loop trip costs beside the work of its lanes."""
SMALLEST_CHUNK, LARGEST_CHUNK = 16, 4096
CHUNKS_PER_SHARD = 8
"""Chunks in a shard's rows at least: what is live for one stays small beside the shard."""
CHUNKS_ALONE = 2
"""The same of a graph on one device, which holds all its rows in any case."""
FEWEST_LANES, MOST_LANES = 5, 16
"""Edges of every row that are summed at a time where all rows of a graph are reduced together:
longer sums take XLA long to compile, and shorter ones of 16 columns are unrolled before they could
be made vectors of."""
RUN_LANES = (6, 8, 11, 16)
"""Edges of a run of a row that goes on behind its first ones; a few to choose from."""
MOST_LEVELS = 4
"""Levels of such a graph, beside its runs: XLA has a loop for each."""
ROW_COST, CACHED_ROW_COST, LEVEL_COST = 4, 2, 8192
"""Cost of storing the sum of a row and reading it, and of a level, in edges."""
CACHED_ROWS = 1 << 15
"""Rows whose sums stay in the caches until they are read, of 128 columns in 16 MiB."""
RUNS_JOINED = 8
"""Runs of a heavy row of such a graph whose states are joined at a time."""


@dataclasses.dataclass(frozen=True)
class DegreeCounts:
    """The distinct degrees of the rows of each group, descending.

    Attributes:
      groups: int [entries], ascending.
      degrees: int64 [entries].
      rows: int64 [entries], rows of that degree.
      reach: int64 [entries], rows of that degree or a higher one.
      num_groups: number of groups; some may be without entries.
    """

    groups: np.ndarray
    degrees: np.ndarray
    rows: np.ndarray
    reach: np.ndarray
    num_groups: int

    def by_group(self, values: np.ndarray) -> np.ndarray:
        """Sums int [entries] over each group, int64 [groups]."""
        running = np.concatenate([[0], np.cumsum(values)])
        bounds = np.searchsorted(self.groups, np.arange(self.num_groups + 1))
        return running[bounds[1:]] - running[bounds[:-1]]


def count_degrees(orders: Sequence[RowOrder], *, whole: bool = False) -> DegreeCounts:
    """The distinct degrees in all groups of some orders, one order after the other.

    Args:
      orders: the orders.
      whole: whether to take all groups of an order as one.

    Returns:
      The counts.
    """
    largest = max((int(order.degrees.max(initial=0)) for order in orders), default=0)
    keys, num_groups = [], 0
    for order in orders:
        key = largest - order.degrees.astype(np.int64)
        if not whole:
            key += order.groups().astype(np.int64) * (largest + 1)
        keys.append(np.sort(key) + num_groups * (largest + 1))
        num_groups += 1 if whole else order.num_groups
    key = np.concatenate(keys)
    starts = run_starts(key, np.zeros(0, np.int64))
    rows = np.diff(starts, append=len(key))
    groups, inverted = np.divmod(key[starts], largest + 1)
    degrees = largest - inverted
    before = np.searchsorted(key, groups * (largest + 1))
    return DegreeCounts(groups, degrees, rows, starts + rows - before, num_groups)


def join_counts(counts: Sequence[DegreeCounts]) -> DegreeCounts:
    """The groups of some counts, one after the other."""
    first = np.cumsum([0, *(each.num_groups for each in counts)])

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(each, name) for each in counts])

    groups = [each.groups + shift for each, shift in zip(counts, first[:-1], strict=True)]
    return DegreeCounts(
        np.concatenate(groups),
        joined("degrees"),
        joined("rows"),
        joined("reach"),
        int(first[-1]),
    )


def heavy_rows(counts: DegreeCounts, longest: int) -> np.ndarray:
    """How many rows of each group are heavy: longer than a run may be.

    Args:
      counts: the degrees.
      longest: edges of a run.

    Returns:
      int64 [groups].
    """
    return counts.by_group(np.where(counts.degrees > longest, counts.rows, 0))


def count_runs(counts: DegreeCounts, longest: int) -> np.ndarray:
    """Into how many runs the heavy rows of each group are cut.

    Args:
      counts: the degrees.
      longest: edges of a run.

    Returns:
      int64 [groups].
    """
    runs = counts.rows * -(-counts.degrees // longest)
    return counts.by_group(np.where(counts.degrees > longest, runs, 0))


def count_chunks(counts: DegreeCounts, longest: int, chunk: int) -> np.ndarray:
    """Chunks of the rows that are not heavy, and then of the runs.

    Args:
      counts: the degrees.
      longest: edges of a run.
      chunk: edges handled at a time, a multiple of `PIECE`.

    Returns:
      int64 [groups]; a block that holds rows and runs counts twice.
    """
    block = chunk // PIECE
    heavy = heavy_rows(counts, longest)[counts.groups]
    # A block goes on until its first row ends: count those that start with a row of each degree.
    stop = np.maximum(counts.reach - heavy, 0)
    start = np.maximum(stop - counts.rows, 0)
    blocks = -(-stop // block) + (-start // block)
    light = counts.by_group(blocks * -(-counts.degrees // PIECE))
    return light + -(-count_runs(counts, longest) // block) * -(-longest // PIECE)


def choose_longest(counts: DegreeCounts, chunk: int) -> tuple[int, int]:
    """The length of runs at which visiting all edges costs least.

    The runs of a group are no more than a chunk has edges, less one block: what is summed over a
    run has to be stored until the runs of a row are added up.

    Args:
      counts: the degrees.
      chunk: edges handled at a time.

    Returns:
      A power of two, or the largest degree of all: no row is cut; and what visiting all edges then
      costs, in edge slots.
    """
    best = max(int(counts.degrees.max(initial=1)), 1)
    fewest = int(count_chunks(counts, best, chunk).sum())
    longest = PIECE
    while longest < counts.degrees.max(initial=0):
        chunks = int(count_chunks(counts, longest, chunk).sum())
        fits = count_runs(counts, longest).max(initial=0) <= chunk - chunk // PIECE
        if fits and chunks < fewest:
            best, fewest = longest, chunks
        longest *= 2
    return best, fewest * (chunk + CHUNK_OVERHEAD)


def choose_lanes(counts: DegreeCounts) -> tuple[int, ...]:
    """How the rows of a graph on one device are cut into levels, each of which is reduced at once.

    The first level takes a few edges of every row, each further one a run of the rows that have
    more; what is behind the last is cut into runs as well, which are joined. Few lanes leave many
    rows to go on with, many lanes have many places without an edge.

    Args:
      counts: the degrees in both orientations.

    Returns:
      The lanes of each level, and last those of the runs that are joined, of the plan that costs
      least; all but the first are equal.
    """
    plans = [
        (first, *(run,) * further)
        for further in range(1, MOST_LEVELS + 1)
        for run in RUN_LANES
        for first in range(FEWEST_LANES, MOST_LANES + 1)
    ]
    return min(plans, key=lambda lanes: _cost_of_lanes(counts, lanes))


def _cost_of_lanes(counts: DegreeCounts, lanes: Sequence[int]) -> int:
    """What it costs to reduce all edges in so many lanes, in edges."""
    *levels, run = lanes
    rows = (int(counts.rows.sum()), *count_levels(counts, lanes))
    per_row = CACHED_ROW_COST if rows[0] <= CACHED_ROWS * counts.num_groups else ROW_COST
    cost = sum(count * (width + per_row) for count, width in zip(rows, levels, strict=True))
    heavy, runs = next(_each_join(counts, lanes), (0, 0))
    cost += runs * (run + per_row) + heavy * (RUNS_JOINED + per_row)
    return cost + LEVEL_COST * counts.num_groups * (len(levels) + 2 * (heavy > 0))


def count_levels(counts: DegreeCounts, lanes: Sequence[int]) -> tuple[int, ...]:
    """The rows of every level behind the first.

    Args:
      counts: the degrees of one orientation.
      lanes: of each level, and of the runs.

    Returns:
      How many rows have edges there; one where none has, so that no table is empty.
    """
    done = itertools.accumulate(lanes[:-2])
    return tuple(max(int(counts.rows[counts.degrees > each].sum()), 1) for each in done)


def count_joins(counts: DegreeCounts, lanes: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The rows that go on behind the last level, those of more runs than are joined at a time, ...

    Args:
      counts: the degrees of one orientation.
      lanes: of each level, and of the runs.

    Returns:
      For each join such rows, and what is joined: runs of edges at first, then runs of
      `RUNS_JOINED` runs of the join before, behind the first of each row. None without lanes.
    """
    return tuple(_each_join(counts, lanes)) if lanes else ()


def _each_join(counts: DegreeCounts, lanes: Sequence[int]) -> Iterator[tuple[int, int]]:
    runs = -(-np.maximum(counts.degrees - sum(lanes[:-1]), 0) // lanes[-1])
    while (runs > 0).any():
        yield int(counts.rows[runs > 0].sum()), int((runs * counts.rows).sum())
        runs = np.maximum(-(-runs // RUNS_JOINED) - 1, 0)


def choose_chunk(counts: DegreeCounts, node_rows: int, num_parts: int) -> int:
    """The number of edges handled at a time that costs least.

    Args:
      counts: the degrees in all groups of all shards, in both orientations.
      node_rows: rows of the largest shard.
      num_parts: number of shards.

    Returns:
      A power of two.
    """
    least = CHUNKS_ALONE if num_parts == 1 else CHUNKS_PER_SHARD
    limit = max(SMALLEST_CHUNK, min(LARGEST_CHUNK, node_rows // least))
    chunk = best = SMALLEST_CHUNK
    lowest = choose_longest(counts, chunk)[1]
    while 2 * chunk <= limit:
        chunk *= 2
        cost = choose_longest(counts, chunk)[1]
        if cost < lowest:
            best, lowest = chunk, cost
    return best
