"""Checks of functional convolutions: against the references, and on columns of features."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.parallel import gather_edges, gather_rows, spmd
from jaxgraph.partition import partition
from tests.oracles.edges import Edges
from tests.strategies import NUM_FEATURES, SMALL_GRAPHS
from tests.tolerance import assert_close, relative_error
from tests.training import crooked_graph, crooked_sharded, oracle_edges

WIDE = NUM_FEATURES + 2
_SPECIAL = ("one-node", "no-edges", "isolated-nodes", "all-self-loops", "repeated-edges", "star-in")
SPECIAL_GRAPHS = [graph for graph in SMALL_GRAPHS if graph.name in _SPECIAL]
TERMS = 2000  # of the longest sum: the highest degree times the features, or the nodes


def draws(seed: int) -> Callable[..., np.ndarray]:
    """A function of a shape that draws normal numbers in float32: a module's own, so that what it
    draws does not depend on the modules that were imported before it."""
    rng = np.random.default_rng(seed)
    return lambda *shape: np.asarray(rng.standard_normal(shape), np.float32)


def check_convolution(
    conv: Callable[..., Any],
    oracle: Callable[..., Any],
    params: dict[str, Any],
    *,
    edge_data: str | None = None,
    constant: bool = False,
    num_parts: int = 3,
) -> None:
    """Values, and gradients of features, parameters and edge data, which is NaN in empty slots.

    Args:
        conv: `(params, shard, x)`.
        oracle: `(params, edges, x)`.
        params: for both.
        edge_data: the data that the edges have, "edge_weight" or "edges", or None.
        constant: whether edge data is no argument: its other uses, such as degrees, are constant.
        num_parts: of the graph.
    """
    fields = [] if edge_data is None or constant else [edge_data]

    def step(params: dict[str, jax.Array], shard: Any) -> Any:
        def loss(x: jax.Array, params: dict[str, jax.Array], data: dict[str, jax.Array]) -> Any:
            y = conv(params, shard.replace(**data), x)
            return shard.sum(jnp.sum(shard.mask_rows(y * adjoint(shard.node_ids, y.shape[1])))), y

        data = {name: _poisoned(getattr(shard, name)) for name in fields}
        (_, y), (of_x, of_params, of_data) = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(
            shard.nodes, params, data
        )
        return (y, of_x), of_params, of_data

    given = {"edge_weight": edge_data == "edge_weight", "edges": edge_data == "edges"}
    graph = crooked_graph(**given)
    sharded = crooked_sharded(num_parts, "hash", "sar", **given)
    outputs = ("rows", "replicated", "edges")
    rows, of_params, of_data = spmd(step, outputs=outputs)(params, sharded)
    y, of_x = (gather_rows(value, sharded) for value in rows)

    doubles = {name: value.astype(np.float64) for name, value in params.items()}
    edges, x = oracle_edges(graph), np.asarray(graph.nodes, np.float64)
    expected, backward = oracle(doubles, edges, x)
    of_y = np.asarray(adjoint(np.arange(graph.num_nodes), expected.shape[1]), np.float64)
    expected_of_x, expected_of_params = backward(of_y)
    assert_close(y, expected, reduction_length=TERMS, name="y")
    assert_close(of_x, expected_of_x, reduction_length=TERMS, name="gradient of x")
    assert of_params.keys() == expected_of_params.keys()
    for name, gradient in expected_of_params.items():
        assert_close(of_params[name], gradient, reduction_length=TERMS, name=name)
    for name, gradient in of_data.items():
        split = partition(graph, num_parts, method="hash", seed=0)
        found = gather_edges(gradient, sharded, graph, split)
        value = lambda edges: (oracle(doubles, edges, x)[0] * of_y).sum()  # noqa: E731
        check_edge_gradient(value, edges, ORACLE_FIELD[name], found)


ORACLE_FIELD = {"edge_weight": "weight", "edges": "features"}


def check_edge_gradient(
    function: Callable[[Edges], float], edges: Edges, field: str, gradient: np.ndarray
) -> None:
    """A gradient of edge data against central differences along some random directions."""
    data, size = getattr(edges, field), 1e-6
    for direction in np.random.default_rng(2).standard_normal((5, *data.shape)):
        ends = [replace(edges, **{field: data + s * direction}) for s in (size, -size)]
        expected = (function(ends[0]) - function(ends[1])) / (2 * size)
        scale = float(np.sqrt((gradient.astype(np.float64) ** 2).sum()))
        assert scale > 0 and abs((gradient * direction).sum() - expected) < 2e-5 * scale, field


def _poisoned(data: jax.Array) -> jax.Array:
    """Edge data with NaN in the slots without an edge, which are 0; no edge's data is."""
    empty = (data == 0).reshape(len(data), -1).all(1)
    return jnp.where(empty.reshape(-1, *(1,) * (data.ndim - 1)), jnp.nan, data)


def adjoint(node_ids: Any, width: int) -> Any:
    """A gradient [rows, width] of the outputs, by the nodes' ids."""
    return jnp.sin(1.0 + node_ids[:, None] * jnp.arange(1, width + 1) / width)


def columns_match_rows(conv: Callable[..., Any], params: dict[str, Any], **edge_data: bool) -> None:
    """The same values and parameter gradients from columns of features."""

    def step(params: dict[str, jax.Array], shard: Any) -> Any:
        def loss(params: dict[str, jax.Array], x: Any) -> jax.Array:
            return shard.sum(jnp.sum(shard.mask_rows(jnp.sin(conv(params, shard, x)))))

        value_and_grad = jax.value_and_grad(loss)
        rows = shard.to_nodes(shard.nodes)
        return value_and_grad(params, rows), value_and_grad(params, shard.nodes)

    rows, columns = spmd(step)(params, crooked_sharded(4, "hash", "p3-sar", **edge_data))
    for mine, theirs in zip(jax.tree.leaves(columns), jax.tree.leaves(rows), strict=True):
        assert relative_error(mine, theirs) < 2e-5


def refused(
    error: type[Exception], message: str, function: Callable[[Any], Any], **edge_data: bool
) -> None:
    """Checks that a function of a shard is refused while it is traced."""
    with pytest.raises(error, match=message):
        spmd(function, outputs="rows")(crooked_sharded(2, "hash", "sar", **edge_data))
