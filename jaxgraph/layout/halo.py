"""Counts of the rows that each part needs from each other part, and units to send them in.

Messages are cut into units of a fixed number of rows. A unit is sent only between pairs of parts
that need it. A large unit means few messages, a small one little padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SMALLEST_UNIT, LARGEST_UNIT = 16, 65536
TARGET_RATIO = 1.0025
"""The largest ratio of rows sent to rows needed that a unit above the smallest may lead to."""


def pair_counts(pointers: Sequence[np.ndarray]) -> np.ndarray:
    """Rows per pair of parts, from the rows per step of the ring."""
    parts = len(pointers)
    counts = np.zeros((parts, parts), np.int64)
    for part, pointer in enumerate(pointers):
        steps = np.arange(1, parts)
        counts[part, (part - steps) % parts] = np.diff(pointer)[1:]
    return counts


def choose_unit(counts: np.ndarray) -> int:
    """The largest power of two whose rounding keeps the rows sent within `TARGET_RATIO`."""
    needed = max(int(counts.sum()), 1)
    unit = SMALLEST_UNIT
    while (
        unit < LARGEST_UNIT and in_units(counts, 2 * unit).sum() * 2 * unit <= TARGET_RATIO * needed
    ):
        unit *= 2
    return unit


def in_units(counts: np.ndarray, unit: int) -> np.ndarray:
    """Rows rounded up to units, counted in units."""
    return -(-counts // unit)
