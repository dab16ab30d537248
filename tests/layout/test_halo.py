"""Rows per pair of parts, and the units in which they are sent."""

import numpy as np
import pytest

from jaxgraph.layout.halo import (
    LARGEST_UNIT,
    SMALLEST_UNIT,
    TARGET_RATIO,
    choose_unit,
    in_units,
)


@pytest.mark.parametrize("rows", [0, 1, 100, 1000, 12345, 10**7])
def test_the_unit_is_the_largest_that_wastes_little(rows):
    counts = np.array([[0, rows], [rows + rows // 3, 0]])
    unit = choose_unit(counts)

    def ratio(size):
        return in_units(counts, size).sum() * size / max(counts.sum(), 1)

    assert unit == SMALLEST_UNIT or ratio(unit) <= TARGET_RATIO
    assert unit == LARGEST_UNIT or counts.sum() == 0 or ratio(2 * unit) > TARGET_RATIO
