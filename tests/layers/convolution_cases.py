"""Checks of functional convolutions: against the references, and on columns of features."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgraph.parallel import ShardedGraph, gather_edges, gather_rows, make_mesh, shard, spmd
from jaxgraph.partition import partition
from tests.layers.neighborhood_cases import Case, doubles
from tests.oracles.tape import differentiate
from tests.tolerance import assert_close, relative_error
from tests.training import crooked_graph, crooked_sharded, mode_options, oracle_edges

TERMS = 2000
ORACLE_FIELD = {"edge_weight": "weight", "edges": "features"}


def check_layers(
    cases: Mapping[str, Case], schedule: str = "sar", num_parts: int = 3, data: str | None = None
) -> None:
    """Values, and gradients of x, of parameters and of edge data, by one program for all cases.

    Rows of padding, and edge data of slots without an edge, are NaN.

    Args:
        cases: layers by name.
        schedule: a mode of `tests.training`, or "several": twice as many parts as devices.
        num_parts: of the graph.
        data: the data that edges have, "edge_weight" or "edges".
    """
    graph = crooked_graph(edge_weight=data == "edge_weight", edges=data == "edges")
    devices = num_parts // 2 if schedule == "several" else num_parts
    split = partition(graph, num_parts, method="hash", seed=0)
    options = mode_options("sar" if schedule == "several" else schedule)
    sharded = shard(graph, split, make_mesh(devices), **options)

    def run(name: str, params: Any, own: Any) -> Any:
        rows = own.to_nodes(own.nodes)
        x = jnp.where(own.node_mask[:, None], rows, jnp.nan)
        given = {} if data is None else {data: _poisoned(getattr(own, data))}

        def loss(x: jax.Array, params: Any, given: Any) -> Any:
            y = cases[name].conv(params, own.replace(**given) if given else own, x)
            return own.sum(jnp.sum(own.mask_rows(y * adjoint(own.node_ids, y.shape[1])))), y

        (_, y), (of_x, of_params, of_data) = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(
            x, params, given
        )
        return (own.mask_rows(y), of_x), of_params, of_data

    def step(all_params: Any, own: Any) -> Any:
        found = {name: run(name, params, own) for name, params in all_params.items()}
        return tuple({name: each[at] for name, each in found.items()} for at in range(3))

    all_params = {name: case.params for name, case in cases.items()}
    outputs = ("rows", "replicated", "edges")
    rows, of_params, of_data = spmd(step, outputs=outputs)(all_params, sharded)
    x = np.asarray(graph.nodes, np.float64)
    for name, case in cases.items():
        y, backward = differentiate(case.oracle, doubles(case.params), oracle_edges(graph), x)
        of_y = np.asarray(adjoint(np.arange(len(y)), y.shape[1]), np.float64)
        expected, of_edges, of_x = backward(of_y)
        pairs = [("y", rows[name][0], y), ("gradient of x", rows[name][1], of_x)]
        found = {part: (gather_rows(mine, sharded), other) for part, mine, other in pairs}
        assert of_params[name].keys() == expected.keys()
        found |= {part: (of_params[name][part], other) for part, other in expected.items()}
        for field, slots in of_data[name].items():
            of_graph = gather_edges(slots, sharded, graph, split)
            found[field] = of_graph, getattr(of_edges, ORACLE_FIELD[field])
        for part, (actual, other) in found.items():
            assert_close(actual, other, reduction_length=case.terms, name=f"{name}: {part}")


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
    error: type[Exception],
    message: str,
    function: Callable[[Any], Any],
    sharded: ShardedGraph | None = None,
    **edge_data: bool,
) -> None:
    """Checks that a function of a shard is refused while it is traced."""
    given = crooked_sharded(2, "hash", "sar", **edge_data) if sharded is None else sharded
    with pytest.raises(error, match=message):
        spmd(function, outputs="rows")(given)
