"""Losses over the masked nodes of a graph; `backward()` gives the gradient of the logits."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.oracles.tape import differentiate, exp, log, plain

Loss = tuple[float, Callable[[], np.ndarray]]


def _loss(function: Callable[[Any], Any], logits: np.ndarray) -> Loss:
    value, backward = differentiate(function, logits)
    return float(value), lambda: backward(1.0)[0]


def _log_softmax(logits: Any) -> Any:
    shifted = logits - plain(logits).max(1, keepdims=True)
    return shifted - log(exp(shifted).sum(1, keepdims=True))


def _log_sigmoid(logits: Any) -> Any:
    """min(z, 0) - log(1 + exp(-|z|))."""
    sign = np.where(plain(logits) > 0, 1.0, -1.0)
    return logits * (sign < 0) - log(1 + exp(-logits * sign))


def mean_cross_entropy(logits: Any, labels: np.ndarray, mask: np.ndarray) -> Any:
    """The mean of -log softmax(logits)[label] over the masked nodes.

    Args:
        logits: float64 [num_nodes, classes].
        labels: int [num_nodes]; those outside the mask are not read.
        mask: bool [num_nodes].
    """
    return -_log_softmax(logits)[np.flatnonzero(mask), labels[mask]].mean()


def softmax_cross_entropy(logits: np.ndarray, labels: np.ndarray, mask: np.ndarray) -> Loss:
    """`mean_cross_entropy`, and its gradient."""
    return _loss(lambda z: mean_cross_entropy(z, labels, mask), logits)


def weighed_cross_entropy(
    logits: np.ndarray, labels: np.ndarray, mask: np.ndarray, weights: np.ndarray, smoothing: float
) -> Loss:
    """The cross entropy against smoothed classes, divided by the weights of the true classes.

    Args:
        logits: float64 [num_nodes, classes].
        labels: int [num_nodes]; those outside the mask are not read.
        mask: bool [num_nodes].
        weights: float64 [classes].
        smoothing: the share of a label that is given to all classes alike.
    """
    nodes = np.flatnonzero(mask)
    targets = np.zeros(logits.shape)
    targets[nodes, labels[nodes]] = 1 - smoothing
    targets[nodes] += smoothing / logits.shape[1]
    share = targets * weights / weights[labels[nodes]].sum()
    return _loss(lambda z: -(share * _log_softmax(z)).sum(), logits)


def weighed_sigmoid_cross_entropy(
    logits: np.ndarray, labels: np.ndarray, mask: np.ndarray, weights: np.ndarray, smoothing: float
) -> Loss:
    """The mean over known pairs of node and label, weighed by label, of the binary cross entropy.

    Args:
        logits: float64 [num_nodes, labels].
        labels: 0, 1 or NaN, [num_nodes, labels].
        mask: bool [num_nodes].
        weights: float64 [labels].
        smoothing: the share of a label that is given to 0 and 1 alike.
    """
    known = mask[:, None] & ~np.isnan(labels)
    share = known * weights / (known * weights).sum()
    targets = np.where(known, labels, 0) * (1 - smoothing) + smoothing / 2

    def mean(z: Any) -> Any:
        return -(share * (targets * _log_sigmoid(z) + (1 - targets) * _log_sigmoid(-z))).sum()

    return _loss(mean, logits)


def regression(
    outputs: np.ndarray, target: np.ndarray, mask: np.ndarray, loss: str, delta: float
) -> tuple[Loss, dict[str, float]]:
    """The mean loss over the known entries of masked nodes, and the metrics.

    Args:
        outputs: float64 [num_nodes, entries].
        target: float64 [num_nodes, entries], NaN where it is not known.
        mask: bool [num_nodes].
        loss: "squared", "absolute" or "huber".
        delta: of "huber".
    """
    known = mask[:, None] & ~np.isnan(target)
    aims, count = np.where(known, target, 0), known.sum()
    size = np.abs(np.where(known, outputs - target, 0))
    near = size <= delta

    def mean(y: Any) -> Any:
        difference = (y - aims) * known
        absolute = difference * np.sign(plain(difference))
        terms = {
            "squared": difference**2,
            "absolute": absolute,
            "huber": near * difference**2 / 2 + ~near * (delta * (absolute - delta / 2)),
        }
        return terms[loss].sum() / count

    spread = sum(
        ((y - y.mean()) ** 2).sum() for y in (y[k] for y, k in zip(target.T, known.T, strict=True))
    )
    metrics = {
        "mse": float((size**2).sum() / count),
        "mae": float(size.sum() / count),
        "r2": float(1 - (size**2).sum() / spread),
    }
    return _loss(mean, outputs), metrics
