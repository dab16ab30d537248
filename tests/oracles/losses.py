"""Losses over the masked nodes of a graph; `backward()` gives the gradient of the logits."""

from collections.abc import Callable

import numpy as np

Loss = tuple[float, Callable[[], np.ndarray]]


def softmax_cross_entropy(logits: np.ndarray, labels: np.ndarray, mask: np.ndarray) -> Loss:
    """The mean of -log softmax(logits)[label] over the masked nodes.

    Args:
        logits: float64 [num_nodes, classes].
        labels: int [num_nodes]; those outside the mask are not read.
        mask: bool [num_nodes].
    """
    count = int(mask.sum())
    powers = np.exp(logits - logits.max(1, keepdims=True))
    probabilities = powers / powers.sum(1, keepdims=True)
    chosen = np.zeros(logits.shape)
    chosen[np.flatnonzero(mask), labels[mask]] = 1
    shifted = logits - logits.max(1, keepdims=True)
    log_probabilities = shifted - np.log(powers.sum(1, keepdims=True))
    loss = -(chosen * log_probabilities).sum() / count
    return float(loss), lambda: (probabilities - chosen) * mask[:, None] / count


def sigmoid_cross_entropy(logits: np.ndarray, labels: np.ndarray, mask: np.ndarray) -> Loss:
    """The mean over the masked nodes and their labels of the binary cross entropy.

    -y log sigmoid(z) - (1 - y) log(1 - sigmoid(z)) = log(1 + exp(z)) - y z

    Args:
        logits: float64 [num_nodes, labels].
        labels: 0 or 1, [num_nodes, labels].
        mask: bool [num_nodes].
    """
    targets = labels.astype(np.float64)
    count = int(mask.sum()) * logits.shape[1]
    terms = np.logaddexp(0, logits) - targets * logits
    probabilities = np.exp(-np.logaddexp(0, -logits))
    loss = (terms * mask[:, None]).sum() / count
    return float(loss), lambda: (probabilities - targets) * mask[:, None] / count


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
    classes = logits.shape[1]
    nodes = np.flatnonzero(mask)
    targets = np.zeros(logits.shape)
    targets[nodes, labels[nodes]] = 1 - smoothing
    targets[nodes] += smoothing / classes
    targets *= weights
    log_probabilities = logits - np.logaddexp.reduce(logits, axis=1)[:, None]
    total = weights[labels[nodes]].sum()
    loss = -(targets * log_probabilities).sum() / total
    mass = targets.sum(1, keepdims=True)
    return float(loss), lambda: (mass * np.exp(log_probabilities) - targets) / total


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
    weights = known * weights
    targets = np.where(known, labels, 0) * (1 - smoothing) + smoothing / 2
    probabilities = 1 / (1 + np.exp(-logits))
    terms = -targets * np.log(probabilities) - (1 - targets) * np.log(1 - probabilities)
    gradient = weights * (probabilities - targets) / weights.sum()
    return float((weights * terms).sum() / weights.sum()), lambda: gradient


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
    difference = np.where(known, outputs - target, 0)
    size, count = np.abs(difference), known.sum()
    near = size <= delta
    terms, slopes = {
        "squared": (size**2, 2 * difference),
        "absolute": (size, np.sign(difference)),
        "huber": (
            np.where(near, size**2 / 2, delta * (size - delta / 2)),
            np.where(near, difference, delta * np.sign(difference)),
        ),
    }[loss]
    spread = sum(
        ((y - y.mean()) ** 2).sum() for y in (y[k] for y, k in zip(target.T, known.T, strict=True))
    )
    metrics = {
        "mse": float((size**2).sum() / count),
        "mae": float(size.sum() / count),
        "r2": float(1 - (size**2).sum() / spread),
    }
    return (float(terms.sum() / count), lambda: slopes / count), metrics
