"""map_edges: values per edge in slot order."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph import Graph
from jaxgraph.ops.edge_maps import map_edges
from jaxgraph.ops.messages import Inputs
from tests.ops.blocks import place_block, shared_shapes
from tests.strategies import SMALL_GRAPHS


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
