"""Layers, functions and training on a plain graph: one device, in the graph's own order."""

import gc
import re
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxgraph as jg
from jaxgraph.parallel.whole_graph import on_whole_graph, sharded_on_one
from tests.layers.neighborhood_cases import CASES, doubles
from tests.oracles.edges import Edges
from tests.oracles.tape import differentiate
from tests.strategies import complete, random_edges
from tests.tolerance import assert_close

NODES, EDGES, WIDTH = 24, 130, 5


def drawn(*, edge_data: bool = False) -> jg.Graph:
    senders, receivers = random_edges(NODES, EDGES, seed=3)
    receivers[:40] = 5
    senders[50:55], receivers[50:55] = 7, 9
    return complete(senders, receivers, NODES + 3, "hub", edge_data=edge_data)


GRAPH, WEIGHTED = drawn(), drawn(edge_data=True).replace(edges=None, edge_type=None)
X = np.asarray(GRAPH.nodes)


def on_two_parts(function: Any, *arguments: Any) -> np.ndarray:
    """A function of a shard on two devices, as rows in the graph's order."""
    parts = jg.partition.partition(GRAPH, 2, method="hash", seed=1)
    sharded = jg.parallel.shard(GRAPH, parts, jg.parallel.make_mesh(2))
    rows = jg.parallel.spmd(function, outputs="rows")(*arguments, sharded)
    return np.asarray(jg.parallel.gather_rows(rows, sharded))


MODULES: dict[str, Any] = {
    "gcn": lambda: jg.nn.GCNConv(X.shape[1], 4, rngs=nnx.Rngs(0)),
    "transformer": lambda: jg.nn.TransformerConv(X.shape[1], 4, beta=True, rngs=nnx.Rngs(0)),
    "linear": lambda: jg.nn.Linear(X.shape[1], 4, rngs=nnx.Rngs(0)),
    "batch norm": lambda: jg.nn.BatchNorm(X.shape[1]),
    "layer norm": lambda: jg.nn.LayerNorm(X.shape[1]),
}


@pytest.mark.expensive
@pytest.mark.parametrize("name", MODULES)
def test_modules_equal_two_devices(name: str) -> None:
    module = MODULES[name]()
    expected = on_two_parts(lambda own: module(own, own.nodes))
    assert_close(module(GRAPH, GRAPH.nodes), expected)
    assert_close(jax.jit(lambda x: module(GRAPH, x))(X), expected)


@pytest.mark.expensive
@pytest.mark.parametrize("name", ["gcn-narrow", "sage-mean-wide", "sage-max", "gat", "gatv2"])
def test_functions_and_gradients_equal_the_oracle(name: str) -> None:
    case = CASES[name]
    params = {name: jnp.asarray(value, jnp.float32) for name, value in case.params.items()}
    x = np.asarray(GRAPH.nodes)
    edges = Edges.of(GRAPH.senders, GRAPH.receivers, GRAPH.num_nodes)
    exact = doubles(case.params), edges, x.astype(np.float64)
    expected, backward = differentiate(case.oracle, *exact)
    weights = np.random.default_rng(0).standard_normal(expected.shape)

    def loss(params: Any, x: Any) -> Any:
        y = case.conv(params, GRAPH, x)
        return jnp.sum(y * weights), y

    (_, y), gradients = jax.value_and_grad(loss, (0, 1), has_aux=True)(params, jnp.asarray(x))
    assert_close(y, expected, reduction_length=EDGES)
    of_params, _, of_x = backward(weights)
    assert_close(gradients[1], of_x, reduction_length=EDGES)
    for parameter, exact in of_params.items():
        assert_close(gradients[0][parameter], exact, reduction_length=WIDTH * EDGES)


@pytest.mark.slow
def test_edges_are_in_the_graphs_order() -> None:
    weight, kernel = np.asarray(WEIGHTED.edge_weight), np.array([[1.0], [2.0]], np.float32)
    s, r = WEIGHTED.senders, WEIGHTED.receivers
    expected = np.zeros((WEIGHTED.num_nodes, 2))
    np.add.at(expected, r, np.tanh(X[s, :2]) * weight[:, None])

    def scaled(s: Any, r: Any, e: Any) -> Any:
        return jnp.tanh(s[:, :2]) * e[:, None]

    assert_close(jg.parallel.propagate(WEIGHTED, scaled, X, edge=weight), expected)
    ends = jg.parallel.edge_messages(WEIGHTED, lambda s, r, e: (s - r)[:, :2] @ kernel, X, X)
    assert_close(ends, (X[s] - X[r])[:, :2] @ kernel)
    kept = jg.parallel.keep_edges(WEIGHTED, jax.random.key(0), 0.5)
    assert kept.shape == (WEIGHTED.num_edges,) and 0 < int(kept.sum()) < WEIGHTED.num_edges
    of_weight = jax.grad(
        lambda w: jnp.sum(jg.parallel.propagate(WEIGHTED, scaled, X, edge=w)[:, 1])
    )(jnp.asarray(weight))
    assert_close(of_weight, np.tanh(X[s, 1]))


@pytest.mark.slow
def test_a_graph_is_placed_once_and_let_go() -> None:
    conv = MODULES["gcn"]()

    def place() -> Any:
        graph = drawn()
        with jax.checking_leaks():
            jax.jit(lambda x: conv(graph, x))(X)
        assert on_whole_graph(graph) is on_whole_graph(graph)
        assert sharded_on_one(graph) is sharded_on_one(graph)
        assert on_whole_graph(graph) is not on_whole_graph(graph.replace(name="other"))
        return weakref.ref(on_whole_graph(graph))

    placed = place()
    gc.collect()
    assert placed() is None


def test_what_does_not_fit_is_refused() -> None:
    conv, x = MODULES["gcn"](), jnp.asarray(X)
    with pytest.raises(ValueError, match=r"expected one row per node of the shard, \[27,"):
        conv(GRAPH, x[:5])
    with pytest.raises(
        ValueError, match=r"^edge has shape \(3,\); expected one row for .* 130 edges"
    ):
        jg.parallel.propagate(GRAPH, lambda s, r, e: e, edge=np.ones(3, np.float32))
    with pytest.raises(ValueError, match=r"in a function that|pass the shard: layer\(shard, x\)"):
        on_two_parts(lambda own: conv(GRAPH, own.nodes))
    for transform in (jax.jit, jax.grad, jax.vmap):
        with pytest.raises(ValueError, match="let the function close over it"):
            transform(lambda graph: conv(graph, x))(GRAPH)


MISTAKES: dict[str, tuple[Any, str]] = {
    "no receiver": (lambda s, r, e: s - r, "not given, receiver=; .*propagate"),
    "all edges": (lambda s, r, e: s * np.ones((EDGES, 1)), r"\(130, 1\), .*as edge="),
    "all nodes": (lambda s, r, e: s * X, "pass the array as sender="),
    "a number": (lambda s, r, e: s * e, r"multiply by e\[:, None\]"),
}


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize("run", [jg.parallel.propagate, jg.parallel.edge_messages])
def test_an_error_of_a_message_function_is_noted_with_its_cause(name: str, run: Any) -> None:
    function, note = MISTAKES[name]
    with pytest.raises((TypeError, ValueError)) as error:
        run(GRAPH, function, X, edge=np.ones(EDGES, np.float32))
    notes = error.value.__notes__
    assert re.search(r"with sender float32\[16, \d+\], receiver None, edge float32\[16\]", notes[0])
    assert re.search(note, notes[1]), notes
    with pytest.raises(ValueError, match=r"sender is a list of numbers.*jnp\.asarray\(sender\)"):
        run(GRAPH, lambda s, r, e: s, [1.0, 2.0])
