"""Checks of functional convolutions: against the references, and on columns of features."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.parallel import gather_rows, spmd
from tests.strategies import NUM_FEATURES, SMALL_GRAPHS
from tests.tolerance import assert_close, relative_error
from tests.training import crooked_graph, crooked_sharded, oracle_edges

WIDE = NUM_FEATURES + 2
_SPECIAL = ("one-node", "no-edges", "isolated-nodes", "all-self-loops", "repeated-edges", "star-in")
SPECIAL_GRAPHS = [graph for graph in SMALL_GRAPHS if graph.name in _SPECIAL]
TERMS = 2000  # of the longest sum: the highest degree times the features, or the nodes
_RNG = np.random.default_rng(8)


def normal(*shape: int) -> np.ndarray:
    """Random numbers in float32."""
    return np.asarray(_RNG.standard_normal(shape), np.float32)


def check_convolution(
    conv: Callable[..., Any],
    oracle: Callable[..., Any],
    params: dict[str, Any],
    *,
    edge_weight: bool = False,
    num_parts: int = 3,
) -> None:
    """Values, and gradients of features and parameters.

    Args:
        conv: `(params, shard, x)`.
        oracle: `(params, edges, x)`.
        params: for both.
        edge_weight: whether the edges have weights.
        num_parts: of the graph.
    """

    def step(params: dict[str, jax.Array], shard: Any) -> Any:
        def loss(x: jax.Array, params: dict[str, jax.Array]) -> Any:
            y = conv(params, shard, x)
            return shard.sum(jnp.sum(shard.mask_rows(y * adjoint(shard.node_ids, y.shape[1])))), y

        (_, y), (of_x, of_params) = jax.value_and_grad(loss, (0, 1), has_aux=True)(
            shard.nodes, params
        )
        return (y, of_x), of_params

    graph = crooked_graph(edge_weight=edge_weight)
    sharded = crooked_sharded(num_parts, "hash", "sar", edge_weight)
    rows, of_params = spmd(step, outputs=("rows", "replicated"))(params, sharded)
    y, of_x = (gather_rows(value, sharded) for value in rows)

    doubles = {name: value.astype(np.float64) for name, value in params.items()}
    expected, backward = oracle(doubles, oracle_edges(graph), np.asarray(graph.nodes, np.float64))
    of_y = np.asarray(adjoint(np.arange(graph.num_nodes), expected.shape[1]), np.float64)
    expected_of_x, expected_of_params = backward(of_y)
    assert_close(y, expected, reduction_length=TERMS, name="y")
    assert_close(of_x, expected_of_x, reduction_length=TERMS, name="gradient of x")
    assert of_params.keys() == expected_of_params.keys()
    for name, gradient in expected_of_params.items():
        assert_close(of_params[name], gradient, reduction_length=TERMS, name=name)


def adjoint(node_ids: Any, width: int) -> Any:
    """A gradient [rows, width] of the outputs, by the nodes' ids."""
    return jnp.sin(1.0 + node_ids[:, None] * jnp.arange(1, width + 1) / width)


def columns_match_rows(conv: Callable[..., Any], params: dict[str, Any]) -> None:
    """The same values and parameter gradients from columns of features."""

    def step(params: dict[str, jax.Array], shard: Any) -> Any:
        def loss(params: dict[str, jax.Array], x: Any) -> jax.Array:
            return shard.sum(jnp.sum(shard.mask_rows(jnp.sin(conv(params, shard, x)))))

        value_and_grad = jax.value_and_grad(loss)
        rows = shard.to_nodes(shard.nodes)
        return value_and_grad(params, rows), value_and_grad(params, shard.nodes)

    rows, columns = spmd(step)(params, crooked_sharded(4, "hash", "p3-sar"))
    for mine, theirs in zip(jax.tree.leaves(columns), jax.tree.leaves(rows), strict=True):
        assert relative_error(mine, theirs) < 2e-5


def refused(error: type[Exception], message: str, function: Callable[[Any], Any]) -> None:
    """Checks that a function of a shard is refused while it is traced."""
    with pytest.raises(error, match=message):
        spmd(function, outputs="rows")(crooked_sharded(2, "hash", "sar"))
