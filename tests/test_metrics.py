"""Metrics against brute force, and their counts over devices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxgraph import metrics

LABEL_KINDS = ("single", "multi")
AVERAGES: tuple[metrics.Average, ...] = ("micro", "macro")


def draw(kind: str, seed: int, num_nodes: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, labels and a mask; class 5 never occurs, and some nodes have no class."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((num_nodes, 6)).astype(np.float32)
    if kind == "single":
        labels = rng.integers(-1, 5, num_nodes).astype(np.int32)
        logits[:, 5] -= 10
    else:
        labels = (rng.random((num_nodes, 6)) < 0.3).astype(np.float32)
    mask = rng.random(num_nodes) < 0.7
    mask[0] = True
    if kind == "single":
        labels[0] = 0
    return logits, labels, mask


def counted_pairs(
    logits: np.ndarray, labels: np.ndarray, mask: np.ndarray
) -> list[tuple[int, int, bool, bool]]:
    """(node, class, predicted, actual) of every node that counts."""
    pairs = []
    for node in range(len(labels)):
        if not mask[node] or (labels.ndim == 1 and labels[node] < 0):
            continue
        for column in range(logits.shape[1]):
            if labels.ndim == 1:
                predicted = column == max(range(logits.shape[1]), key=lambda c: logits[node, c])
                pairs.append((node, column, predicted, labels[node] == column))
            else:
                pairs.append((node, column, logits[node, column] > 0, labels[node, column] == 1))
    return pairs


# ------------------------------------------------------------------ against brute force


@given(kind=st.sampled_from(LABEL_KINDS), seed=st.integers(0, 10**6), size=st.integers(1, 30))
def test_f1_and_its_counts_pair_by_pair(kind: str, seed: int, size: int) -> None:
    logits, labels, mask = draw(kind, seed, size)
    true, false_positive, false_negative = (np.zeros(6) for _ in range(3))
    for _, column, predicted, actual in counted_pairs(logits, labels, mask):
        true[column] += predicted and actual
        false_positive[column] += predicted and not actual
        false_negative[column] += actual and not predicted
    counts = metrics.f1_counts(logits, labels, mask)
    np.testing.assert_array_equal(counts.true_positives, true)
    np.testing.assert_array_equal(counts.false_positives, false_positive)
    np.testing.assert_array_equal(counts.false_negatives, false_negative)
    occurring = [c for c in range(6) if true[c] + false_positive[c] + false_negative[c] > 0]
    of_class = [
        2 * true[c] / (2 * true[c] + false_positive[c] + false_negative[c]) for c in occurring
    ]
    expected = np.mean(of_class) if of_class else 0.0
    assert metrics.f1_score(logits, labels, mask, "macro") == pytest.approx(expected, abs=1e-12)
    wrong = false_positive.sum() + false_negative.sum()
    expected = 2 * true.sum() / (2 * true.sum() + wrong) if occurring else 0.0
    assert metrics.f1_score(logits, labels, mask, "micro") == pytest.approx(expected, abs=1e-12)


@given(kind=st.sampled_from(LABEL_KINDS), seed=st.integers(0, 10**6), size=st.integers(1, 30))
def test_accuracy_pair_by_pair(kind: str, seed: int, size: int) -> None:
    logits, labels, mask = draw(kind, seed, size)
    pairs = counted_pairs(logits, labels, mask)
    if kind == "single":
        wrong = {node for node, _, predicted, actual in pairs if predicted != actual}
        nodes = {node for node, *_ in pairs}
        expected = 1 - len(wrong) / len(nodes)
    else:
        expected = np.mean([predicted == actual for *_, predicted, actual in pairs])
    assert metrics.accuracy(logits, labels, mask) == pytest.approx(expected, abs=1e-12)
    classes = logits.argmax(1) if kind == "single" else logits > 0
    assert metrics.accuracy(classes, labels, mask) == pytest.approx(expected, abs=1e-12)


@given(seed=st.integers(0, 10**6), size=st.integers(2, 25), levels=st.integers(1, 8))
def test_roc_auc_is_the_share_of_pairs_in_order(seed: int, size: int, levels: int) -> None:
    """Every (positive, negative) pair: 1 in order, 1/2 if equal, 0 else."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, levels, (size, 3)) / levels
    labels = rng.integers(0, 2, (size, 3))
    labels[:2, 0] = (0, 1)
    labels[:, 2] = 1  # has no negatives: left out
    areas = []
    for label in range(2):
        above = scores[labels[:, label] == 1, label]
        below = scores[labels[:, label] == 0, label]
        if len(above) and len(below):
            order = above[:, None] - below[None, :]
            areas.append(np.mean((order > 0) + 0.5 * (order == 0)))
    assert metrics.roc_auc(scores, labels) == pytest.approx(np.mean(areas), abs=1e-12)


# ------------------------------------------------------------------ over devices


@pytest.mark.parametrize("kind", LABEL_KINDS)
@pytest.mark.parametrize("num_devices", [1, 4])
def test_counts_over_devices_give_the_metric_of_the_whole(kind: str, num_devices: int) -> None:
    logits, labels, mask = draw(kind, 8, 64)
    expected = [metrics.accuracy(logits, labels, mask)]
    expected += [metrics.f1_score(logits, labels, mask, average) for average in AVERAGES]
    logits[~mask] = np.nan  # masked values must not count, even NaN
    mesh = Mesh(np.array(jax.devices()[:num_devices]), ("parts",))

    def on_device(logits: jax.Array, labels: jax.Array, mask: jax.Array) -> tuple[jax.Array, ...]:
        correct, count = jax.lax.psum(metrics.accuracy_counts(logits, labels, mask), "parts")
        f1 = jax.lax.psum(metrics.f1_counts(logits, labels, mask), "parts")
        return correct / count, *(metrics.f1_from_counts(f1, average) for average in AVERAGES)

    sharded = jax.shard_map(
        on_device, mesh=mesh, in_specs=P("parts"), out_specs=P(), check_vma=True
    )
    actual = jax.jit(sharded)(jnp.asarray(logits), jnp.asarray(labels), jnp.asarray(mask))
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize("kind", LABEL_KINDS)
def test_counts_of_traced_and_of_host_arrays_are_equal(kind: str) -> None:
    arrays = draw(kind, 9)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        traced = jax.jit(metrics.f1_counts)(*map(jnp.asarray, arrays))
        traced_accuracy = jax.jit(metrics.accuracy_counts)(*map(jnp.asarray, arrays))
        for average in AVERAGES:
            of_traced = jax.jit(metrics.f1_from_counts, static_argnums=1)(traced, average)
            of_host = metrics.f1_from_counts(metrics.f1_counts(*arrays), average)
            assert float(of_traced) == pytest.approx(float(of_host), rel=1e-6)
    for one, other in zip(traced, metrics.f1_counts(*arrays), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype == np.int32
    np.testing.assert_array_equal(traced_accuracy, metrics.accuracy_counts(*arrays))


@pytest.mark.parametrize("average", AVERAGES)
def test_f1_without_nodes_is_zero(average: metrics.Average) -> None:
    logits, labels, _ = draw("single", 2)
    counts = metrics.f1_counts(logits, labels, np.zeros(len(labels), bool))
    assert metrics.f1_from_counts(counts, average) == 0.0


# ------------------------------------------------------------------ arguments


@pytest.mark.parametrize("kind", LABEL_KINDS)
def test_no_mask_counts_every_node_with_a_label(kind: str) -> None:
    logits, labels, _ = draw(kind, 3)
    everything = np.ones(len(labels), bool)
    assert metrics.accuracy(logits, labels) == metrics.accuracy(logits, labels, everything)
    _, count = metrics.accuracy_counts(logits, labels)
    assert count == ((labels >= 0).sum() if kind == "single" else labels.size)


@pytest.mark.parametrize("xp", [np, jnp])
def test_logits_with_nan_predict_no_class(xp: Any) -> None:
    """Right: node 1. Missed: nodes 0 and 2, whose NaN stands in and beside their class."""
    logits = xp.asarray([[np.nan, 0.0, 1.0], [0.0, 2.0, 1.0], [np.nan, 0.0, 3.0]])
    labels = xp.asarray([0, 1, 2])
    correct, count = metrics.accuracy_counts(logits, labels)
    assert (int(correct), int(count)) == (1, 3)
    counts = metrics.f1_counts(logits, labels)
    for one, expected in zip(counts, ([0, 1, 0], [0, 0, 0], [1, 0, 1]), strict=True):
        np.testing.assert_array_equal(one, expected)
    assert metrics.accuracy(logits, labels) == pytest.approx(1 / 3)
    assert metrics.f1_score(logits, labels) == pytest.approx(2 / 4)
    assert metrics.f1_score(logits, labels, average="macro") == pytest.approx(1 / 3)
    assert metrics.accuracy(logits > 0, xp.asarray([[0, 0, 1], [0, 1, 1], [0, 0, 1]])) == 1


@pytest.mark.parametrize("xp", [np, jnp])
def test_a_nan_of_multi_label_logits_is_neither_positive_nor_right(xp: Any) -> None:
    """Node 0 has NaN for a label that it has, node 1 for one that it has not."""
    logits = xp.asarray([[np.nan, -1.0], [np.nan, 1.0]])
    labels = xp.asarray([[1, 0], [0, 1]])
    assert metrics.accuracy(logits, labels) == 0.5
    counts = metrics.f1_counts(logits, labels)
    for one, expected in zip(counts, ([0, 1], [0, 0], [1, 0]), strict=True):
        np.testing.assert_array_equal(one, expected)


@pytest.mark.parametrize(
    ("labels", "predictions", "micro", "macro"),
    [
        ([0, 1, 0], [-1, 1, 0], 2 / 3, 5 / 9),
        ([0, 1, 0, -1], [-1, 1, 0, 7], 2 / 3, 5 / 9),  # a node without a label does not count
        ([0, 1, 0], [10**15, 1, 0], 2 / 3, 5 / 9),  # takes no column for each number below it
        ([0, 1, 0], [-2, 1, -1], 1 / 3, 1 / 4),
    ],
)
def test_a_prediction_that_is_no_class_of_the_graph_is_a_false_positive(
    labels: list[int], predictions: list[int], micro: float, macro: float
) -> None:
    """Every prediction and every label counts once: micro F1 is the share of right ones."""
    arrays = np.array(predictions), np.array(labels)
    assert metrics.f1_score(*arrays) == pytest.approx(micro)
    assert metrics.f1_score(*arrays, average="macro") == pytest.approx(macro)
    counts = metrics.f1_counts(*arrays, num_classes=2)
    np.testing.assert_array_equal(counts.false_positives, [0, 0])


def test_a_class_that_is_predicted_and_nowhere_right_counts() -> None:
    """Right 1, wrongly predicted 1, missed 1."""
    assert metrics.f1_score(np.array([0, 2]), np.array([0, 0])) == 0.5


def test_predicted_classes_need_their_number_to_be_counted() -> None:
    logits, labels, mask = draw("single", 3)
    with pytest.raises(ValueError, match="num_classes"):
        metrics.f1_counts(logits.argmax(1), labels, mask)
    counts = metrics.f1_counts(logits.argmax(1), labels, mask, num_classes=6)
    for one, other in zip(counts, metrics.f1_counts(logits, labels, mask), strict=True):
        np.testing.assert_array_equal(one, other)


WRONG: list[tuple[Any, str]] = [
    (lambda z, y, m: (z[1:], y, m), "do not fit labels"),
    (lambda z, y, m: (z[:, 0], y, m), "do not fit labels"),
    (lambda z, y, m: (z[:, :3], z > 0, m), "do not fit labels"),
    (lambda z, y, m: (z, y.astype(np.float32), m), "labels must be integer"),
    (lambda z, y, m: (z, y, m.astype(np.int32)), "mask must be bool"),
    (lambda z, y, m: (z, y, m[1:]), "mask must be bool"),
    (lambda z, y, m: (z, y, 0 * m > 0), "no node counts"),
    (lambda z, y, m: (z, 0 * y - 1, m), "no node counts"),
    (lambda z, y, m: (z, np.full(z.shape, 2), m), "0 or 1"),
    (lambda z, y, m: (z, 0 * y + 6, m), "reach class 6"),
]


@pytest.mark.parametrize("metric", [metrics.accuracy, metrics.f1_score])
@pytest.mark.parametrize(("change", "message"), WRONG)
def test_what_does_not_fit_is_refused(metric: Any, change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        metric(*change(*draw("single", 1)))


def test_unknown_averages_are_refused() -> None:
    with pytest.raises(ValueError, match="'micro' or 'macro'"):
        metrics.f1_score(*draw("single", 1), "weighted")  # pyright: ignore[reportArgumentType]


def test_roc_auc_refuses_what_it_cannot_rank() -> None:
    logits, labels, mask = draw("multi", 1)
    with pytest.raises(ValueError, match="must both be"):
        metrics.roc_auc(logits, labels[:, 0], mask)
    with pytest.raises(ValueError, match="undefined"):
        metrics.roc_auc(logits, np.ones_like(labels), mask)
    with pytest.raises(ValueError, match="NaN"):
        metrics.roc_auc(np.full_like(logits, np.nan), labels, mask)
    with pytest.raises(ValueError, match="no node counts"):
        metrics.roc_auc(logits, labels, np.zeros(len(labels), bool))
    logits[~mask] = np.nan
    assert 0 < metrics.roc_auc(logits, labels, mask) < 1
