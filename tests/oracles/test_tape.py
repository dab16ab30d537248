"""Gradients of the references: every operation, and whole models, by finite differences."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.oracles import edge_ops, functions, models, tape
from tests.oracles.edges import Edges
from tests.oracles.seven_nodes import EDGES, HEADS, IN, NUM_NODES, OUT, features
from tests.oracles.tape import differentiate

STEP = 1e-6


def leaves(tree: Any) -> list[np.ndarray]:
    """The floating arrays of nested dicts and lists."""
    branches = list(tree.values()) if isinstance(tree, dict) else tree
    if isinstance(branches, list | tuple):
        return [leaf for branch in branches for leaf in leaves(branch)]
    return [tree] if isinstance(tree, np.ndarray) and tree.dtype.kind == "f" else []


def check_gradients(function: Callable[..., Any], *arguments: Any) -> None:
    """Fails where a gradient of <y, weights> is not its central difference."""
    y, backward = differentiate(function, *arguments)
    weights = np.random.default_rng(9).standard_normal(y.shape)
    found = leaves(backward(weights))
    arrays = leaves(arguments)
    assert len(found) == len(arrays)
    for array, actual in zip(arrays, found, strict=True):
        assert actual.shape == array.shape
        for index in np.ndindex(array.shape):
            original, ends = array[index], []
            for step in (STEP, -STEP):
                array[index] = original + step
                ends.append((np.asarray(function(*arguments)) * weights).sum())
            array[index] = original
            expected = (ends[0] - ends[1]) / (2 * STEP)
            assert actual[index] == pytest.approx(expected, rel=1e-6, abs=1e-6)


A, B, ROW, ONE = features(), features(1), features(2)[0], np.asarray(0.7)
OPERATIONS: dict[str, Callable[..., Any]] = {
    "sums": lambda a, b, row, one: a + b - row + (one - a) - 2,
    "products": lambda a, b, row, one: -a * b * row * one / (2 + b**2) + 1 / (1 + row**2),
    "matrices": lambda a, b, row, one: a @ b[:IN] + np.ones((NUM_NODES, IN)) @ b[:IN],
    "rows": lambda a, b, row, one: a[[0, 3, 3]] * b[1:4] + a[[1, 2, 2], [0, 0, 0], None],
    "shapes": lambda a, b, row, one: a.reshape(-1) * b.reshape(-1) + one.reshape(1),
    "reductions": lambda a, b, row, one: (
        a.sum() + b.mean(0) * a.sum(1, keepdims=True) + (a * b).mean((0, 1)) + b.sum(-1)[:, None]
    ),
    "powers": lambda a, b, row, one: tape.exp(a) * tape.log(1 + b**2) * (1 + row**2) ** 0.5,
    "joined": lambda a, b, row, one: tape.concatenate([a, row * b, a * one], 1),
    "sum at": lambda a, b, row, one: tape.sum_at(np.array([0, 2, 2, 0, 1, 1, 5]), a * b, 6) * row,
    "used twice": lambda a, b, row, one: (a * b) * (a * b) + a,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name: str) -> None:
    check_gradients(OPERATIONS[name], A, B, ROW, ONE)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "std"])
def test_reductions(reduce: str) -> None:
    weight = np.random.default_rng(3).standard_normal(len(EDGES.senders))
    check_gradients(lambda x, w: edge_ops.aggregate(EDGES, x, w, reduce), features(), weight)


def test_equal_winners_share_the_gradient() -> None:
    few = Edges.of(np.array([0, 1, 1, 2]), np.array([3, 3, 3, 3]), 4)
    x = np.array([[5.0], [5.0], [1.0], [0.0]])
    y, backward = differentiate(edge_ops.aggregate, few, x, np.ones(4), "max")
    np.testing.assert_allclose(y[:, 0], [0, 0, 0, 5])
    _, of_x, of_weight, _ = backward(np.full((4, 1), 3.0))
    np.testing.assert_allclose(of_x[:, 0], [1, 2, 0, 0])
    np.testing.assert_allclose(of_weight, [5, 5, 5, 0])
    _, backward = differentiate(functions.joined, "max", [x, x, 2 * x])
    np.testing.assert_allclose(backward(np.ones((4, 1)))[1][0][:, 0], [0, 0, 0, 1 / 3])


def test_edge_softmax_of_nothing_but_minus_infinity_is_zero() -> None:
    few = Edges.of(np.array([0, 1, 1]), np.array([2, 2, 0]), 3)
    logits = np.array([[-np.inf], [2.0], [-np.inf]])
    alpha, backward = differentiate(edge_ops.edge_softmax, few, logits)
    np.testing.assert_array_equal(alpha[:, 0], [0, 1, 0])
    np.testing.assert_array_equal(backward(np.ones((3, 1)))[1], np.zeros((3, 1)))


@pytest.mark.parametrize(
    "model",
    [
        models.Model("sage", norm="batch", reduce="max", residual=True, dropout=0.3),
        models.Model("gat", HEADS, activation="elu", norm="layer", attention_dropout=0.3),
        models.Model("transformer", HEADS, dropout=0.2, attention_dropout=0.3),
        models.Model("gcnii", activation="elu", jumping="cat"),
        models.Model("appnp", activation="elu", jumping="max"),
    ],
)
def test_models(model: models.Model) -> None:
    params = models.init_params(model, IN, 4, OUT, 4, np.random.default_rng(1))
    options: dict[str, Any] = {"statistics": models.init_statistics(params), "train": True}
    options["seeds"] = [models.LayerSeeds((layer, 3), (layer, 4)) for layer in range(4)]
    forward = lambda params, x: models.forward(model, params, EDGES, x, **options)[0]  # noqa: E731
    check_gradients(forward, params, features())


def test_a_wrong_gradient_is_found() -> None:
    def wrong(x: Any) -> Any:
        return tape.exp(x) if isinstance(x, tape.Value) else np.exp(1.001 * x)

    with pytest.raises(AssertionError):
        check_gradients(wrong, features())
