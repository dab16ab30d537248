"""Rows per pair of parts, and the units in which they are sent."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph.layout.halo import (
    LARGEST_UNIT,
    SMALLEST_UNIT,
    TARGET_RATIO,
    choose_unit,
    in_units,
    pair_counts,
)


def test_pair_counts_turn_steps_of_the_ring_into_parts():
    # Part 1 of 3 shares 5 rows with the part one step back (0) and 7 with the one two back (2).
    pointers = [np.cumsum([0, 9, *steps]) for steps in ([1, 2], [5, 7], [3, 4])]
    assert pair_counts(pointers).tolist() == [[0, 2, 1], [5, 0, 7], [4, 3, 0]]


@given(st.lists(st.integers(0, 400), min_size=4, max_size=4), st.integers(1, 90))
def test_units_cover_the_rows_with_less_than_one_to_spare(counts, unit):
    rounded = in_units(np.asarray(counts), unit) * unit
    assert np.all(rounded >= counts)
    assert np.all(rounded < np.asarray(counts) + unit)


@pytest.mark.parametrize("rows", [0, 1, 100, 1000, 12345, 10**7])
def test_the_unit_is_the_largest_that_wastes_little(rows):
    counts = np.array([[0, rows], [rows + rows // 3, 0]])
    unit = choose_unit(counts)

    def ratio(size):
        return in_units(counts, size).sum() * size / max(counts.sum(), 1)

    assert unit == SMALLEST_UNIT or ratio(unit) <= TARGET_RATIO
    assert unit == LARGEST_UNIT or counts.sum() == 0 or ratio(2 * unit) > TARGET_RATIO


def test_large_halos_travel_in_large_units_with_little_padding():
    """Units of the pair's own size: 0.25% more rows than needed, and few messages."""
    counts = np.array([[0, 100_003], [54_321, 0]])
    unit = choose_unit(counts)
    assert in_units(counts, unit).sum() * unit <= 1.0025 * counts.sum()
    assert unit == 256


def test_without_halos_any_unit_will_do():
    assert SMALLEST_UNIT <= choose_unit(np.zeros((3, 3), int)) <= LARGEST_UNIT
