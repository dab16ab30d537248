"""Float64 results of ops, compared with dense matrices and with differences of them."""

import numpy as np
import pytest

from benchmarks.cpu import reference as module
from benchmarks.cpu.inputs import AttentionInputs, Data, attention_inputs, node_features
from benchmarks.cpu.reference import reference
from benchmarks.cpu.tasks import Attention, Epoch, SpMM, Triad
from tests.benchmarks_cpu.graphs import adjacency, tiny

STEP = 1e-5
"""Of central differences."""


@pytest.mark.parametrize("weighted", [False, True])
def test_sums(weighted: bool):
    data = tiny()
    expected = reference(SpMM(3, weighted), data)
    assert expected is not None
    x = node_features(data.num_nodes, 3).astype(np.float64)
    matrix = adjacency(data, weighted)
    np.testing.assert_allclose(expected["y"].values, matrix @ x, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(expected["y"].terms, matrix @ np.abs(x), rtol=1e-12)


def attended(data: Data, z: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """y of [nodes, heads, features] and logits [nodes, heads], by dense matrices."""
    logits = left[None] + right[:, None]
    logits = np.where(logits >= 0, logits, 0.2 * logits)
    weights = adjacency(data)[..., None] * np.exp(logits)
    weights /= np.maximum(weights.sum(1, keepdims=True), 1e-300)
    return np.einsum("ijh,jhf->ihf", weights, z)


def wide(inputs: AttentionInputs) -> tuple[np.ndarray, ...]:
    names = ("values", "sender_logits", "receiver_logits", "gradient")
    return tuple(getattr(inputs, name).astype(np.float64) for name in names)


@pytest.mark.parametrize("at_once", [module.EDGES_AT_ONCE, 7])
def test_attention_and_its_gradients(at_once: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "EDGES_AT_ONCE", at_once)
    data, task = tiny(), Attention(2, 3, backward=True)
    expected = reference(task, data)
    assert expected is not None and list(expected) == ["y", "z", "l", "r"]
    *arguments, gradient = wide(attention_inputs(data.num_nodes, task))
    y = attended(data, *arguments)
    np.testing.assert_allclose(expected["y"].values, y, rtol=1e-12, atol=1e-12)
    for place, name in enumerate("zlr"):
        found = expected[name].values
        assert found.shape == arguments[place].shape
        assert (np.abs(found) <= expected[name].terms * (1 + 1e-12)).all()
        for index in np.ndindex(found.shape):
            moved = []
            for sign in (1, -1):
                changed = [array.copy() for array in arguments]
                changed[place][index] += sign * STEP
                moved.append(np.sum(gradient * attended(data, *changed)))
            assert found[index] == pytest.approx((moved[0] - moved[1]) / (2 * STEP), abs=1e-7)


def test_the_forward_alone_has_no_gradients():
    expected = reference(Attention(2, 3), tiny())
    assert expected is not None and list(expected) == ["y"]


def test_only_ops_have_a_reference():
    assert reference(Epoch("gcn"), tiny()) is None
    assert reference(Triad(4), None) is None
