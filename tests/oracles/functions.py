"""Functions of one array: linear, activations, dropout, normalisation."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.oracles.tape import concatenate, exp, plain

Params = dict[str, Any]

NORM_EPSILON = 1e-5
STATISTICS_MOMENTUM = 0.9


def linear(params: Params, x: Any) -> Any:
    """y = x W + b, with W `kernel` [in, out] and b `bias` [out] where there is one."""
    return x @ params["kernel"] + params.get("bias", 0.0)


def relu(x: Any) -> Any:
    """max(x, 0), with derivative 0 at 0."""
    return x * (plain(x) > 0)


def elu(x: Any) -> Any:
    """x where positive, else exp(x) - 1."""
    return relu(x) + exp(x * (plain(x) <= 0)) - 1


def leaky_relu(x: Any, slope: float = 0.2) -> Any:
    """x where not negative, else slope x, with derivative 1 at 0."""
    return x * np.where(plain(x) >= 0, 1.0, slope)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + exp(-x))


def dropout(x: Any, keep: np.ndarray, rate: float) -> Any:
    """x keep / (1 - rate)."""
    return x * (keep / (1 - rate))


def joined(how: str, arrays: Sequence[Any]) -> Any:
    """Arrays of the same rows by column ("cat"), or their maximum ("max"); equal ones share."""
    if how == "cat":
        return concatenate(arrays, 1)
    best = np.max([plain(each) for each in arrays], 0)
    wins = [plain(each) == best for each in arrays]
    return sum(each * (win / np.sum(wins, 0)) for each, win in zip(arrays, wins, strict=True))


def affine(params: Params, x: Any) -> Any:
    """x `scale` + `bias`, both [features]."""
    return x * params["scale"] + params["bias"]


def normalize(x: Any, axis: int) -> Any:
    """(x - mean) / sqrt(variance + epsilon) over `axis`; the variance is divided by the count."""
    centred = x - x.mean(axis, keepdims=True)
    return centred / ((centred**2).mean(axis, keepdims=True) + NORM_EPSILON) ** 0.5


def layer_norm(params: Params, x: Any) -> Any:
    """Normalises each node over its features, then scales and shifts."""
    return affine(params, normalize(x, axis=1))


def batch_norm(params: Params, x: Any) -> Any:
    """Normalises each feature over all nodes, then scales and shifts."""
    return affine(params, normalize(x, axis=0))


def batch_norm_inference(params: Params, statistics: Params, x: Any) -> Any:
    """Normalises each feature by running statistics `mean` and `var`, then scales and shifts."""
    deviation = np.sqrt(statistics["var"] + NORM_EPSILON)
    return affine(params, (x - statistics["mean"]) / deviation)


def updated_statistics(statistics: Params, x: np.ndarray) -> Params:
    """0.9 of the running mean and variance and 0.1 of those of `x`, both divided by the count."""
    new = {"mean": x.mean(0), "var": x.var(0)}
    momentum = STATISTICS_MOMENTUM
    return {name: momentum * statistics[name] + (1 - momentum) * new[name] for name in new}
