"""Contiguous ranges: none empty, and as even as the largest cost allows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxgraph.partition.ranges import (
    balanced_ranges,
    equal_edges_assignment,
    equal_vertices_assignment,
)


@st.composite
def costs_and_parts(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    num_nodes = draw(st.integers(1, 40))
    largest = draw(st.sampled_from([0, 1, 5, 10_000]))
    costs = draw(hnp.arrays(np.int64, num_nodes, elements=st.integers(0, largest)))
    return costs, draw(st.integers(1, num_nodes))


@given(costs_and_parts(), st.booleans())
def test_ranges_cover_the_nodes_and_are_even(
    given_costs: tuple[np.ndarray, int], as_float: bool
) -> None:
    costs, num_parts = given_costs
    if as_float:
        costs = costs / 7
    points = balanced_ranges(costs, num_parts)
    assert points.shape == (num_parts + 1,)
    assert (points[0], points[-1]) == (0, costs.shape[0])
    assert np.all(np.diff(points) >= 1)
    loads = np.add.reduceat(costs, points[:-1])
    assert loads.max() <= (costs.sum() / num_parts + costs.max()) * (1 + 1e-12)


def test_splitting_points_are_the_nearest_prefix_sums() -> None:
    # Prefix sums 0 1 4 5 10 12 against 4, 8: the nearest are 4 (node 2) and 10 (node 4).
    np.testing.assert_array_equal(balanced_ranges(np.array([1, 3, 1, 5, 2]), 3), [0, 2, 4, 5])


def test_a_hub_gets_a_range_of_its_own_and_no_range_is_empty() -> None:
    degrees = np.array([1, 1, 1000, 1, 1])
    np.testing.assert_array_equal(equal_edges_assignment(degrees, 4), [0, 0, 1, 2, 3])
    np.testing.assert_array_equal(equal_edges_assignment(np.zeros(6, int), 3), [0, 0, 1, 1, 2, 2])
    np.testing.assert_array_equal(equal_vertices_assignment(7, 3), [0, 0, 1, 1, 1, 2, 2])


@pytest.mark.parametrize(
    ("costs", "num_parts", "message"),
    [
        (np.array([1, -1]), 1, "at least 0"),
        (np.array([1.0, np.nan]), 1, "finite"),
        (np.array([1, 1]), 3, "got 3 for 2 nodes"),
    ],
)
def test_refuses(costs: np.ndarray, num_parts: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        balanced_ranges(costs, num_parts)
