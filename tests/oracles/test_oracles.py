"""The references: values by formula, node by node."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.oracles import convolutions, functions, losses, models, randomness
from tests.oracles.edges import Edges
from tests.oracles.functions import Params, elu, layer_norm
from tests.oracles.seven_nodes import (
    EDGES,
    FEATURED,
    HEADS,
    IN,
    NO_EDGES,
    NUM_NODES,
    OUT,
    SENDERS,
    WEIGHTED,
    features,
)


def params_of(conv: str, **sizes: Any) -> Params:
    heads = HEADS if conv in models.ATTENTION else 1
    rng = np.random.default_rng(1)
    return models.conv_params(rng, conv, IN, OUT, heads=heads, **sizes)


def neighbors(edges: Edges, node: int) -> np.ndarray:
    return edges.senders[edges.receivers == node]


def mlp(params: Params, mixed: np.ndarray) -> np.ndarray:
    hidden = np.maximum(mixed @ params["first_kernel"] + params["first_bias"], 0)
    return hidden @ params["second_kernel"] + params["second_bias"]


# ------------------------------------------------------------------ edges


def test_missing_self_loops_are_added_once() -> None:
    edges, count = FEATURED.with_missing_self_loops(), len(SENDERS)
    np.testing.assert_array_equal(edges.senders[count:], [1, 2, 3, 4, 5, 6])
    np.testing.assert_array_equal(edges.receivers[count:], [1, 2, 3, 4, 5, 6])
    weight = WEIGHTED.with_missing_self_loops().weight
    np.testing.assert_array_equal(weight, [*WEIGHTED.weight, *[1] * 6])
    # Their features are the mean of those that enter.
    for edge in range(count, len(edges.senders)):
        near = FEATURED.features[FEATURED.receivers == edges.senders[edge]]
        expected = near.mean(0) if len(near) else np.zeros(3)
        np.testing.assert_allclose(edges.features[edge], expected, rtol=1e-12)


def test_repetitions_count_equal_pairs_in_order() -> None:
    np.testing.assert_array_equal(EDGES.repetitions(), [0, 0, 0, 1, 0, 0, 0, 2, 0, 1, 0])
    assert NO_EDGES.repetitions().shape == (0,)


def test_sums_over_edges() -> None:
    np.testing.assert_array_equal(EDGES.in_degrees(), [3, 4, 2, 1, 1, 0, 0])
    values = np.stack([np.arange(11.0), np.ones(11)], axis=1)
    np.testing.assert_array_equal(EDGES.sum_by_sender(values)[2], [2 + 3 + 7, 3])


# ------------------------------------------------------------------ functions


def test_activations_at_known_points() -> None:
    x = np.array([-2.0, 0.0, 3.0])
    expected: dict[Callable[..., Any], list[float]] = {
        functions.relu: [0.0, 0.0, 3.0],
        functions.elu: [np.exp(-2.0) - 1, 0.0, 3.0],
        functions.leaky_relu: [-0.4, 0.0, 3.0],
    }
    for function, values in expected.items():
        np.testing.assert_allclose(function(x), values)


@pytest.mark.parametrize("norm", [functions.layer_norm, functions.batch_norm])
def test_norms(norm: Callable[..., Any]) -> None:
    y = norm({"scale": np.ones(IN), "bias": np.zeros(IN)}, 3 * features() + 1)
    axis = 0 if norm is functions.batch_norm else 1
    np.testing.assert_allclose(y.mean(axis), 0, atol=1e-12)
    np.testing.assert_allclose(y.var(axis), 1, atol=1e-4)
    params = {"scale": features(1)[0], "bias": features(2)[0]}
    shifted = y * params["scale"] + params["bias"]
    np.testing.assert_allclose(norm(params, 3 * features() + 1), shifted)


def test_batch_norm_with_running_statistics() -> None:
    params = {"scale": features(1)[0], "bias": features(2)[0]}
    running = {"mean": features(3)[0], "var": np.exp(features(4)[0])}
    x = features()
    updated = functions.updated_statistics(running, x)
    np.testing.assert_allclose(updated["mean"], 0.9 * running["mean"] + 0.1 * x.mean(0))
    np.testing.assert_allclose(updated["var"], 0.9 * running["var"] + 0.1 * x.var(0))
    own = {"mean": x.mean(0), "var": x.var(0)}
    np.testing.assert_allclose(
        functions.batch_norm_inference(params, own, x), functions.batch_norm(params, x)
    )


def test_losses() -> None:
    logits, mask = 3 * features(), np.arange(NUM_NODES) % 3 != 1
    labels = np.array([0, -1, 3, 2, -1, 0, 1])
    terms = [np.log(np.exp(z).sum()) - z[label] for z, label in zip(logits, labels, strict=True)]
    loss, backward = losses.softmax_cross_entropy(logits, labels, mask)
    assert loss == pytest.approx(np.array(terms)[mask].mean(), rel=1e-12)
    assert not backward()[~mask].any()
    large, every = np.array([[1e4, -1e4], [-1e4, 1e4]]), np.ones(2, bool)
    assert losses.softmax_cross_entropy(large, np.array([0, 0]), every)[0] == pytest.approx(1e4)
    wanted, ones = (features(1) > 0).astype(float), np.ones(IN)
    loss, _ = losses.weighed_sigmoid_cross_entropy(logits, wanted, mask, ones, 0.0)
    assert loss == pytest.approx(np.logaddexp(0, np.where(wanted, -logits, logits))[mask].mean())


# ------------------------------------------------------------------ convolutions


def adjacency(edges: Edges, add_self_loops: bool = True) -> np.ndarray:
    """The matrix of `gcn`'s aggregation."""
    matrix = np.zeros((NUM_NODES, NUM_NODES))
    np.add.at(matrix, (edges.receivers, edges.senders), edges.weight)
    if add_self_loops:
        matrix += np.diag((np.diag(matrix) == 0).astype(float))
    scale = np.diag([1 / np.sqrt(degree) if degree else 0.0 for degree in matrix.sum(1)])
    return scale @ matrix @ scale


@pytest.mark.parametrize("add_self_loops", [True, False])
def test_gcn_is_the_normalised_adjacency_matrix(add_self_loops: bool) -> None:
    params, x = params_of("gcn"), features()
    expected = adjacency(WEIGHTED, add_self_loops) @ x @ params["kernel"] + params["bias"]
    actual = convolutions.gcn(params, WEIGHTED, x, add_self_loops)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_appnp_is_a_polynomial_of_the_matrix() -> None:
    matrix, x = adjacency(WEIGHTED), features()
    expected = x
    for _ in range(3):
        expected = 0.8 * matrix @ expected + 0.2 * x
    y = convolutions.appnp(WEIGHTED, x, steps=3, alpha=0.2)
    np.testing.assert_allclose(y, expected, rtol=1e-12)


def test_gcn2_is_its_formula() -> None:
    x, initial, params = features(), features(1), params_of("gcn2") | {"kernel": features(2)[:IN]}
    y = convolutions.gcn2(params, WEIGHTED, x, initial, alpha=0.3, theta=0.5, layer=2)
    h, beta = 0.7 * adjacency(WEIGHTED) @ x + 0.3 * initial, np.log(1.25)
    np.testing.assert_allclose(y, (1 - beta) * h + beta * h @ params["kernel"], rtol=1e-12)


@pytest.mark.parametrize("edges", [EDGES, WEIGHTED], ids=["plain", "weighted"])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_sage_node_by_node(reduce: str, edges: Edges) -> None:
    params, x = params_of("sage"), features()
    actual = convolutions.sage(params, edges, x, reduce)
    for node in range(NUM_NODES):
        weights = edges.weight[edges.receivers == node]
        near = weights[:, None] * x[neighbors(edges, node)]
        reduced = getattr(near, reduce)(0) if len(near) else np.zeros(IN)
        expected = x[node] @ params["self_kernel"] + reduced @ params["neighbor_kernel"]
        np.testing.assert_allclose(actual[node], expected + params["bias"], rtol=1e-12)


@pytest.mark.parametrize("given", [EDGES, FEATURED], ids=["plain", "featured"])
@pytest.mark.parametrize("conv", ["gat", "gatv2"])
@pytest.mark.parametrize("concat", [True, False])
def test_attention_node_by_node(conv: str, concat: bool, given: Edges) -> None:
    params = params_of(conv, concat=concat, edge_features=given.features.shape[1])
    edges, x = given.with_missing_self_loops(), features()
    of_edges = edges.features @ params.get("edge_kernel", np.zeros((0, HEADS * OUT)))
    actual = getattr(convolutions, conv)(params, given, x, concat=concat)
    for node in range(NUM_NODES):
        heads = []
        for head in range(HEADS):
            columns = slice(head * OUT, (head + 1) * OUT)
            near, seen = neighbors(edges, node), of_edges[edges.receivers == node][:, columns]
            if conv == "gat":
                values = x @ params["kernel"][:, columns]
                received = values[node] @ params["attention_receiver"][head]
                scores = values[near] @ params["attention_sender"][head] + received
                scores = scores + seen @ params.get("attention_edge", np.zeros((HEADS, OUT)))[head]
                logits = np.where(scores > 0, scores, 0.2 * scores)
            else:
                values = x @ params["sender_kernel"][:, columns] + params["sender_bias"][columns]
                received = x[node] @ params["receiver_kernel"][:, columns]
                hidden = values[near] + received + params["receiver_bias"][columns] + seen
                logits = np.where(hidden > 0, hidden, 0.2 * hidden) @ params["attention"][head]
            weights = np.exp(logits) / np.exp(logits).sum()
            heads.append(weights @ values[near])
        expected = np.concatenate(heads) if concat else np.mean(heads, axis=0)
        np.testing.assert_allclose(actual[node], expected + params["bias"], rtol=1e-12)


@pytest.mark.parametrize("conv", ["gat", "gatv2"])
def test_attention_without_edges(conv: str) -> None:
    params = params_of(conv)
    y = getattr(convolutions, conv)(params, NO_EDGES, features(), add_self_loops=False)
    np.testing.assert_array_equal(y, np.broadcast_to(params["bias"], y.shape))


def test_attention_dropout_scales_what_it_keeps() -> None:
    """One sender, so alpha = 1: the output is z / (1 - rate) where kept, else 0."""
    edges = Edges.of(np.array([0, 0]), np.array([1, 2]), 3)
    params = params_of("gat") | {"bias": np.zeros(HEADS * OUT)}
    keep, x = np.array([[True, False], [False, True]]), features()[:3]
    y = convolutions.gat(params, edges, x, add_self_loops=False, keep=keep, rate=0.75)
    z = (x @ params["kernel"]).reshape(3, HEADS, OUT)
    np.testing.assert_allclose(y[1].reshape(HEADS, OUT), [4 * z[0, 0], np.zeros(OUT)], rtol=1e-12)
    np.testing.assert_allclose(y[2].reshape(HEADS, OUT), [np.zeros(OUT), 4 * z[0, 1]], rtol=1e-12)


@pytest.mark.parametrize("conv", ["gin", "gine"])
def test_gin_and_gine_node_by_node(conv: str) -> None:
    params, x = params_of(conv, edge_features=3 * (conv == "gine")), features()
    actual = getattr(convolutions, conv)(params, FEATURED, x)
    for node in range(NUM_NODES):
        messages = x[neighbors(FEATURED, node)]
        if conv == "gine":
            of_edges = FEATURED.features[FEATURED.receivers == node] @ params["edge_kernel"]
            messages = np.maximum(messages + of_edges + params["edge_bias"], 0)
        expected = mlp(params, (1 + params["eps"]) * x[node] + messages.sum(0))
        np.testing.assert_allclose(actual[node], expected, rtol=1e-12)


def test_pna_node_by_node() -> None:
    params, x = params_of("pna", hidden=2), features()
    actual = convolutions.pna(params, EDGES, x, delta=1.3)
    for node in range(NUM_NODES):
        own, near = x[node], x[neighbors(EDGES, node)]
        m = near @ params["sender_kernel"] + own @ params["receiver_kernel"]
        m = m + params["message_bias"]
        parts = (
            [m.mean(0), m.max(0), m.min(0), np.sqrt(m.var(0) + 1e-5)] if len(m) else [np.zeros(8)]
        )
        found, degree = np.concatenate(parts), len(near)
        scales = [1, np.log(degree + 1) / 1.3, 1.3 / np.log(max(degree, 1) + 1)]
        columns = np.concatenate([scale * found for scale in scales])
        expected = own @ params["self_kernel"] + columns @ params["kernel"] + params["bias"]
        np.testing.assert_allclose(actual[node], expected, rtol=1e-12)


def test_transformer_node_by_node() -> None:
    params, x = params_of("transformer"), features()
    params["gate"] = features(3, HEADS * OUT)[:3]
    actual = convolutions.transformer(params, EDGES, x, num_heads=HEADS)
    q, k, v, r = (
        x @ params[f"{name}_kernel"] + params.get(f"{name}_bias", 0.0)
        for name in ("query", "key", "value", "skip")
    )
    for node in range(NUM_NODES):
        near, joined = neighbors(EDGES, node), []
        for head in range(HEADS):
            columns = slice(head * OUT, (head + 1) * OUT)
            powers = np.exp(k[near, columns] @ q[node, columns] / np.sqrt(OUT))
            joined.append(powers / max(powers.sum(), 1e-300) @ v[near, columns])
        m = np.concatenate(joined)
        score = params["gate"].reshape(-1) @ np.concatenate([m, r[node], m - r[node]])
        beta = 1 / (1 + np.exp(-score))
        np.testing.assert_allclose(actual[node], beta * r[node] + (1 - beta) * m, rtol=1e-12)


# ------------------------------------------------------------------ models


def test_a_model_is_its_layers_one_after_another() -> None:
    model = models.Model("gat", HEADS, activation="elu", norm="layer", residual=True, dropout=0.5)
    params = models.init_params(model, IN, 5, OUT, 2, np.random.default_rng(2))
    seeds = [models.LayerSeeds((layer, 3), (layer, 4)) for layer in range(2)]
    actual, _ = models.forward(model, params, EDGES, features(), seeds=seeds)

    def dropped(x: np.ndarray, layer: int) -> np.ndarray:
        ids = np.arange(NUM_NODES)
        return x * randomness.node_keep_mask((layer, 3), ids, x.shape[1], 0.5) * 2

    h = dropped(features(), 0)
    y = convolutions.gat(params[0]["conv"], EDGES, h) + h @ params[0]["residual"]["kernel"]
    x = dropped(elu(layer_norm(params[0]["norm"], y)), 1)
    expected = convolutions.gat(params[1]["conv"], EDGES, x, concat=False)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_statistics_change_in_training_only() -> None:
    model = models.Model("sage", norm="batch", residual=True)
    params = models.init_params(model, IN, 5, OUT, 3, np.random.default_rng(2))
    start = models.init_statistics(params)
    _, trained = models.forward(model, params, EDGES, features(), statistics=start, train=True)
    _, kept = models.forward(model, params, EDGES, features(), statistics=start)
    y = convolutions.sage(params[0]["conv"], EDGES, features())
    y = y + features() @ params[0]["residual"]["kernel"]
    np.testing.assert_allclose(trained[0]["mean"], 0.1 * y.mean(0))
    np.testing.assert_allclose(trained[0]["var"], 0.9 + 0.1 * y.var(0))
    assert len(trained) == 2 and kept == start
