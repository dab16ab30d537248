"""Convolutions as functions: columns of features, special graphs, and what is refused.

Their values and gradients are a law, `tests/law/test_layers.py`.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgraph import Graph, nn, transforms
from jaxgraph.layers import (
    appnp_propagate,
    gat_conv,
    pna_conv,
    sage_conv,
    sgc_conv,
    transformer_conv,
)
from jaxgraph.parallel import bipartite, gather_rows, make_mesh, shard, spmd
from jaxgraph.parallel.whole_graph import on_whole_graph
from jaxgraph.partition import Partition
from tests.layers.convolution_cases import TERMS, adjoint, columns_match_rows, refused
from tests.layers.neighborhood_cases import CASES, EDGE_FEATURES, FEATURED, doubles, of
from tests.oracles import convolutions
from tests.oracles.edges import Edges
from tests.oracles.tape import differentiate
from tests.strategies import NUM_FEATURES, SMALL_GRAPHS, random_edges, skewed_assignment
from tests.tolerance import assert_close
from tests.training import crooked_features, crooked_graph, crooked_sharded, oracle_edges

_SPECIAL = ("one-node", "no-edges", "isolated-nodes", "all-self-loops", "repeated-edges", "star-in")
SPECIAL_GRAPHS = [graph for graph in SMALL_GRAPHS if graph.name in _SPECIAL]
PLAIN = {
    **{name: CASES[name] for name in ("gcn-narrow", "sage-mean-narrow", "gat")},
    **{f"{name}-no-loops": of(name, add_self_loops=False) for name in ("gcn", "gat")},
}
OF_COLUMNS = {
    **{name: CASES[name] for name in ("gcn-wide", "sage-mean-wide", "sage-max", "gin")},
    "sage-min": of("sage", reduce="min"),
    "gat": of("gat", dropout=True),
    **{name: CASES[name] for name in ("gatv2", "transformer", "pna")},
    **{f"{name}-edges": case for name, case in FEATURED.items()},
    "sgc": of("sgc"),
}


@pytest.mark.expensive
@pytest.mark.parametrize("name", OF_COLUMNS)
def test_columns_give_what_rows_give(name: str) -> None:
    weighted, featured = name in ("sage-mean-wide", "sage-max"), name.endswith("edges")
    case = OF_COLUMNS[name]
    columns_match_rows(case.conv, case.params, edge_weight=weighted, edges=featured)


@pytest.mark.expensive
@pytest.mark.parametrize("featured", [False, True])
@pytest.mark.parametrize("graph", SPECIAL_GRAPHS, ids=lambda graph: graph.name)
def test_special_graphs(graph: Any, featured: bool) -> None:
    """One part is empty, another has half of the graph; features of loops without edges are 0."""
    cases = FEATURED if featured else PLAIN
    if featured:
        rng = np.random.default_rng(1)
        drawn = rng.standard_normal((graph.num_edges, EDGE_FEATURES), np.float32)
        graph = graph.replace(edges=drawn)

    def step(own: Any) -> dict[str, jax.Array]:
        return {name: case.conv(case.params, own, own.nodes) for name, case in cases.items()}

    parts = Partition(skewed_assignment(graph.num_nodes, 3), 3, "skewed")
    sharded = shard(graph, parts, make_mesh(3))
    edges, x = oracle_edges(graph), graph.nodes.astype(np.float64)
    for name, actual in spmd(step, outputs="rows")(sharded).items():
        expected = cases[name].oracle(doubles(cases[name].params), edges, x)
        assert_close(gather_rows(actual, sharded), expected, reduction_length=300, name=name)


def test_integers_are_weighted_as_numbers() -> None:
    case, graph = CASES["sage-mean-wide"], crooked_graph(edge_weight=True)
    x = np.arange(graph.num_nodes * NUM_FEATURES).reshape(graph.num_nodes, -1) % 7
    expected = case.oracle(doubles(case.params), oracle_edges(graph), x.astype(np.float64))
    assert_close(case.conv(case.params, graph, x), expected, reduction_length=TERMS)


def test_weights_that_a_shard_has_lost() -> None:
    """Rows are summed without them, and columns, whose edges have them, are refused."""
    case = CASES["sage-mean-wide"]

    def lost(shard: Any) -> jax.Array:
        return case.conv(case.params, shard.replace(edge_weight=None), shard.nodes)

    plain = spmd(lambda s: case.conv(case.params, s, s.nodes), outputs="rows")
    rows = spmd(lost, outputs="rows")(crooked_sharded(2, "hash", "sar", True))
    assert_close(rows, plain(crooked_sharded(2, "hash", "sar")), reduction_length=TERMS)
    columns = crooked_sharded(4, "hash", "p3-sar", True)
    refused(ValueError, "replace no edge data of the shard", lost, columns)


def test_weights_that_cancel_leave_the_bias() -> None:
    """Degrees that are not positive have no inverse root."""
    graph, case = crooked_graph(edge_weight=True), PLAIN["gcn-no-loops"]
    graph = graph.replace(edge_weight=-np.asarray(graph.edge_weight))
    actual = case.conv(case.params, graph, graph.nodes)
    np.testing.assert_array_equal(actual, np.broadcast_to(case.params["bias"], actual.shape))


def test_gradients_of_pna_where_all_messages_are_equal() -> None:
    """Of one edge, of equal ones and of none: finite, and those of the reference."""
    senders, receivers = np.array([0, 0, 0, 2]), np.array([1, 1, 2, 3])
    graph, case = Graph(senders=senders, receivers=receivers, num_nodes=20), of("pna", delta=0.7)
    x = np.random.default_rng(8).standard_normal((20, NUM_FEATURES), np.float32)
    edges = Edges.of(senders, receivers, 20)
    y, backward = differentiate(case.oracle, doubles(case.params), edges, x)
    of_params, _, of_x = backward(np.ones(y.shape))
    total = lambda params, x: jnp.sum(case.conv(params, graph, x))  # noqa: E731
    params, found = jax.grad(total, (0, 1))(case.params, jnp.asarray(x))
    for name, gradient in (of_params | {"x": of_x}).items():
        actual = (params | {"x": found})[name]
        assert_close(actual, gradient, reduction_length=10_000, name=name)


def test_the_mean_of_the_degrees_logarithms() -> None:
    graph = Graph(senders=np.array([0, 1, 2]), receivers=np.array([1, 1, 0]), num_nodes=4)
    delta = transforms.mean_log_degree(graph)
    np.testing.assert_allclose(delta, (np.log(2) + np.log(3)) / 4, rtol=1e-12)
    assert nn.PNAConv(3, 2, delta=delta, rngs=nnx.Rngs(0)).delta == delta
    none = np.zeros(0, np.int32)
    with pytest.raises(ValueError, match="graph has no edge"):
        transforms.mean_log_degree(Graph(senders=none, receivers=none, num_nodes=2))


def test_weights_of_appnp_that_are_learned_have_their_gradient() -> None:
    """Of the weights along edges; degrees are fixed."""
    graph, options = crooked_graph(edge_weight=True), {"steps": 3, "alpha": 0.2}
    whole, oracle = on_whole_graph(graph), partial(convolutions.appnp, **options)
    y, backward = differentiate(oracle, oracle_edges(graph), crooked_features())
    of_y = np.asarray(adjoint(np.arange(len(y)), y.shape[1]), np.float64)
    of_edges, of_x = backward(of_y)

    @jax.jit
    def loss(x: jax.Array, weights: jax.Array) -> jax.Array:
        weight = whole.by_slot(weights)
        given = whole.shard.with_edges(edge_weight=weight)
        return jnp.sum(appnp_propagate(given, x, steps=3, alpha=0.2) * of_y)

    found = jax.grad(loss, (0, 1))(jnp.asarray(graph.nodes), jnp.asarray(graph.edge_weight))
    for mine, expected in zip(found, (of_x, of_edges.weight), strict=True):
        assert_close(mine, expected, reduction_length=TERMS)


def test_the_backward_of_appnp_holds_the_rows_of_one_step() -> None:
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


PNA, TRANSFORMER = of("pna", delta=1.0).params, of("transformer").params
ROOTLESS = {n: v for n, v in TRANSFORMER.items() if not n.startswith("skip")}
REFUSED: list[tuple[Any, dict[str, Any], dict[str, Any], str]] = [
    (sage_conv, CASES["sage-max"].params, {"reduce": "median"}, "'median'.*sum, mean, max, min"),
    (gat_conv, CASES["gat"].params, {"dropout": 0.5}, "attention dropout needs a random key"),
    (pna_conv, PNA, {"aggregators": ("median",)}, r"aggregators is \('median',\).*sum, mean"),
    (pna_conv, PNA, {"aggregators": ("mean", "mean")}, "each once"),
    (pna_conv, PNA, {"scalers": ()}, r"scalers is \(\).*identity"),
    (pna_conv, PNA, {"delta": 0.0}, "delta is 0.0"),
    (pna_conv, PNA, {"aggregators": ("mean",)}, r"kernel has shape \(24, 3\); expected 6 rows"),
    (transformer_conv, TRANSFORMER, {"num_heads": 4}, "num_heads is 4, .* 6 columns"),
    (transformer_conv, TRANSFORMER, {"dropout": 0.5}, "needs a random key"),
    (transformer_conv, ROOTLESS | {"gate": TRANSFORMER["query_kernel"]}, {}, "no skip_kernel"),
    (appnp_propagate, {}, {"steps": 0}, "steps is 0"),
    (sgc_conv, CASES["gcn-narrow"].params, {"steps": 0}, "steps is 0"),
    (appnp_propagate, {}, {"alpha": 1.5}, r"alpha is 1.5.*\[0, 1\]"),
    (appnp_propagate, {}, {"dropout": 1.0}, "dropout is 1.0"),
    (appnp_propagate, {}, {"dropout": 0.5}, "needs a random key"),
]


@pytest.mark.parametrize(("function", "params", "options", "message"), REFUSED)
def test_what_does_not_fit_is_refused(
    function: Any, params: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    given = (params,) if params else ()
    defaults: dict[str, Any] = {"delta": 1.0} if function is pna_conv else {}
    run = lambda own: function(*given, own, own.nodes, **defaults | options)  # noqa: E731
    refused(ValueError, message, run)


def test_a_gate_without_a_root_is_refused() -> None:
    with pytest.raises(ValueError, match="pass root_weight=True"):
        nn.TransformerConv(4, 3, beta=True, root_weight=False, rngs=nnx.Rngs(0))


def test_appnp_refuses_two_tables_and_columns() -> None:
    block = bipartite([0], [1], num_senders=2, num_receivers=2)
    with pytest.raises(ValueError, match="given a Bipartite; expected a graph or the shard"):
        appnp_propagate(block, jnp.ones((2, 3)))  # type: ignore[arg-type]
    columns = crooked_sharded(4, "hash", "p3-sar")
    message = "appnp_propagate needs all features of a node"
    refused(TypeError, message, lambda own: appnp_propagate(own, own.nodes), columns)
