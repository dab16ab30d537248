"""Layers that read features of edges, against the float64 references."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from jaxgraph import layers, nn
from jaxgraph.layers import (
    attention_weights,
    gat_conv,
    gat_stages,
    gatv2_conv,
    gatv2_stages,
    gine_conv,
)
from jaxgraph.parallel import bipartite, gather_edges, gather_rows, make_mesh, shard, spmd
from jaxgraph.partition import Partition, partition
from tests.layers.convolution_cases import (
    SPECIAL_GRAPHS,
    TERMS,
    check_convolution,
    columns_match_rows,
    normal,
    refused,
)
from tests.layers.test_attention import HEADS, KEY, OUT, WIDTH, dropped, gat_params, gatv2_params
from tests.oracles import convolutions
from tests.oracles.edges import Edges
from tests.strategies import NUM_FEATURES, skewed_assignment
from tests.tolerance import assert_close
from tests.training import crooked_graph, crooked_sharded, oracle_edges

FEATURES = 2
EDGE_KERNEL = {"edge_kernel": normal(FEATURES, WIDTH)}
GAT = gat_params() | EDGE_KERNEL | {"attention_edge": normal(HEADS, OUT)}
GATV2 = gatv2_params() | EDGE_KERNEL
GINE = {
    "eps": normal(),
    "edge_kernel": normal(FEATURES, NUM_FEATURES),
    "edge_bias": normal(NUM_FEATURES),
    "first_kernel": normal(NUM_FEATURES, 4),
    "first_bias": normal(4),
    "second_kernel": normal(4, 3),
    "second_bias": normal(3),
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


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    check_convolution(*CASES[name], edge_data="edges")


@pytest.mark.parametrize("name", ["gat", "gatv2", "gine"])
def test_columns_give_what_rows_give(name: str) -> None:
    conv, _, params = CASES[name]
    columns_match_rows(conv, params, edges=True)


def test_gine_without_bias() -> None:
    params = {name: value for name, value in GINE.items() if not name.endswith("bias")}
    check_convolution(gine_conv, convolutions.gine, params, edge_data="edges")


@pytest.mark.parametrize("graph", SPECIAL_GRAPHS, ids=lambda graph: graph.name)
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


@pytest.mark.parametrize("name", ["gat", "gatv2", "gine"])
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


@pytest.mark.parametrize("mode", ["whole", "sar", "domain", "p3-sar"])
@pytest.mark.parametrize("name", COEFFICIENTS)
def test_coefficients_of_attention(name: str, mode: str) -> None:
    """Their values in the graph's order, and the gradient of a sum of them."""
    make, params, options = COEFFICIENTS[name]
    graph = crooked_graph(edges="edge_kernel" in params)
    directions = np.sin(np.arange(graph.num_edges * HEADS)).reshape(-1, HEADS)
    x, edges = np.asarray(graph.nodes, np.float64), oracle_edges(graph)
    expected = coefficients(name, params, edges, x)

    def weights(params: Any, shard: Any, x: Any) -> jax.Array:
        return attention_weights(make(params, **options), params, shard, x)

    if mode == "whole":
        total = lambda p: (weights(p, graph, graph.nodes) * directions).sum()  # noqa: E731
        assert_close(weights(params, graph, graph.nodes), expected, reduction_length=TERMS)
        key = "kernel" if name.startswith("gat-") or name == "gat" else "sender_kernel"
        of_kernel = jax.grad(total)(params)[key]
        step, change = 1e-6, np.cos(np.arange(params[key].size)).reshape(params[key].shape)
        ends = [
            (coefficients(name, params | {key: params[key] + s * change}, edges, x) * directions)
            for s in (step, -step)
        ]
        slope = (ends[0] - ends[1]).sum() / (2 * step)
        assert_close(
            (np.asarray(of_kernel, np.float64) * change).sum(), slope, reduction_length=TERMS
        )
        return
    sharded = crooked_sharded(4, "hash", mode, edges=graph.edges is not None)
    run = spmd(lambda params, shard: weights(params, shard, shard.nodes), outputs="edges")
    found = gather_edges(
        run(params, sharded), sharded, graph, partition(graph, 4, method="hash", seed=0)
    )
    assert_close(found, expected, reduction_length=TERMS)


def test_modules_return_their_coefficients() -> None:
    graph = crooked_graph(edges=True)
    for module in (nn.GATConv, nn.GATv2Conv):
        conv = module(NUM_FEATURES, OUT, num_heads=HEADS, edge_features=2, rngs=nnx.Rngs(0))
        found = conv.attention_weights(graph, graph.nodes)
        assert found.shape == (graph.num_edges, HEADS) and conv.mapped_features is None
        received = oracle_edges(graph).sum_by_receiver(np.asarray(found))
        loops = {int(i) for i in graph.senders[graph.senders == graph.receivers]}
        assert_close(received[sorted(loops)], np.ones((len(loops), HEADS)))
        assert (received < 1.0001).all()
    sage = layers.sage_stages({"neighbor_kernel": np.ones((2, 2), np.float32)}, np.float32)
    with pytest.raises(ValueError, match="the stages of a layer without attention"):
        attention_weights(sage, {}, graph, graph.nodes)
