"""The oracles of the ops: gradients written by hand against finite differences."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.oracles import edge_ops
from tests.oracles.differences import check_gradients
from tests.oracles.edges import Edges
from tests.strategies import random_edges

NODES, EDGES, HEADS, FEATURES = 9, 40, 2, 3


def edges() -> Edges:
    return Edges.of(*random_edges(NODES - 2, EDGES, seed=5), NODES)


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


def check(op: Callable, *arrays: np.ndarray) -> None:
    y, backward = op(*arrays)
    weights = np.random.default_rng(99).standard_normal(y.shape)
    gradients = [np.asarray(g) for g in backward(weights)]
    check_gradients(lambda: float((op(*arrays)[0] * weights).sum()), list(arrays), gradients)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("per_head", [False, True])
def test_aggregate(reduce: str, per_head: bool) -> None:
    shape = (EDGES, HEADS) if per_head else (EDGES,)
    x, weight = draw(NODES, HEADS, FEATURES), draw(*shape)
    check(lambda x, w: edge_ops.aggregate(edges(), x, w, reduce), x, weight)


def test_equal_winners_share_the_gradient() -> None:
    few = Edges.of(np.array([0, 1, 1, 2]), np.array([3, 3, 3, 3]), 4)
    x = np.array([[5.0], [5.0], [1.0], [0.0]])
    y, backward = edge_ops.aggregate(few, x, np.ones(4), "max")
    np.testing.assert_array_equal(y[:, 0], [0, 0, 0, 5])
    grad_x, grad_weight = backward(np.full((4, 1), 3.0))
    np.testing.assert_array_equal(grad_x[:, 0], [1, 2, 0, 0])
    np.testing.assert_array_equal(grad_weight, [5, 5, 5, 0])


def test_sddmm() -> None:
    sender, receiver = draw(NODES, HEADS, FEATURES), draw(NODES, HEADS, FEATURES) + 1
    check(lambda s, r: edge_ops.sddmm(edges(), s, r), sender, receiver)


def test_edge_softmax() -> None:
    check(lambda logits: edge_ops.edge_softmax(edges(), logits), draw(EDGES, HEADS))


def test_edge_softmax_of_nothing_but_minus_infinity_is_zero() -> None:
    few = Edges.of(np.array([0, 1, 1]), np.array([2, 2, 0]), 3)
    alpha, backward = edge_ops.edge_softmax(few, np.array([[-np.inf], [2.0], [-np.inf]]))
    np.testing.assert_array_equal(alpha[:, 0], [0, 1, 0])
    np.testing.assert_array_equal(backward(np.ones((3, 1)))[0], np.zeros((3, 1)))


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_attention(rate: float) -> None:
    keep = np.random.default_rng(3).random((EDGES, HEADS)) >= rate
    values, left, right = draw(NODES, HEADS, FEATURES), draw(NODES, HEADS), draw(NODES, HEADS) + 1
    check(
        lambda v, s, r: edge_ops.gat_attention(edges(), v, s, r, keep=keep, rate=rate),
        values,
        left,
        right,
    )
    receiver, attention = draw(NODES, HEADS, FEATURES) + 1, draw(HEADS, FEATURES)
    check(
        lambda s, r, a: edge_ops.gatv2_attention(edges(), s, r, a, keep=keep, rate=rate),
        values,
        receiver,
        attention,
    )
