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
