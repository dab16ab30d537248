"""Whether two libraries computed the same."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

__all__ = ["TOLERANCE", "relative_error"]

TOLERANCE = 1e-3
"""Largest relative error of float32 results that count as equal; of ops it is 1e-6 in truth."""

SMALLEST = 1e-30
"""Norm below which an error is absolute: of arrays of zeros."""

VANISHING = 1e-4
"""Share of the largest norm below which an array's error is measured by that share instead."""


def relative_error(
    found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]
) -> tuple[float, str]:
    """The largest relative error, |found - expected| / |expected|, over several arrays.

    Args:
      found: arrays by name.
      expected: arrays of the same sizes and names.

    Returns:
      The error, infinite where something is missing or not finite, and the name of its array.
    """
    if found.keys() != expected.keys():
        return np.inf, ", ".join(sorted(found.keys() ^ expected.keys()))
    norms = {name: float(np.linalg.norm(array)) for name, array in expected.items()}
    floor = max(VANISHING * max(norms.values(), default=0.0), SMALLEST)
    worst, where = 0.0, ""
    for name, array in expected.items():
        error = _distance(found[name], array) / max(norms[name], floor)
        # Written so that NaN is the worst.
        if not error <= worst:
            worst, where = error if np.isfinite(error) else np.inf, name
    return worst, where


def _distance(found: np.ndarray, expected: np.ndarray) -> float:
    if found.size != expected.size:
        return np.inf
    return float(np.linalg.norm(found.ravel() - expected.ravel()))
