"""Central finite differences in float64, to check gradients that were written by hand."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

STEP = 1e-6


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of nested dicts and lists, each with its place."""
    if isinstance(tree, dict):
        for name in sorted(tree):
            yield from leaves(tree[name], f"{path}/{name}")
    elif isinstance(tree, list | tuple):
        for index, branch in enumerate(tree):
            yield from leaves(branch, f"{path}/{index}")
    else:
        yield path, tree


def gradient(function: Callable[[], float], array: np.ndarray) -> np.ndarray:
    """d function / d array, where the function reads the array, which is changed and restored."""
    result = np.zeros(array.shape)
    for index in np.ndindex(array.shape):
        original = array[index]
        array[index] = original + STEP
        above = function()
        array[index] = original - STEP
        below = function()
        array[index] = original
        result[index] = (above - below) / (2 * STEP)
    return result


def check_gradients(
    function: Callable[[], float], arrays: Any, gradients: Any, tolerance: float = 1e-7
) -> None:
    """Fails where a gradient is not that of `function` in the array at the same place.

    Args:
        function: reads the arrays; returns a number.
        arrays: nested dicts and lists of float64 arrays.
        gradients: the same, with the gradients.
        tolerance: of the largest difference, relative to the largest entry or 1.
    """
    expected_paths = [path for path, _ in leaves(arrays)]
    assert expected_paths == [path for path, _ in leaves(gradients)]
    for (path, array), (_, actual) in zip(leaves(arrays), leaves(gradients), strict=True):
        assert actual.shape == array.shape, path
        expected = gradient(function, array)
        scale = max(1.0, float(np.abs(expected).max(initial=0)))
        error = float(np.abs(actual - expected).max(initial=0)) / scale
        assert error < tolerance, f"{path}: error {error:.2g} of {scale:.2g}"
