"""Relative errors of a contestant's results against those of the first."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

TOLERANCE = 1e-3
"""Largest relative error of float32 results that count as equal; that of our ops is 1e-7."""

SMALLEST = 1e-30
"""Norm below which an error is absolute, for arrays of zeros."""

VANISHING = 1e-4
"""Share of the largest norm below which an array's error is measured by that share instead."""


def relative_error(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """The largest relative error of several arrays; infinite where one is missing or not finite."""
    if found.keys() != expected.keys():
        return np.inf
    norms = {name: float(np.linalg.norm(array)) for name, array in expected.items()}
    floor = max(VANISHING * max(norms.values(), default=0.0), SMALLEST)
    errors = [
        float(np.linalg.norm(found[name].ravel() - array.ravel())) / max(norms[name], floor)
        for name, array in expected.items()
    ]
    return max(errors) if np.isfinite(errors).all() else np.inf
