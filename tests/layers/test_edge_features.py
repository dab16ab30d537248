"""Layers that read features of edges, and the coefficients of attention."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgraph import nn
from jaxgraph.layers import attention_weights
from jaxgraph.layers.attention import gat_stages, gatv2_stages
from jaxgraph.layers.convolutions import sage_stages
from jaxgraph.parallel import gather_edges, gather_rows, make_mesh, shard, spmd
from jaxgraph.partition import partition
from tests.layers.convolution_cases import TERMS, refused
from tests.layers.neighborhood_cases import (
    CASES,
    EDGE_FEATURES,
    FEATURED,
    HEADS,
    OUT,
    Case,
    doubles,
)
from tests.oracles import convolutions
from tests.oracles.edge_ops import edge_softmax
from tests.oracles.edges import Edges
from tests.oracles.tape import differentiate
from tests.strategies import NUM_FEATURES, complete
from tests.tolerance import assert_close
from tests.training import crooked_graph, crooked_sharded, oracle_edges

every_layer = pytest.mark.parametrize("name", FEATURED)


@every_layer
def test_what_does_not_fit_is_refused(name: str) -> None:
    case, layer = FEATURED[name], f"{name}_conv"
    params = case.params
    with_params = lambda params: lambda s: case.conv(params, s, s.nodes)  # noqa: E731
    none = rf"{layer} maps 2 edge features, and the graph has none\. .*\[num_edges, 2\]"
    refused(ValueError, none, with_params(params))
    wide = params | {"edge_kernel": np.zeros((3, *params["edge_kernel"].shape[1:]), np.float32)}
    width = rf"{layer} maps 3 edge features, .* edge_features=2"
    refused(ValueError, width, with_params(wide), edges=True)
    weights = f"{layer} does not use edge_weight of the graph; GCN, GraphSAGE and GIN use"
    refused(ValueError, weights, with_params(params), edges=True, edge_weight=True)
    without = {name: value for name, value in params.items() if "edge" not in name}
    if name != "gine":
        ignored = f"{layer} does not use edges of the graph; GAT, .* edge_features=2"
        refused(ValueError, ignored, with_params(without), edges=True)


COEFFICIENTS: dict[str, tuple[Any, Case, dict[str, Any]]] = {
    "gat": (gat_stages, FEATURED["gat"], {}),
    "gat-plain": (gat_stages, CASES["gat"], {}),
    "gatv2": (gatv2_stages, FEATURED["gatv2"], {}),
    "gatv2-plain": (gatv2_stages, CASES["gatv2"], {"add_self_loops": False}),
}


def coefficients(name: str, params: Any, edges: Edges, x: Any) -> Any:
    """alpha [edges, heads] in float64, of the edges without added self-loops."""
    count, shape = len(edges.senders), (len(x), HEADS, OUT)
    if COEFFICIENTS[name][2].get("add_self_loops", True):
        edges = edges.with_missing_self_loops()
    if name.startswith("gatv2"):
        ends = [
            (x @ params[f"{end}_kernel"] + params[f"{end}_bias"]).reshape(*shape)
            for end in ("sender", "receiver")
        ]
        logits = convolutions.gatv2_logits(params, edges, *ends)
    else:
        logits = convolutions.gat_logits(params, edges, (x @ params["kernel"]).reshape(*shape))
    return edge_softmax(edges, logits)[:count]


def weights_of(name: str, params: Any, graph: Any, x: Any) -> jax.Array:
    make, _, options = COEFFICIENTS[name]
    return attention_weights(make(params, **options), params, graph, x)


@pytest.mark.expensive
@pytest.mark.parametrize("name", COEFFICIENTS)
def test_coefficients_of_attention(name: str) -> None:
    """In the graph's order, and the gradients of a sum of them."""
    params = COEFFICIENTS[name][1].params
    graph = crooked_graph(edges="edge_kernel" in params)
    weights = np.sin(np.arange(graph.num_edges * HEADS)).reshape(-1, HEADS)

    @jax.jit
    def total(params: Any) -> Any:
        found = weights_of(name, params, graph, graph.nodes)
        return (found * weights).sum(), found

    (_, found), gradients = jax.value_and_grad(total, has_aux=True)(params)
    edges, x = oracle_edges(graph), np.asarray(graph.nodes, np.float64)
    expected, backward = differentiate(coefficients, name, doubles(params), edges, x)
    assert_close(found, expected, reduction_length=TERMS)
    for part, exact in backward(weights)[1].items():
        if part != "bias":
            assert_close(gradients[part], exact, reduction_length=TERMS, name=part)


@pytest.mark.expensive
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("gat", "sar"),
        ("gatv2-plain", "domain"),
        pytest.param("gat-plain", "p3-sar", marks=pytest.mark.slow),
        pytest.param("gatv2", "p3-domain-pushed", marks=pytest.mark.slow),
        pytest.param("gatv2", "prefetch", marks=pytest.mark.slow),
    ],
)
def test_coefficients_on_several_devices(name: str, mode: str) -> None:
    params = COEFFICIENTS[name][1].params
    graph = crooked_graph(edges="edge_kernel" in params)
    sharded = crooked_sharded(4, "hash", mode, edges=graph.edges is not None)
    run = spmd(lambda params, own: weights_of(name, params, own, own.nodes), outputs="edges")
    split = partition(graph, 4, method="hash", seed=0)
    found = gather_edges(run(params, sharded), sharded, graph, split)
    x = np.asarray(graph.nodes, np.float64)
    expected = coefficients(name, doubles(params), oracle_edges(graph), x)
    assert_close(found, expected, reduction_length=TERMS)


@pytest.mark.expensive
@every_layer
def test_no_array_of_all_edges_and_their_mapped_features(name: str) -> None:
    rng = np.random.default_rng(0)
    nodes, edges, width = 64, 40_000, 128
    senders, receivers = rng.integers(0, nodes, (2, edges))
    graph = complete(senders, receivers, nodes, "dense", edge_data=True)
    graph = graph.replace(edge_weight=None, edge_type=None)
    sharded = shard(graph, None, make_mesh(1))
    options: dict[str, Any] = {"edge_features": 2, "rngs": nnx.Rngs(0)}
    if name == "gine":
        model = nn.GINEConv(NUM_FEATURES, width, **options)
        width = NUM_FEATURES
    else:
        kind = nn.GATConv if name == "gat" else nn.GATv2Conv
        model = kind(NUM_FEATURES, width // 4, num_heads=4, **options)
    graphdef, state = nnx.split(model)

    def step(state: Any, shard: Any) -> Any:
        def loss(state: Any) -> Any:
            return shard.sum(jnp.sum(jnp.sin(nnx.merge(graphdef, state)(shard, shard.nodes))))

        return jax.grad(loss)(state)

    memory = spmd(step).lower(state, sharded).compile().memory_analysis()
    assert memory.temp_size_in_bytes < edges * width * 4 / 2


def test_modules_return_their_coefficients() -> None:
    graph = crooked_graph(edges=True)
    x: Any = graph.nodes
    for module in (nn.GATConv, nn.GATv2Conv):
        conv = module(NUM_FEATURES, OUT, num_heads=HEADS, edge_features=2, rngs=nnx.Rngs(0))
        found = conv.attention_weights(graph, x)
        assert found.shape == (graph.num_edges, HEADS) and conv.mapped_features is None
        received = oracle_edges(graph).sum_by_receiver(np.asarray(found))
        loops = {int(i) for i in graph.senders[graph.senders == graph.receivers]}
        assert_close(received[sorted(loops)], np.ones((len(loops), HEADS)))
        assert (received < 1.0001).all()
    plain = crooked_graph()
    conv: Any = nn.TransformerConv(NUM_FEATURES, OUT, num_heads=HEADS, rngs=nnx.Rngs(0))
    queries, keys = (
        (np.asarray(x, np.float64) @ np.asarray(kernel, np.float64)).reshape(-1, HEADS, OUT)
        for kernel in (conv.query_kernel[...], conv.key_kernel[...])
    )
    edges = oracle_edges(plain)
    expected = edge_softmax(edges, convolutions.dot_logits(edges, queries, keys))
    assert_close(conv.attention_weights(plain, x), expected, reduction_length=TERMS)
    sage = sage_stages({"neighbor_kernel": jnp.ones((2, 2))}, np.float32)
    with pytest.raises(ValueError, match="the stages of a layer without attention"):
        attention_weights(sage, {}, graph, x)


@pytest.mark.parametrize("parts", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_an_added_loop_has_a_mean_of_64_bits_in_models_of_64_bits(parts: int) -> None:
    """A graph holds its features in 32 bits; what is computed from them has 64."""
    graph = crooked_graph(30)
    edges = np.random.default_rng(3).standard_normal((graph.num_edges, EDGE_FEATURES), np.float32)
    graph = graph.replace(edges=edges)
    given = {name: doubles(case.params) for name, case in FEATURED.items()}
    with jax.enable_x64(True):
        cut, mesh = partition(graph, parts, "hash"), make_mesh(parts)
        sharded = shard(graph, cut, mesh, node_dtype=jnp.float64)
        run = spmd(
            lambda params, s: {n: c.conv(params[n], s, s.nodes) for n, c in FEATURED.items()},
            outputs="rows",
        )
        rows = {n: gather_rows(y, sharded) for n, y in run(given, sharded).items()}
    for name, found in rows.items():
        nodes = graph.nodes.astype(np.float64)
        expected = FEATURED[name].oracle(given[name], oracle_edges(graph), nodes)
        assert_close(found, expected, dtype=np.float64, reduction_length=TERMS, name=name)
