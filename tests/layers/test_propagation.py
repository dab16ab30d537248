"""Propagation without parameters: learned weights, memory, and what is refused."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph import Graph
from jaxgraph.layers import appnp_propagate
from jaxgraph.parallel import bipartite
from jaxgraph.parallel.whole_graph import on_whole_graph
from tests.layers.convolution_cases import TERMS, adjoint, columns_match_rows, refused
from tests.oracles import convolutions
from tests.strategies import random_edges
from tests.tolerance import assert_close
from tests.training import crooked_features, crooked_graph, oracle_edges


def test_weights_that_are_learned_have_their_gradient() -> None:
    """Of the weights along edges; degrees are fixed."""
    graph = crooked_graph(edge_weight=True)
    whole = on_whole_graph(graph)
    y, backward = convolutions.appnp(oracle_edges(graph), crooked_features(), steps=3, alpha=0.2)
    of_y = np.asarray(adjoint(np.arange(len(y)), y.shape[1]), np.float64)
    of_x, of_weights = backward(of_y)

    @jax.jit
    def loss(x: jax.Array, weights: jax.Array) -> jax.Array:
        weight = whole.by_slot(weights)
        shard = replace(whole.shard, edge_weight=weight, follows_from=None)
        return jnp.sum(appnp_propagate(shard, x, steps=3, alpha=0.2) * of_y)

    given = jnp.asarray(graph.nodes), jnp.asarray(graph.edge_weight)
    found = jax.grad(loss, (0, 1))(*given)
    assert_close(found[0], of_x, reduction_length=TERMS)
    expected = of_weights["weight"][: graph.num_edges]
    assert_close(found[1], expected, reduction_length=TERMS)


def test_the_backward_holds_the_rows_of_one_step() -> None:
    nodes, width = 2000, 32
    senders, receivers = random_edges(nodes, 4 * nodes, seed=5)
    graph = Graph(senders=senders, receivers=receivers, num_nodes=nodes)

    def temporary(steps: int) -> int:
        def loss(x: jax.Array) -> jax.Array:
            y = appnp_propagate(graph, x, steps=steps, dropout=0.5, key=jax.random.key(0))
            return jnp.sum(jnp.sin(y))

        compiled = jax.jit(jax.grad(loss)).lower(jnp.ones((nodes, width))).compile()
        analysis: Any = compiled.memory_analysis()
        return analysis.temp_size_in_bytes

    few, many = temporary(2), temporary(20)
    assert many < few + nodes * width * 4, (few, many)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps is 0; expected a positive integer"),
        ({"alpha": 1.5}, r"alpha is 1.5; expected a number in \[0, 1\]"),
        ({"dropout": 1.0}, "dropout is 1.0; expected a probability"),
        ({"dropout": 0.5}, "dropout needs a random key"),
    ],
)
def test_what_is_out_of_range_is_refused(options: dict[str, Any], message: str) -> None:
    refused(ValueError, message, lambda shard: appnp_propagate(shard, shard.nodes, **options))


def test_two_tables_and_columns_are_refused() -> None:
    block = bipartite([0], [1], num_senders=2, num_receivers=2)
    with pytest.raises(ValueError, match="given a Bipartite; expected a graph or the shard"):
        appnp_propagate(block, jnp.ones((2, 3)))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="appnp_propagate needs all features of a node"):
        columns_match_rows(lambda params, shard, x: appnp_propagate(shard, x), {})
