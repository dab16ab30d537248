"""Label propagation, and Correct & Smooth, on one undivided graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.oracles.convolutions import symmetric
from tests.oracles.edge_ops import aggregate
from tests.oracles.edges import Edges

Step = Callable[[np.ndarray], np.ndarray]


def propagate(
    edges: Edges, start: np.ndarray, steps: int, alpha: float, post_step: Step
) -> np.ndarray:
    """z = post_step(alpha D^-1/2 W D^-1/2 z + (1 - alpha) start), from z = start."""
    factors, z = edges.weight * symmetric(edges, edges.weight), start
    for _ in range(steps):
        z = post_step(alpha * aggregate(edges, z, factors, "sum") + (1 - alpha) * start)
    return z


def smooth(
    edges: Edges, start: np.ndarray, labelled: np.ndarray, hot: np.ndarray, steps: int, alpha: float
) -> np.ndarray:
    """Propagates labels of some nodes, and `start` of all others; `hot` is one-hot."""
    start = np.where(labelled[:, None], hot, start)
    return propagate(edges, start, steps, alpha, lambda z: np.clip(z, 0, 1))


def correct(
    edges: Edges,
    predictions: np.ndarray,
    train: np.ndarray,
    hot: np.ndarray,
    steps: int,
    alpha: float,
    scale: float | None,
) -> np.ndarray:
    """Adds the propagated error of training nodes; `scale` is None where it is that of the node."""
    error = np.zeros_like(predictions)
    error[train] = (hot - predictions)[train]
    if scale is not None:

        def reset(z: np.ndarray) -> np.ndarray:
            return np.where(train[:, None], error, z)

        return predictions + scale * propagate(edges, error, steps, alpha, reset)
    moved = propagate(edges, error, steps, alpha, lambda z: np.clip(z, -1, 1))
    with np.errstate(divide="ignore"):
        scales = np.abs(error[train]).sum() / train.sum() / np.abs(moved).sum(1, keepdims=True)
    scales[np.isinf(scales) | (scales > 1000)] = 1
    return predictions + scales * moved
