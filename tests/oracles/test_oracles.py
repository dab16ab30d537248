"""The references: values by formula, node by node; gradients by finite differences."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.oracles import convolutions, functions, models, randomness
from tests.oracles.differences import check_gradients
from tests.oracles.edges import Edges
from tests.oracles.functions import Params
from tests.oracles.seven_nodes import (
    EDGES,
    FEATURED,
    HEADS,
    IN,
    NO_EDGES,
    NUM_NODES,
    OUT,
    RECEIVERS,
    SENDERS,
    WEIGHTED,
    features,
)


def conv_params(conv: str, concat: bool = True, edge_features: int = 0) -> Params:
    model = models.Model(conv, num_heads=HEADS, edge_features=edge_features)
    num_layers = 2 if concat else 1
    layers = models.init_params(model, IN, OUT, OUT, num_layers, np.random.default_rng(1))
    return layers[0]["conv"]


def neighbors(edges: Edges, node: int) -> np.ndarray:
    return edges.senders[edges.receivers == node]


def check_function(function: Callable[..., Any], x: np.ndarray, *arguments: Any) -> None:
    """Checks a function without parameters."""
    y, backward = function(x, *arguments)
    cotangent = np.random.default_rng(9).standard_normal(y.shape)
    check_gradients(
        lambda: float((function(x, *arguments)[0] * cotangent).sum()), x, backward(cotangent)
    )


def check_with_params(
    function: Callable[..., Any], params: Params, *arguments: Any, **options: Any
) -> None:
    """Checks a function of (params, ..., x)."""
    x = arguments[-1]
    y, backward = function(params, *arguments, **options)
    cotangent = np.random.default_rng(9).standard_normal(y.shape)
    grad_x, grads = backward(cotangent)
    check_gradients(
        lambda: float((function(params, *arguments, **options)[0] * cotangent).sum()),
        {"x": x, "params": params},
        {"x": grad_x, "params": grads},
    )


# ------------------------------------------------------------------ edges


def test_missing_self_loops_are_added_once() -> None:
    edges = WEIGHTED.with_missing_self_loops()
    np.testing.assert_array_equal(edges.senders[len(SENDERS) :], [1, 2, 3, 4, 5, 6])
    np.testing.assert_array_equal(edges.receivers[len(SENDERS) :], [1, 2, 3, 4, 5, 6])
    np.testing.assert_array_equal(edges.weight[: len(SENDERS)], WEIGHTED.weight)
    np.testing.assert_array_equal(edges.weight[len(SENDERS) :], 1.0)


def test_repetitions_count_equal_pairs_in_order() -> None:
    np.testing.assert_array_equal(EDGES.repetitions(), [0, 0, 0, 1, 0, 0, 0, 2, 0, 1, 0])
    assert NO_EDGES.repetitions().shape == (0,)


def test_sums_over_edges() -> None:
    np.testing.assert_array_equal(EDGES.in_degrees(), [3, 4, 2, 1, 1, 0, 0])
    values = np.stack([np.arange(11.0), np.ones(11)], axis=1)
    np.testing.assert_array_equal(EDGES.sum_by_sender(values)[2], [2 + 3 + 7, 3])


# ------------------------------------------------------------------ functions


def test_linear() -> None:
    params = {"kernel": features(1, OUT)[:IN], "bias": features(2, OUT)[0]}
    check_with_params(functions.linear, params, features())
    check_with_params(functions.linear, {"kernel": params["kernel"]}, features())


@pytest.mark.parametrize("function", [functions.relu, functions.elu, functions.leaky_relu])
def test_activations(function: Callable[..., Any]) -> None:
    check_function(function, features())


def test_activations_at_known_points() -> None:
    x = np.array([-2.0, 0.0, 3.0])
    expected = {
        functions.relu: ([0.0, 0.0, 3.0], [0.0, 0.0, 1.0]),
        functions.elu: ([np.exp(-2.0) - 1, 0.0, 3.0], [np.exp(-2.0), 1.0, 1.0]),
        functions.leaky_relu: ([-0.4, 0.0, 3.0], [0.2, 1.0, 1.0]),
    }
    for function, (values, slopes) in expected.items():
        y, backward = function(x)
        np.testing.assert_allclose(y, values)
        np.testing.assert_allclose(backward(np.ones(3)), slopes)


def test_dropout() -> None:
    keep = randomness.node_keep_mask((1, 2), np.arange(NUM_NODES), IN, 0.25)
    y, _ = functions.dropout(features(), keep, 0.25)
    np.testing.assert_allclose(y, np.where(keep, features() / 0.75, 0.0))
    assert 0 < keep.sum() < keep.size
    check_function(functions.dropout, features(), keep, 0.25)


@pytest.mark.parametrize("norm", [functions.layer_norm, functions.batch_norm])
def test_norms(norm: Callable[..., Any]) -> None:
    params = {"scale": features(1)[0], "bias": features(2)[0]}
    check_with_params(norm, params, 3 * features() + 1)
    plain = {"scale": np.ones(IN), "bias": np.zeros(IN)}
    y, _ = norm(plain, 3 * features() + 1)
    axis = 0 if norm is functions.batch_norm else 1
    np.testing.assert_allclose(y.mean(axis), 0, atol=1e-12)
    np.testing.assert_allclose(y.var(axis), 1, atol=1e-4)


def test_batch_norm_with_running_statistics() -> None:
    params = {"scale": features(1)[0], "bias": features(2)[0]}
    running = {"mean": features(3)[0], "var": np.exp(features(4)[0])}
    x = features()
    check_with_params(functions.batch_norm_inference, params, running, x)
    updated = functions.updated_statistics(running, x)
    np.testing.assert_allclose(updated["mean"], 0.9 * running["mean"] + 0.1 * x.mean(0))
    np.testing.assert_allclose(updated["var"], 0.9 * running["var"] + 0.1 * x.var(0))
    own = {"mean": x.mean(0), "var": x.var(0)}
    np.testing.assert_allclose(
        functions.batch_norm_inference(params, own, x)[0], functions.batch_norm(params, x)[0]
    )


# ------------------------------------------------------------------ convolutions: values


@pytest.mark.parametrize("add_self_loops", [True, False])
def test_gcn_is_the_normalised_adjacency_matrix(add_self_loops: bool) -> None:
    params, x = conv_params("gcn"), features()
    adjacency = np.zeros((NUM_NODES, NUM_NODES))
    np.add.at(adjacency, (WEIGHTED.receivers, WEIGHTED.senders), WEIGHTED.weight)
    if add_self_loops:
        adjacency += np.diag((np.diag(adjacency) == 0).astype(float))
    degrees = adjacency.sum(1)
    scale = np.diag([1 / np.sqrt(degree) if degree else 0.0 for degree in degrees])
    expected = scale @ adjacency @ scale @ x @ params["kernel"] + params["bias"]
    actual, _ = convolutions.gcn(params, WEIGHTED, x, add_self_loops)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.parametrize("edges", [EDGES, WEIGHTED], ids=["plain", "weighted"])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_sage_node_by_node(reduce: str, edges: Edges) -> None:
    params, x = conv_params("sage"), features()
    actual, _ = convolutions.sage(params, edges, x, reduce)
    for node in range(NUM_NODES):
        weights = edges.weight[edges.receivers == node]
        near = weights[:, None] * x[neighbors(edges, node)]
        reduced = getattr(near, reduce)(0) if len(near) else np.zeros(IN)
        expected = x[node] @ params["self_kernel"] + reduced @ params["neighbor_kernel"]
        np.testing.assert_allclose(actual[node], expected + params["bias"], rtol=1e-12)


def test_an_added_self_loop_has_the_mean_of_the_features_that_enter() -> None:
    added = FEATURED.with_missing_self_loops()
    loops = range(len(SENDERS), len(added.senders))
    assert added.senders[loops].tolist() == [1, 2, 3, 4, 5, 6]
    for edge in loops:
        near = FEATURED.features[FEATURED.receivers == added.senders[edge]]
        expected = near.mean(0) if len(near) else np.zeros(3)
        np.testing.assert_allclose(added.features[edge], expected, rtol=1e-12)


@pytest.mark.parametrize("given", [EDGES, FEATURED], ids=["plain", "featured"])
@pytest.mark.parametrize("conv", ["gat", "gatv2"])
@pytest.mark.parametrize("concat", [True, False])
def test_attention_node_by_node(conv: str, concat: bool, given: Edges) -> None:
    params, x = conv_params(conv, concat, given.features.shape[1]), features()
    edges = given.with_missing_self_loops()
    of_edges = edges.features @ params.get("edge_kernel", np.zeros((0, HEADS * OUT)))
    actual, _ = getattr(convolutions, conv)(params, given, x, concat=concat)
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


def test_gin_node_by_node() -> None:
    params, x = conv_params("gin"), features()
    actual, _ = convolutions.gin(params, EDGES, x)
    for node in range(NUM_NODES):
        mixed = (1 + params["eps"]) * x[node] + x[neighbors(EDGES, node)].sum(0)
        hidden = np.maximum(mixed @ params["first_kernel"] + params["first_bias"], 0)
        expected = hidden @ params["second_kernel"] + params["second_bias"]
        np.testing.assert_allclose(actual[node], expected, rtol=1e-12)


def test_gine_node_by_node() -> None:
    params, x = conv_params("gine", edge_features=3), features()
    actual, _ = convolutions.gine(params, FEATURED, x)
    for node in range(NUM_NODES):
        of_edges = FEATURED.features[FEATURED.receivers == node] @ params["edge_kernel"]
        messages = x[neighbors(FEATURED, node)] + of_edges + params["edge_bias"]
        mixed = (1 + params["eps"]) * x[node] + np.maximum(messages, 0).sum(0)
        hidden = np.maximum(mixed @ params["first_kernel"] + params["first_bias"], 0)
        expected = hidden @ params["second_kernel"] + params["second_bias"]
        np.testing.assert_allclose(actual[node], expected, rtol=1e-12)


# ------------------------------------------------------------------ convolutions: gradients


@pytest.mark.parametrize("edges", [EDGES, WEIGHTED, NO_EDGES], ids=["plain", "weighted", "none"])
@pytest.mark.parametrize("add_self_loops", [True, False])
def test_gcn_gradients(edges: Edges, add_self_loops: bool) -> None:
    arguments = (edges, features())
    check_with_params(
        convolutions.gcn, conv_params("gcn"), *arguments, add_self_loops=add_self_loops
    )


@pytest.mark.parametrize("edges", [EDGES, WEIGHTED, NO_EDGES], ids=["plain", "weighted", "none"])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_sage_gradients(edges: Edges, reduce: str) -> None:
    check_with_params(convolutions.sage, conv_params("sage"), edges, features(), reduce=reduce)


def test_equal_winners_of_max_share_the_gradient_by_edge() -> None:
    """Node 0 receives the same value from 1, twice, and from 2: two thirds and one third."""
    edges = Edges.of(np.array([1, 2, 1, 3]), np.zeros(4, int), 4)
    params = {"self_kernel": np.zeros((1, 1)), "neighbor_kernel": np.ones((1, 1))}
    x = np.array([[0.0], [5.0], [5.0], [1.0]])
    y, backward = convolutions.sage(params, edges, x, "max")
    assert y[0, 0] == 5
    np.testing.assert_allclose(backward(np.full((4, 1), 3.0))[0], [[0], [2], [1], [0]])


@pytest.mark.parametrize("conv", ["gat", "gatv2"])
@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize("add_self_loops", [True, False])
@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_attention_gradients(conv: str, concat: bool, add_self_loops: bool, rate: float) -> None:
    used = EDGES.with_missing_self_loops() if add_self_loops else EDGES
    ends = used.receivers, used.senders, used.repetitions()
    check_with_params(
        getattr(convolutions, conv),
        conv_params(conv, concat),
        EDGES,
        features(),
        concat=concat,
        add_self_loops=add_self_loops,
        attention_keep=randomness.edge_keep_mask((7, 8), *ends, HEADS, rate),
        attention_rate=rate,
    )


def symmetric(edges: Edges) -> np.ndarray:
    """The matrix of `gcn`'s aggregation, entry by entry."""
    matrix = np.zeros((NUM_NODES, NUM_NODES))
    np.add.at(matrix, (edges.receivers, edges.senders), edges.weight)
    matrix += np.diag(np.diag(matrix) == 0).astype(float)
    root = matrix.sum(1) ** -0.5
    return root[:, None] * matrix * root


def test_appnp_is_a_polynomial_of_the_matrix() -> None:
    matrix, x = symmetric(WEIGHTED), features()
    expected = x
    for _ in range(3):
        expected = 0.8 * matrix @ expected + 0.2 * x
    y, backward = convolutions.appnp(WEIGHTED, x, steps=3, alpha=0.2)
    np.testing.assert_allclose(y, expected, rtol=1e-12)
    grad = features(5)
    given = Edges.of(SENDERS, RECEIVERS, NUM_NODES, WEIGHTED.weight)
    check_gradients(
        lambda: float((convolutions.appnp(given, x, steps=3, alpha=0.2)[0] * grad).sum()),
        x,
        backward(grad)[0],
    )


def test_gcn2_is_formula_and_gradient() -> None:
    x, initial, kernel = features(), features(1), features(2)[:IN]
    options: dict[str, Any] = {"alpha": 0.3, "theta": 0.5, "layer": 2}
    params = {"kernel": kernel}
    y, backward = convolutions.gcn2(params, WEIGHTED, x, initial, **options)
    h, beta = 0.7 * symmetric(WEIGHTED) @ x + 0.3 * initial, np.log(1.25)
    np.testing.assert_allclose(y, (1 - beta) * h + beta * h @ kernel, rtol=1e-12)
    grad = features(5)
    of_x, of_initial, of_params = backward(grad)
    check_gradients(
        lambda: float((convolutions.gcn2(params, WEIGHTED, x, initial, **options)[0] * grad).sum()),
        {"x": x, "initial": initial, "params": params},
        {"x": of_x, "initial": of_initial, "params": of_params},
    )


@pytest.mark.parametrize(
    "model",
    [
        models.Model("gcnii", activation="elu", jumping="cat"),
        models.Model("gcn", activation="elu", jumping="max"),
        models.Model("appnp", activation="elu"),
    ],
)
def test_gradients_of_models_that_read_earlier_layers(model: models.Model) -> None:
    params = models.init_params(model, IN, 4, OUT, 4, np.random.default_rng(1))
    x, grad = features(), features(5, OUT)
    of_x, of_params = models.forward(model, params, EDGES, x).backward(grad)
    check_gradients(
        lambda: float((models.forward(model, params, EDGES, x).logits * grad).sum()),
        {"x": x, "params": params},
        {"x": of_x, "params": of_params},
    )


def pna_params(aggregators: int, scalers: int) -> Params:
    rng, width = np.random.default_rng(1), 2
    sizes = {"sender_kernel": (IN, width), "receiver_kernel": (IN, width)}
    sizes |= {"self_kernel": (IN, OUT), "kernel": (aggregators * scalers * width, OUT)}
    params = {name: rng.standard_normal(size) for name, size in sizes.items()}
    return params | {"message_bias": rng.standard_normal(width), "bias": rng.standard_normal(OUT)}


@pytest.mark.parametrize("edges", [EDGES, NO_EDGES], ids=["plain", "none"])
def test_pna_gradients(edges: Edges) -> None:
    names = ("sum", "mean", "max", "min", "std")
    check_with_params(
        convolutions.pna, pna_params(5, 3), edges, features(), delta=1.3, aggregators=names
    )


def test_pna_node_by_node() -> None:
    params, x = pna_params(4, 3), features()
    actual, _ = convolutions.pna(params, EDGES, x, delta=1.3)
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


@pytest.mark.parametrize("edges", [EDGES, NO_EDGES], ids=["plain", "none"])
@pytest.mark.parametrize("concat", [True, False])
def test_transformer_gradients(edges: Edges, concat: bool) -> None:
    keep = randomness.edge_keep_mask(
        (7, 8), edges.receivers, edges.senders, edges.repetitions(), HEADS, 0.4
    )
    params = conv_params("transformer", concat)
    params["gate"] = features(3, HEADS * OUT if concat else OUT)[:3]
    check_with_params(
        convolutions.transformer,
        params,
        edges,
        features(),
        num_heads=HEADS,
        concat=concat,
        attention_keep=keep,
        attention_rate=0.4,
    )


def test_transformer_node_by_node() -> None:
    params, x = conv_params("transformer"), features()
    params["gate"] = features(3, HEADS * OUT)[:3]
    actual, _ = convolutions.transformer(params, EDGES, x, num_heads=HEADS)
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


@pytest.mark.parametrize("conv", ["gat", "gatv2"])
def test_attention_without_edges(conv: str) -> None:
    params = conv_params(conv)
    attend = getattr(convolutions, conv)
    check_with_params(attend, params, NO_EDGES, features(), add_self_loops=False)
    y, _ = attend(params, NO_EDGES, features(), add_self_loops=False)
    np.testing.assert_array_equal(y, np.broadcast_to(params["bias"], y.shape))


def test_attention_dropout_scales_what_it_keeps() -> None:
    """One sender, so alpha = 1: the output is z / (1 - rate) where kept, else 0."""
    edges = Edges.of(np.array([0, 0]), np.array([1, 2]), 3)
    params = conv_params("gat") | {"bias": np.zeros(HEADS * OUT)}
    keep = np.array([[True, False], [False, True]])
    x = features()[:3]
    y, _ = convolutions.gat(
        params, edges, x, add_self_loops=False, attention_keep=keep, attention_rate=0.75
    )
    z = (x @ params["kernel"]).reshape(3, HEADS, OUT)
    np.testing.assert_allclose(y[1].reshape(HEADS, OUT), [4 * z[0, 0], np.zeros(OUT)], rtol=1e-12)
    np.testing.assert_allclose(y[2].reshape(HEADS, OUT), [np.zeros(OUT), 4 * z[0, 1]], rtol=1e-12)


@pytest.mark.parametrize("edges", [EDGES, WEIGHTED, NO_EDGES], ids=["plain", "weighted", "none"])
def test_gin_gradients(edges: Edges) -> None:
    check_with_params(convolutions.gin, conv_params("gin"), edges, features())


@pytest.mark.parametrize("conv", ["gat", "gatv2", "gine"])
def test_gradients_with_features_of_edges(conv: str) -> None:
    params = conv_params(conv, edge_features=3)
    assert "edge_kernel" in params
    check_with_params(getattr(convolutions, conv), params, FEATURED, features())


def test_a_wrong_gradient_is_found() -> None:
    x = features()
    with pytest.raises(AssertionError, match="/x: error"):
        check_gradients(lambda: float((x**2).sum()), {"x": x}, {"x": 2.001 * x})
