"""The references of losses and of whole models: formulas, and gradients by finite differences."""

import numpy as np
import pytest

from tests.oracles import convolutions, functions, losses, models, randomness
from tests.oracles.differences import check_gradients, gradient
from tests.oracles.seven_nodes import EDGES, HEADS, IN, NUM_NODES, OUT, features

# ------------------------------------------------------------------ losses


def test_softmax_cross_entropy() -> None:
    logits, mask = 3 * features(), np.arange(NUM_NODES) % 3 != 1
    labels = np.array([0, -1, 3, 2, -1, 0, 1])
    loss, backward = losses.softmax_cross_entropy(logits, labels, mask)
    terms = [
        np.log(np.exp(logits[node]).sum()) - logits[node, labels[node]]
        for node in np.flatnonzero(mask)
    ]
    assert loss == pytest.approx(np.mean(terms), rel=1e-12)
    actual = backward()
    numeric = gradient(lambda: losses.softmax_cross_entropy(logits, labels, mask)[0], logits)
    np.testing.assert_allclose(actual, numeric, atol=1e-8)
    assert not actual[~mask].any()


def test_sigmoid_cross_entropy() -> None:
    logits, mask = 3 * features(), np.arange(NUM_NODES) % 3 != 1
    labels = (features(1) > 0).astype(np.float32)
    loss, backward = losses.sigmoid_cross_entropy(logits, labels, mask)
    probabilities = 1 / (1 + np.exp(-logits))
    terms = np.where(labels == 1, -np.log(probabilities), -np.log(1 - probabilities))
    assert loss == pytest.approx(terms[mask].mean(), rel=1e-12)
    actual = backward()
    numeric = gradient(lambda: losses.sigmoid_cross_entropy(logits, labels, mask)[0], logits)
    np.testing.assert_allclose(actual, numeric, atol=1e-8)
    assert not actual[~mask].any()


def test_losses_do_not_overflow() -> None:
    logits, mask = np.array([[1e4, -1e4], [-1e4, 1e4]]), np.ones(2, bool)
    assert losses.softmax_cross_entropy(logits, np.array([0, 0]), mask)[0] == pytest.approx(1e4)
    targets = np.array([[1, 0], [1, 0]])
    assert losses.sigmoid_cross_entropy(logits, targets, mask)[0] == pytest.approx(0.5e4)


# ------------------------------------------------------------------ models

MODELS = {
    "gcn": models.Model("gcn", dropout=0.3),
    "gcn-residual": models.Model("gcn", residual=True, norm="layer", dropout=0.2),
    "gcn-no-loops": models.Model("gcn", add_self_loops=False, activation="elu"),
    "sage-mean": models.Model("sage", norm="batch", dropout=0.3),
    "sage-max": models.Model("sage", reduce="max", residual=True),
    "gat": models.Model(
        "gat", HEADS, activation="elu", norm="batch", dropout=0.2, attention_dropout=0.3
    ),
    "gatv2": models.Model("gatv2", HEADS, residual=True, norm="layer", attention_dropout=0.3),
    "gin": models.Model("gin", norm="batch", dropout=0.2),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("train", [True, False])
def test_model_gradients(name: str, train: bool) -> None:
    model = MODELS[name]
    params = models.init_params(model, IN, 5, OUT, 3, np.random.default_rng(2))
    statistics = models.init_statistics(params)
    seeds = [models.LayerSeeds((layer, 3), (layer, 4)) for layer in range(3)] if train else None
    x, labels = features(), np.arange(NUM_NODES) % OUT
    mask = np.arange(NUM_NODES) < 5

    def run() -> models.Result:
        return models.forward(
            model, params, EDGES, x, seeds=seeds, statistics=statistics, train=train
        )

    def loss() -> float:
        return losses.softmax_cross_entropy(run().logits, labels, mask)[0]

    result = run()
    assert result.logits.shape == (NUM_NODES, OUT)
    _, backward = losses.softmax_cross_entropy(result.logits, labels, mask)
    grad_x, grads = result.backward(backward())
    check_gradients(loss, {"x": x, "params": params}, {"x": grad_x, "params": grads})


def test_a_model_is_its_layers_one_after_another() -> None:
    model = models.Model("gat", HEADS, activation="elu", norm="layer", residual=True, dropout=0.5)
    params = models.init_params(model, IN, 5, OUT, 2, np.random.default_rng(2))
    seeds = [models.LayerSeeds((layer, 3), (layer, 4)) for layer in range(2)]
    actual = models.forward(model, params, EDGES, features(), seeds=seeds).logits

    def dropped(x: np.ndarray, layer: int) -> np.ndarray:
        ids = np.arange(NUM_NODES)
        return x * randomness.node_keep_mask((layer, 3), ids, x.shape[1], 0.5) * 2

    h = dropped(features(), 0)
    y = convolutions.gat(params[0]["conv"], EDGES, h)[0] + h @ params[0]["residual"]["kernel"]
    x = functions.elu(functions.layer_norm(params[0]["norm"], y)[0])[0]
    expected = convolutions.gat(params[1]["conv"], EDGES, dropped(x, 1), concat=False)[0]
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_statistics_change_in_training_only() -> None:
    model = models.Model("sage", norm="batch", residual=True)
    params = models.init_params(model, IN, 5, OUT, 3, np.random.default_rng(2))
    start = models.init_statistics(params)
    trained = models.forward(model, params, EDGES, features(), statistics=start, train=True)
    kept = models.forward(model, params, EDGES, features(), statistics=start)
    y = convolutions.sage(params[0]["conv"], EDGES, features())[0]
    y = y + features() @ params[0]["residual"]["kernel"]
    np.testing.assert_allclose(trained.statistics[0]["mean"], 0.1 * y.mean(0))
    np.testing.assert_allclose(trained.statistics[0]["var"], 0.9 + 0.1 * y.var(0))
    assert len(trained.statistics) == 2
    assert all(new is old for new, old in zip(kept.statistics, start, strict=True))
