"""Devices with several parts compute the same as devices with one part each."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxgraph as jg
from jaxgraph.parallel import (
    ShardedGraph,
    gather_rows,
    make_mesh,
    part_alone,
    shard,
    spmd,
)
from jaxgraph.partition import partition
from tests.strategies import NUM_FEATURES
from tests.tolerance import assert_close
from tests.training import crooked_graph


@cache
def placed(parts: int, devices: int, mode: str, implementation: str | None = None) -> ShardedGraph:
    graph = crooked_graph(edge_weight=True)
    split = partition(graph, parts, method="hash", seed=1)
    return shard(graph, split, make_mesh(devices), mode, implementation=implementation)


@pytest.mark.slow
def test_one_of_several_parts_alone() -> None:
    sharded, graph = placed(4, 2, "sar"), crooked_graph(edge_weight=True)
    assert graph.nodes is not None
    kernel = jnp.eye(NUM_FEATURES, 3)
    y = spmd(lambda s: jg.layers.gcn_conv({"kernel": kernel}, s, s.nodes), outputs="rows")(sharded)
    expected = gather_rows(y, sharded)
    for index in range(4):
        part = part_alone(sharded, index)
        ends = (part.senders, part.receivers)
        x: Any = tuple(jnp.asarray(graph.nodes[np.asarray(t.node_ids)]) for t in ends)
        rows = np.asarray(jg.layers.gcn_conv({"kernel": kernel}, part, x))
        mask = np.asarray(part.receivers.node_mask)
        ids = np.asarray(part.receivers.node_ids)[mask]
        assert_close(rows[mask], expected[ids], reduction_length=1000)


def test_what_does_not_fit_is_refused() -> None:
    graph = crooked_graph()
    split = partition(graph, 4, method="hash", seed=1)
    with pytest.raises(ValueError, match=r"4 part\(s\) and the mesh 3 device\(s\)"):
        shard(graph, split, make_mesh(3))
    with pytest.raises(ValueError, match="mode='p3' gives every device its own columns"):
        shard(graph, split, make_mesh(2), "p3")
