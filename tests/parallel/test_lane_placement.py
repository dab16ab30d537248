"""Lanes hold every edge once, and further runs are those of the heavy rows."""

import jax
import numpy as np
import pytest

from jaxgraph.layout.degrees import MOST_LANES, RUNS_JOINED
from jaxgraph.ops.cpu.library import missing
from jaxgraph.ops.xla.lanes import Lanes, LaneTable, RunTable
from jaxgraph.parallel import ShardedGraph, make_mesh, shard
from tests.strategies import complete, random_edges

HUB = MOST_LANES * RUNS_JOINED * 10 + 1
"""A degree of which the runs are joined three times."""


@pytest.fixture(params=[(5, 6), (5, 6, 6, 6)], ids=["one level", "three levels"])
def lanes_of_levels(request, monkeypatch) -> tuple[int, ...]:
    """Lanes that are taken whatever they cost."""
    monkeypatch.setattr("jaxgraph.layout.description.choose_lanes", lambda _: request.param)
    return request.param


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
    """What each row of a table is made of, from what each of its runs is made of."""
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
