"""Functions of one array: linear, activations, dropout, normalisation."""

from collections.abc import Callable, Sequence

import numpy as np

Params = dict[str, np.ndarray]
Backward = Callable[[np.ndarray], np.ndarray]
ParamsBackward = Callable[[np.ndarray], tuple[np.ndarray, Params]]

NORM_EPSILON = 1e-5
STATISTICS_MOMENTUM = 0.9


def linear(params: Params, x: np.ndarray) -> tuple[np.ndarray, ParamsBackward]:
    """y = x W + b, with W `kernel` [in, out] and b `bias` [out] where there is one."""
    kernel = params["kernel"]

    def backward(grad: np.ndarray) -> tuple[np.ndarray, Params]:
        grads = {"kernel": x.T @ grad}
        if "bias" in params:
            grads["bias"] = grad.sum(0)
        return grad @ kernel.T, grads

    return x @ kernel + params.get("bias", np.zeros(kernel.shape[1])), backward


def relu(x: np.ndarray) -> tuple[np.ndarray, Backward]:
    """max(x, 0), with derivative 0 at 0."""
    return np.maximum(x, 0), lambda grad: grad * (x > 0)


def elu(x: np.ndarray) -> tuple[np.ndarray, Backward]:
    """x where positive, else exp(x) - 1."""
    below = np.exp(np.minimum(x, 0))
    return np.where(x > 0, x, below - 1), lambda grad: grad * np.where(x > 0, 1.0, below)


def leaky_relu(x: np.ndarray, slope: float = 0.2) -> tuple[np.ndarray, Backward]:
    """x where not negative, else slope x, with derivative 1 at 0."""
    factor = np.where(x >= 0, 1.0, slope)
    return factor * x, lambda grad: grad * factor


def dropout(x: np.ndarray, keep: np.ndarray, rate: float) -> tuple[np.ndarray, Backward]:
    """x keep / (1 - rate)."""
    factor = keep / (1 - rate)
    return x * factor, lambda grad: grad * factor


def joined(
    how: str, arrays: Sequence[np.ndarray]
) -> tuple[np.ndarray, Callable[[np.ndarray], list[np.ndarray]]]:
    """Arrays of the same rows by column ("cat"), or their maximum ("max"); equal ones share."""
    if how == "cat":
        ends = np.cumsum([each.shape[1] for each in arrays])[:-1]
        return np.concatenate(arrays, 1), lambda grad: np.split(grad, ends, 1)
    y = np.max(arrays, 0)
    counts = np.sum([each == y for each in arrays], 0)
    return y, lambda grad: [(each == y) * grad / counts for each in arrays]


def normalize(x: np.ndarray, axis: int) -> tuple[np.ndarray, Backward]:
    """(x - mean) / sqrt(variance + epsilon) over `axis`; the variance is divided by the count."""
    deviation = np.sqrt(x.var(axis, keepdims=True) + NORM_EPSILON)
    y = (x - x.mean(axis, keepdims=True)) / deviation

    def backward(grad: np.ndarray) -> np.ndarray:
        centered = grad - grad.mean(axis, keepdims=True)
        return (centered - y * (grad * y).mean(axis, keepdims=True)) / deviation

    return y, backward


def scale_and_shift(params: Params, x: np.ndarray) -> tuple[np.ndarray, ParamsBackward]:
    """x `scale` + `bias`, both [features]."""

    def backward(grad: np.ndarray) -> tuple[np.ndarray, Params]:
        return grad * params["scale"], {"scale": (grad * x).sum(0), "bias": grad.sum(0)}

    return x * params["scale"] + params["bias"], backward


def layer_norm(params: Params, x: np.ndarray) -> tuple[np.ndarray, ParamsBackward]:
    """Normalises each node over its features, then scales and shifts."""
    return _affine_of(params, *normalize(x, axis=1))


def batch_norm(params: Params, x: np.ndarray) -> tuple[np.ndarray, ParamsBackward]:
    """Normalises each feature over all nodes, then scales and shifts."""
    return _affine_of(params, *normalize(x, axis=0))


def batch_norm_inference(
    params: Params, statistics: Params, x: np.ndarray
) -> tuple[np.ndarray, ParamsBackward]:
    """Normalises each feature by running statistics `mean` and `var`, then scales and shifts."""
    deviation = np.sqrt(statistics["var"] + NORM_EPSILON)
    y = (x - statistics["mean"]) / deviation
    return _affine_of(params, y, lambda grad: grad / deviation)


def updated_statistics(statistics: Params, x: np.ndarray) -> Params:
    """0.9 of the running mean and variance and 0.1 of those of `x`, both divided by the count."""
    new = {"mean": x.mean(0), "var": x.var(0)}
    momentum = STATISTICS_MOMENTUM
    return {name: momentum * statistics[name] + (1 - momentum) * new[name] for name in new}


def _affine_of(
    params: Params, normalized: np.ndarray, backward_of_it: Backward
) -> tuple[np.ndarray, ParamsBackward]:
    y, backward_affine = scale_and_shift(params, normalized)

    def backward(grad: np.ndarray) -> tuple[np.ndarray, Params]:
        grad_normalized, grads = backward_affine(grad)
        return backward_of_it(grad_normalized), grads

    return y, backward
