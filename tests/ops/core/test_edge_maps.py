"""map_edges: values per edge in slot order."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph import Graph
from jaxgraph.ops.core.edge_maps import map_edges
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.parallel import make_mesh, shard
from jaxgraph.partition.assignment import Partition
from tests.ops.blocks import place_block, shared_shapes
from tests.strategies import SMALL_GRAPHS, complete, random_edges


def both_ends(params: Any, sender: Any, receiver: Any, edge: Any) -> Any:
    return {"sum": params * sender + receiver, "edge": edge}


@jax.jit
def run(block: Any, inputs: Inputs) -> Any:
    return map_edges(block, both_ends, inputs)


@pytest.mark.parametrize("graph", SMALL_GRAPHS, ids=lambda graph: graph.name)
def test_every_edge_gets_its_value_and_nothing_else_one(graph: Graph) -> None:
    placed = place_block(graph, pad_to=shared_shapes())
    rng = np.random.default_rng(0)
    x, r = rng.standard_normal((2, graph.num_nodes, 3)).astype(np.float32)
    weight = rng.standard_normal(graph.num_edges).astype(np.float32)
    inputs = Inputs(jnp.float32(2), placed.rows(x), placed.rows(r), placed.slots(weight))
    found = run(placed.block, inputs)
    np.testing.assert_array_equal(
        placed.edges(found["sum"]), 2 * x[graph.senders] + r[graph.receivers]
    )
    np.testing.assert_array_equal(placed.edges(found["edge"]), weight)


def test_edges_from_other_parts_get_zero() -> None:
    graph = complete(*random_edges(30, 200, seed=4), 30, "two-parts", edge_data=True)
    assert graph.edge_weight is not None
    owner = (np.arange(30) % 2).astype(np.int32)
    parts = Partition(owner, 2, "striped")
    sharded = shard(graph, parts, make_mesh(2), "sar")
    for part in range(2):
        own = jax.tree.map(lambda leaf, part=part: leaf[part], sharded.shards)
        inputs = Inputs(
            jnp.float32(1), jnp.ones(own.num_rows), jnp.ones(own.num_rows), own.edge_weight
        )
        found = run(own.local_block(), inputs)
        inside = (owner[graph.senders] == part) & (owner[graph.receivers] == part)
        count = np.count_nonzero(inside)
        assert 0 < count < np.count_nonzero(owner[graph.receivers] == part)
        np.testing.assert_array_equal(found["sum"], 2.0 * (np.arange(len(found["sum"])) < count))
        assert sorted(found["edge"][:count].tolist()) == sorted(graph.edge_weight[inside].tolist())
        np.testing.assert_array_equal(found["edge"][count:], 0)
