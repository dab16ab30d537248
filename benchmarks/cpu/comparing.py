"""Relative errors of a library's results against expected ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["TOLERANCE", "Expected", "expected_of", "relative_error"]

TOLERANCE = 1e-3
"""Largest relative error of float32 results that count as equal; that of our ops is 1e-7."""

SMALLEST = 1e-30
"""Norm below which an error is absolute, for arrays of zeros."""

VANISHING = 1e-4
"""Share of the largest norm below which an array's error is measured by that share instead."""


@dataclass(frozen=True)
class Expected:
    """An array, and the size of the terms that were added up for it.

    Attributes:
      values: the array.
      terms: of its shape, the sums of the terms' absolute values, to which rounding is relative.
    """

    values: np.ndarray
    terms: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> Expected:
        """An array of which only the values are known."""
        return cls(values, values)

    @classmethod
    def stack(cls, heads: Sequence[Expected]) -> Expected:
        """[nodes, heads, ...] of one [nodes, ...] per head."""
        values, terms = ([getattr(head, name) for head in heads] for name in ("values", "terms"))
        return cls(np.stack(values, 1), np.stack(terms, 1))


def expected_of(results: Mapping[str, np.ndarray]) -> dict[str, Expected]:
    """Arrays by name of which only the values are known."""
    return {name: Expected.of(array) for name, array in results.items()}


def relative_error(
    found: Mapping[str, np.ndarray], expected: Mapping[str, Expected]
) -> tuple[float, str]:
    """The largest relative error, |found - values| / |terms|, over several arrays.

    Args:
      found: arrays by name.
      expected: arrays of the same sizes and names.

    Returns:
      The error, infinite where something is missing or not finite, and the name of its array.
    """
    if found.keys() != expected.keys():
        return np.inf, ", ".join(sorted(found.keys() ^ expected.keys()))
    norms = {name: float(np.linalg.norm(array.terms)) for name, array in expected.items()}
    floor = max(VANISHING * max(norms.values(), default=0.0), SMALLEST)
    worst, where = 0.0, ""
    for name, array in expected.items():
        error = _distance(found[name], array.values) / max(norms[name], floor)
        # In this form NaN is the worst.
        if not error <= worst:
            worst, where = error if np.isfinite(error) else np.inf, name
    return worst, where


def _distance(found: np.ndarray, expected: np.ndarray) -> float:
    if found.size != expected.size:
        return np.inf
    return float(np.linalg.norm(found.ravel() - expected.ravel()))
