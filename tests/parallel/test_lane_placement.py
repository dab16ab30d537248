"""Lanes hold every edge once, and further runs are those of the heavy rows."""

import jax
import numpy as np
import pytest

from jaxgraph.ops.cpu.library import missing
from jaxgraph.ops.lanes import Lanes, LaneTable
from jaxgraph.parallel import ShardedGraph, make_mesh, shard
from jaxgraph.partition.degrees import LONGEST_ALONE
from tests.strategies import complete, random_edges

HUB = LONGEST_ALONE * 3 + 1


def placed(implementation: str) -> ShardedGraph:
    """A graph with a receiver of high degree, rows without edges and a repeated edge."""
    senders, receivers = random_edges(30, 60, seed=2)
    into = np.full(HUB, 7)
    to_hub, others = np.append(receivers, into), np.append(senders, np.arange(HUB) % 30)
    graph = complete(others, to_hub, 40, "hub")
    return shard(graph, None, make_mesh(1), implementation=implementation)


def pairs(table: LaneTable) -> np.ndarray:
    """Rows, slots and neighbors of all edges of a table, [edges, 3]."""
    lanes = np.arange(len(table.neighbors))[:, None]
    has = lanes < table.lengths
    shape = has.shape
    columns = (np.broadcast_to(table.rows, shape), table.starts + lanes, table.neighbors)
    return np.stack([np.asarray(column)[has] for column in columns], axis=1)


@pytest.mark.parametrize("side", ["receiver", "sender"])
def test_lanes_hold_every_edge_once(side):
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


def test_further_runs_are_listed_by_heavy_row():
    edges = jax.tree.map(lambda leaf: np.asarray(leaf[0]), placed("xla").shards).incoming
    lanes = edges.by_receiver.lanes
    assert isinstance(lanes, Lanes)
    assert lanes.counts[0] >= 3 and (np.diff(lanes.counts) <= 0).all()
    for row in np.flatnonzero(lanes.heavy >= 0):
        first, count = lanes.firsts[lanes.heavy[row]], lanes.counts[lanes.heavy[row]]
        np.testing.assert_array_equal(lanes.runs.rows[first : first + count], row)
    assert lanes.counts.sum() == (lanes.runs.lengths > 0).sum()


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_other_kernels_have_no_lanes():
    assert placed("cpu").shards.incoming.by_receiver.lanes is None
