"""Layers that read features of edges, against the float64 references."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgraph import nn
from jaxgraph.layers import attention_weights, gat_conv, gatv2_conv, gine_conv
from jaxgraph.layers.attention import gat_stages, gatv2_stages
from jaxgraph.layers.convolutions import sage_stages
from jaxgraph.parallel import bipartite, gather_edges, gather_rows, make_mesh, shard, spmd
from jaxgraph.partition import Partition, partition
from tests.layers.convolution_cases import (
    SPECIAL_GRAPHS,
    TERMS,
    check_convolution,
    columns_match_rows,
    draws,
    refused,
)
from tests.layers.test_attention import HEADS, KEY, OUT, WIDTH, dropped, gat_params, gatv2_params
from tests.oracles import convolutions
from tests.oracles.edges import Edges
from tests.strategies import NUM_FEATURES, complete, skewed_assignment
from tests.tolerance import assert_close
from tests.training import crooked_graph, crooked_sharded, oracle_edges

normal = draws(8)

FEATURES = 2
EDGE_KERNEL = {"edge_kernel": normal(FEATURES, WIDTH)}
GAT = gat_params() | EDGE_KERNEL | {"attention_edge": normal(HEADS, OUT)}
GATV2 = gatv2_params() | EDGE_KERNEL
GINE = {
    name: np.asarray(0.3 * normal(*shape), np.float32)  # outputs are as large as a hub has edges
    for name, shape in {
        "eps": (),
        "edge_kernel": (FEATURES, NUM_FEATURES),
        "edge_bias": (NUM_FEATURES,),
        "first_kernel": (NUM_FEATURES, 4),
        "first_bias": (4,),
        "second_kernel": (4, 3),
        "second_bias": (3,),
    }.items()
}
Case = tuple[Callable[..., Any], Callable[..., Any], dict[str, Any]]
CASES: dict[str, Case] = {
    "gat": (partial(gat_conv, dropout=0.4, key=KEY), dropped(convolutions.gat, 0.4), GAT),
    "gat-mean-without-loops": (
        partial(gat_conv, concat=False, add_self_loops=False),
        partial(convolutions.gat, concat=False, add_self_loops=False),
        GAT | {"bias": normal(OUT)},
    ),
    "gatv2": (gatv2_conv, convolutions.gatv2, GATV2),
    "gine": (gine_conv, convolutions.gine, GINE),
}


def some(names: Iterable[str], *quick: str) -> list[Any]:
    """Parameters of which the default run takes a few."""
    return [pytest.param(n, marks=() if n in quick else pytest.mark.slow) for n in names]


@pytest.mark.slow
@pytest.mark.parametrize("name", some(CASES, "gat", "gine"))
def test_values_and_gradients(name: str) -> None:
    check_convolution(*CASES[name], edge_data="edges")


@pytest.mark.parametrize("name", some(("gat", "gatv2", "gine"), "gine"))
def test_columns_give_what_rows_give(name: str) -> None:
    conv, _, params = CASES[name]
    columns_match_rows(conv, params, edges=True)


_QUICK = ("isolated-nodes",)


@pytest.mark.slow
def test_gine_without_bias() -> None:
    params = {name: value for name, value in GINE.items() if not name.endswith("bias")}
    check_convolution(gine_conv, convolutions.gine, params, edge_data="edges")


@pytest.mark.slow
@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(graph, marks=() if graph.name in _QUICK else pytest.mark.slow)
        for graph in SPECIAL_GRAPHS
    ],
    ids=lambda graph: graph.name,
)
def test_special_graphs(graph: Any) -> None:
    """The self-loop of a node that no edge enters has features of 0."""
    rng = np.random.default_rng(1)
    graph = graph.replace(edges=rng.standard_normal((graph.num_edges, FEATURES), np.float32))
    convs = {"gat": gat_conv, "gatv2": gatv2_conv, "gine": gine_conv}
    given = {name: CASES[name][2] for name in convs}

    def step(shard: Any) -> Any:
        return {name: conv(given[name], shard, shard.nodes) for name, conv in convs.items()}

    parts = Partition(skewed_assignment(graph.num_nodes, 3), 3, "skewed")
    sharded = shard(graph, parts, make_mesh(3))
    for name, actual in spmd(step, outputs="rows")(sharded).items():
        oracle = getattr(convolutions, name)
        expected, _ = oracle(given[name], oracle_edges(graph), graph.nodes.astype(np.float64))
        assert_close(gather_rows(actual, sharded), expected, reduction_length=300, name=name)


@pytest.mark.parametrize("name", some(("gat", "gatv2", "gine"), "gatv2"))
def test_two_tables(name: str) -> None:
    conv, params = {"gat": gat_conv, "gatv2": gatv2_conv, "gine": gine_conv}[name], CASES[name][2]
    rng = np.random.default_rng(3)
    ends, sizes = rng.integers(0, (13, 7), (60, 2)), (13, 7)
    x, y = (rng.standard_normal((rows, NUM_FEATURES), np.float32) for rows in sizes)
    features = rng.standard_normal((60, FEATURES), np.float32)
    block = bipartite(*ends.T, num_senders=13, num_receivers=7, edges=features)
    edges = Edges.of(ends[:, 0], ends[:, 1] + 13, 20, features=features)
    loops = {} if name == "gine" else {"add_self_loops": False}
    rows = np.concatenate([x, y]).astype(np.float64)
    expected, _ = getattr(convolutions, name)(params, edges, rows, **loops)
    assert_close(conv(params, block, (x, y)), expected[13:], reduction_length=300)


@pytest.mark.parametrize("name", CASES)
def test_what_does_not_fit_is_refused(name: str) -> None:
    conv, _, params = CASES[name]
    layer = name.split("-")[0] + "_conv"
    with_params = lambda params: lambda s: conv(params, s, s.nodes)  # noqa: E731
    none = rf"{layer} maps 2 edge features, and the graph has none\. Give it .*\[num_edges, 2\]"
    refused(ValueError, none, with_params(params))
    wide = params | {"edge_kernel": np.zeros((3, *params["edge_kernel"].shape[1:]), np.float32)}
    width = rf"{layer} maps 3 edge features, .* make the layer with edge_features=2"
    refused(ValueError, width, with_params(wide), edges=True)
    weights = f"{layer} does not use edge_weight of the graph; GCN, GraphSAGE and GIN use"
    refused(ValueError, weights, with_params(params), edges=True, edge_weight=True)
    without = {name: value for name, value in params.items() if "edge" not in name}
    if name != "gine":
        ignored = f"{layer} does not use edges of the graph; GAT, .* made with edge_features=2"
        refused(ValueError, ignored, with_params(without), edges=True)


COEFFICIENTS: dict[str, tuple[Any, Any, Any]] = {
    "gat": (gat_stages, GAT, {}),
    "gat-plain": (gat_stages, gat_params(), {}),
    "gatv2": (gatv2_stages, GATV2, {}),
    "gatv2-plain": (gatv2_stages, gatv2_params(), {"add_self_loops": False}),
}


def coefficients(name: str, params: Any, edges: Edges, x: np.ndarray) -> np.ndarray:
    """alpha [edges, heads] in float64, of the edges without added self-loops."""
    count, heads = len(edges.senders), (HEADS, OUT)
    if COEFFICIENTS[name][2].get("add_self_loops", True):
        edges = edges.with_missing_self_loops()
    features = edges.features @ params["edge_kernel"] if "edge_kernel" in params else np.zeros(1)
    features = features.reshape(-1, *heads) if features.ndim > 1 else features
    if name.startswith("gatv2"):
        s, r = (
            (x @ params[f"{end}_kernel"] + params[f"{end}_bias"]).reshape(-1, *heads)
            for end in ("sender", "receiver")
        )
        hidden = s[edges.senders] + r[edges.receivers] + features
        logits = (np.where(hidden >= 0, hidden, 0.2 * hidden) * params["attention"]).sum(-1)
    else:
        z = (x @ params["kernel"]).reshape(-1, *heads)
        scores = (z[edges.senders] * params["attention_sender"]).sum(-1)
        scores = scores + (z[edges.receivers] * params["attention_receiver"]).sum(-1)
        scores = scores + (features * params.get("attention_edge", 0)).sum(-1)
        logits = np.where(scores >= 0, scores, 0.2 * scores)
    powers = np.exp(logits)
    return (powers / edges.sum_by_receiver(powers)[edges.receivers])[:count]


def weights_of(name: str, params: Any, graph: Any, x: Any) -> jax.Array:
    make, _, options = COEFFICIENTS[name]
    return attention_weights(make(params, **options), params, graph, x)


@pytest.mark.parametrize("name", some(COEFFICIENTS, "gatv2-plain"))
def test_coefficients_of_attention(name: str) -> None:
    """In the graph's order, and the slope of a sum of them along a direction of the first map."""
    params = COEFFICIENTS[name][1]
    graph = crooked_graph(edges="edge_kernel" in params)
    weights = np.sin(np.arange(graph.num_edges * HEADS)).reshape(-1, HEADS)
    x, edges = np.asarray(graph.nodes, np.float64), oracle_edges(graph)

    @jax.jit
    def total(params: Any) -> Any:
        found = weights_of(name, params, graph, graph.nodes)
        return (found * weights).sum(), found

    (_, found), gradients = jax.value_and_grad(total, has_aux=True)(params)
    assert_close(found, coefficients(name, params, edges, x), reduction_length=TERMS)
    kernel = "sender_kernel" if name.startswith("gatv2") else "kernel"
    change = np.cos(np.arange(params[kernel].size)).reshape(params[kernel].shape)
    ends = [
        coefficients(name, params | {kernel: params[kernel] + step * change}, edges, x)
        for step in (1e-6, -1e-6)
    ]
    slope = ((ends[0] - ends[1]) * weights).sum() / 2e-6
    actual = (np.asarray(gradients[kernel], np.float64) * change).sum()
    assert_close(actual, slope, reduction_length=TERMS)


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
    params = COEFFICIENTS[name][1]
    graph = crooked_graph(edges="edge_kernel" in params)
    sharded = crooked_sharded(4, "hash", mode, edges=graph.edges is not None)
    run = spmd(lambda params, own: weights_of(name, params, own, own.nodes), outputs="edges")
    split = partition(graph, 4, method="hash", seed=0)
    found = gather_edges(run(params, sharded), sharded, graph, split)
    x = np.asarray(graph.nodes, np.float64)
    expected = coefficients(name, params, oracle_edges(graph), x)
    assert_close(found, expected, reduction_length=TERMS)


@pytest.mark.parametrize("name", some(("gat", "gatv2", "gine"), "gatv2"))
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
    sage = sage_stages({"neighbor_kernel": jnp.ones((2, 2))}, np.float32)
    with pytest.raises(ValueError, match="the stages of a layer without attention"):
        attention_weights(sage, {}, graph, x)


def test_a_transformer_returns_its_coefficients() -> None:
    graph = crooked_graph()
    x: Any = graph.nodes
    conv: Any = nn.TransformerConv(NUM_FEATURES, OUT, num_heads=HEADS, rngs=nnx.Rngs(0))
    edges = oracle_edges(graph)
    queries, keys = (
        (np.asarray(x, np.float64) @ np.asarray(kernel, np.float64)).reshape(-1, HEADS, OUT)
        for kernel in (conv.query_kernel[...], conv.key_kernel[...])
    )
    powers = np.exp((queries[edges.receivers] * keys[edges.senders]).sum(-1) / OUT**0.5)
    expected = powers / edges.sum_by_receiver(powers)[edges.receivers]
    assert_close(conv.attention_weights(graph, x), expected, reduction_length=TERMS)


@pytest.mark.parametrize("parts", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_an_added_loop_has_a_mean_of_64_bits_in_models_of_64_bits(parts: int) -> None:
    """A graph holds its features in 32 bits; what is computed from them has 64."""
    graph = crooked_graph(30)
    edges = np.random.default_rng(3).standard_normal((graph.num_edges, FEATURES), np.float32)
    graph = graph.replace(edges=edges)
    convs = {"gat": gat_conv, "gatv2": gatv2_conv, "gine": gine_conv}
    given = {
        name: {key: np.asarray(value, np.float64) for key, value in CASES[name][2].items()}
        for name in convs
    }
    with jax.enable_x64(True):
        cut, mesh = partition(graph, parts, "hash"), make_mesh(parts)
        sharded = shard(graph, cut, mesh, node_dtype=jnp.float64)
        run = spmd(
            lambda params, s: {n: conv(params[n], s, s.nodes) for n, conv in convs.items()},
            outputs="rows",
        )
        rows = {n: gather_rows(y, sharded) for n, y in run(given, sharded).items()}
    for name, found in rows.items():
        oracle = getattr(convolutions, name)
        expected, _ = oracle(given[name], oracle_edges(graph), graph.nodes.astype(np.float64))
        error = np.abs(np.asarray(found, np.float64) - expected).max()
        assert error < 1e-12 * np.abs(expected).max(), (name, error)
