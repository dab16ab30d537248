"""Medians, quartiles, ratios and their geometric means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Ratios", "Spread", "ratios", "spread"]


@dataclass(frozen=True)
class Spread:
    """The median and quartiles of repeated measurements.

    Attributes:
      median: half of them are smaller.
      lower, upper: first and third quartile.
      count: number of measurements.
    """

    median: float
    lower: float
    upper: float
    count: int


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles, interpolated linearly.

    Raises:
      ValueError: there are no values.
    """
    if not values:
        raise ValueError("values is empty; expected at least one measurement")
    lower, median, upper = (float(q) for q in np.percentile(values, (25, 50, 75)))
    return Spread(median, lower, upper, len(values))


@dataclass(frozen=True)
class Ratios:
    """Ratios of several tasks.

    Attributes:
      mean: geometric mean.
      lowest: the least ratio.
      count: number of ratios.
    """

    mean: float
    lowest: float
    count: int


def ratios(values: Sequence[float]) -> Ratios | None:
    """The geometric mean and the least of positive ratios; None without ratios."""
    if not values:
        return None
    mean = math.exp(sum(math.log(value) for value in values) / len(values))
    return Ratios(mean, min(values), len(values))
