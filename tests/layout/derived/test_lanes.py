"""Lanes hold every edge once, and further runs are those of the heavy rows."""

import dataclasses
from collections.abc import Iterator

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph.layout.derived.lanes import (
    MOST_LANES,
    RUNS_JOINED,
    arrays,
    choose_lanes,
    count_joins,
    count_levels,
    lane_sizes,
)
from jaxgraph.layout.placed import placed_shapes
from jaxgraph.layout.shard_tables import tabulate
from jaxgraph.ops.cpu.library import missing
from jaxgraph.ops.xla.lanes import Lanes, LaneTable, RunTable
from jaxgraph.parallel import ShardedGraph, make_mesh, shard
from jaxgraph.partition import Partition
from tests.lanes import choosing_lanes
from tests.lengths import lengths_of
from tests.strategies import complete, random_edges

HUB = MOST_LANES * RUNS_JOINED * 10 + 1
"""A degree at which runs are joined three times."""


@pytest.fixture(params=[(5, 6), (5, 6, 6, 6)], ids=["one level", "three levels"])
def lanes_of_levels(request) -> Iterator[tuple[int, ...]]:
    """Makes lanes at any cost."""
    with choosing_lanes(*request.param):
        yield request.param


def placed(implementation: str) -> ShardedGraph:
    """A graph with a receiver of high degree, rows without edges and a repeated edge."""
    senders, receivers = random_edges(30, 60, seed=2)
    into = np.full(HUB, 7)
    to_hub, others = np.append(receivers, into), np.append(senders, np.arange(HUB) % 30)
    graph = complete(others, to_hub, 40, "hub")
    return shard(graph, None, make_mesh(1), implementation=implementation)


def pairs(table: LaneTable) -> np.ndarray:
    """Rows, slots and neighbors of all edges of a table, [edges, 3]."""
    lanes = np.arange(table.neighbors.shape[1])[:, None]
    has = lanes < table.lengths
    shape = has.shape
    columns = (np.broadcast_to(table.rows, shape), table.starts + lanes, table.neighbors.T)
    return np.stack([np.asarray(column)[has] for column in columns], axis=1)


@pytest.mark.parametrize("side", ["receiver", "sender"])
def test_lanes_hold_every_edge_once(side, lanes_of_levels):
    edges = jax.tree.map(lambda leaf: np.asarray(leaf[0]), placed("xla").shards).incoming
    orientation = edges.orientation(side)
    lanes = orientation.lanes
    assert isinstance(lanes, Lanes)
    held = np.concatenate([pairs(lanes.rows), pairs(lanes.runs)])
    held = held[np.argsort(held[:, 1])]
    count = int(orientation.compressed_starts[orientation.compressed_ptr[1]])
    starts, rows = orientation.compressed_starts, orientation.compressed_rows
    with_edges = orientation.compressed_ptr[1]
    by_slot = np.repeat(rows[:with_edges], np.diff(starts[: with_edges + 1]))
    np.testing.assert_array_equal(held[:, 0], by_slot)
    np.testing.assert_array_equal(held[:, 1], np.arange(count))
    np.testing.assert_array_equal(held[:, 2], orientation.neighbors[:count])
    levels, joined = lanes.levels()
    for some in (*levels, joined):
        of_runs = lanes.runs.rows[some][lanes.runs.lengths[some] > 0]
        assert (np.diff(of_runs) >= 0).all()


def members(table: RunTable, below: list[list[int]]) -> list[list[int]]:
    """Concatenates for each row of a table the members of its runs, given in `below`."""
    rows = []
    for runs, length in zip(table.runs.T, table.lengths, strict=True):
        assert (runs[max(length - 1, 0) :] == runs[max(length - 1, 0)]).all()
        rows.append([part for run in runs[:length] for part in below[run]])
    return rows


@pytest.mark.parametrize("side", ["receiver", "sender"])
def test_every_row_finds_each_of_its_runs_once(side, lanes_of_levels):
    edges = jax.tree.map(lambda leaf: np.asarray(leaf[0]), placed("xla").shards).incoming
    lanes = edges.orientation(side).lanes
    assert isinstance(lanes, Lanes)
    assert len(lanes.further) == len(lanes_of_levels) - 1
    assert len(lanes.joins) == (3 if side == "receiver" else 1)
    levels, joined = lanes.levels()
    runs = range(len(lanes.runs.rows))
    below, unjoined = [[run] for run in runs[joined]], []
    for join in lanes.joins:
        unjoined.append(members(join.rows, below))
        below = members(join.runs, below)
    assert below == []
    further = [
        [run for level in unjoined for run in (level[row] if row < len(level) else [])]
        for row in range(len(unjoined[0]))
    ]
    for level, where in zip(reversed(levels), reversed(lanes.further[1:]), strict=True):
        goes_on = [further[to] if to >= 0 else [] for to in where]
        further = [[run, *others] for run, others in zip(runs[level], goes_on, strict=True)]
    for row, to in enumerate(lanes.further[0]):
        own = np.flatnonzero((lanes.runs.rows == row) & (lanes.runs.lengths > 0))
        assert sorted(further[to] if to >= 0 else []) == own.tolist()


@pytest.mark.parametrize("num_edges", [0, 4])
def test_no_joins_where_no_row_is_heavy(num_edges):
    graph = complete(np.arange(num_edges), np.arange(num_edges) + 1, 9, "light")
    edges = shard(graph, None, make_mesh(1), implementation="xla").shards.incoming
    for lanes in (edges.by_receiver.lanes, edges.by_sender.lanes):
        assert lanes is not None and lanes.joins == ()
        assert lanes.runs.rows.shape == (1, 0)
        (further,) = lanes.further
        assert (np.asarray(further) == -1).all()


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_other_kernels_have_no_lanes():
    assert placed("cpu").shards.incoming.by_receiver.lanes is None


@pytest.mark.parametrize(
    ("rows", "degrees", "expected"),
    # A level costs less than the free places that long rows would leave in all others, and less
    # than joining many runs. Where few rows continue, joining their runs costs less than a level.
    # Where the sums of all rows stay in the caches, further ones cost less than free places.
    [
        (1, [], (5, 6)),
        (1, [1, 2], (5, 6)),
        (1, [5, 6], (6, 6)),
        (1000, [*[2] * 200, 8], (5, 6, 6)),
        (10, [*[2] * 200, 8], (8, 6)),
        (10, [*[6] * 20, 500], (6, 16)),
        (1900, [*[4] * 10, *[8] * 4, *[12] * 3], (5, 8, 8)),
        (1950, [*[4] * 10, *[8] * 4, *[12] * 3], (8, 6, 6)),
        (1000, [40] * 20, (8, 16, 16, 16)),
        (1000, [64] * 20, (16, 16, 16, 16, 16)),
    ],
)
def test_lanes_leave_few_places_free_and_few_runs_to_join(rows, degrees, expected):
    counts = lengths_of([degrees])
    counts = dataclasses.replace(counts, rows=rows * counts.rows)
    assert choose_lanes(counts) == expected


LANES = st.lists(st.integers(1, 16), min_size=2, max_size=5)


@given(st.lists(st.integers(1, 5000), max_size=12), LANES)
def test_levels_and_joins_are_counted_as_rows_are_cut(degrees, lanes):
    counts = lengths_of([degrees])
    *levels, run = lanes
    bounds = np.cumsum(levels)
    expected = [max(sum(degree > bound for degree in degrees), 1) for bound in bounds[:-1]]
    assert count_levels(counts, lanes) == tuple(expected)
    joins = []
    sizes = [len(range(bounds[-1], degree, run)) for degree in degrees if degree > bounds[-1]]
    while sizes:
        joins.append((len(sizes), sum(sizes)))
        sizes = [len(range(RUNS_JOINED, n, RUNS_JOINED)) for n in sizes if n > RUNS_JOINED]
    assert count_joins(counts, lanes) == tuple(joins)


@pytest.mark.parametrize(("num_edges", "lanes"), [(600, (6, 6)), (50, (5, 6)), (1800, (12, 6, 6))])
def test_rows_of_one_part_are_cut_by_their_degrees(num_edges, lanes):
    # As many rows have edges at either end: all of 100 but for the sparsest graph.
    ends = np.arange(num_edges) % 100
    graph = complete(ends, np.roll(ends, 1), 100, "regular")
    sizes = lane_sizes(tabulate(graph, Partition.from_assignment(np.zeros(100, int), 1)).manifest)
    assert sizes.lanes == lanes
    levels = (100,) if num_edges == 1800 else ()
    assert sizes.levels == {"receiver": levels, "sender": levels}
    assert sizes.joins == {"receiver": (), "sender": ()}


def test_a_part_with_more_runs_than_its_manifest_says_is_refused():
    """XLA would omit them."""
    ends = np.arange(90) % 9
    hub, even = complete(ends, 0 * ends, 9, "hub"), complete(ends, ends, 9, "even")
    parts = Partition.from_assignment(np.zeros(9, int), 1)
    tables, other = tabulate(hub, parts), tabulate(even, parts)
    short = dataclasses.replace(tables.manifest, lengths=other.manifest.lengths)
    with pytest.raises(ValueError, match=r"a level or a join .* has \d+ rows or runs; expected at"):
        arrays(tables.part(0), placed_shapes(short, "xla"), short)
