"""Chunks counted from distinct degrees, compared with cutting every block and row by hand."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph.partition.degrees import (
    CHUNK_OVERHEAD,
    PIECE,
    DegreeCounts,
    choose_chunk,
    count_chunks,
    count_degrees,
    heavy_rows,
    join_counts,
    split_rows,
)
from jaxgraph.partition.row_order import RowOrder, order_rows

Groups = list[list[int]]
degree_lists = st.lists(
    st.lists(st.integers(1, 40), max_size=12), min_size=1, max_size=4
)  # the degree of each row, by group


def order_of(groups: Groups) -> RowOrder:
    """An order whose rows have these degrees."""
    rows = [row for group in groups for row, degree in enumerate(group) for _ in range(degree)]
    edge_ptr = np.cumsum([0, *(sum(group) for group in groups)])
    return order_rows(np.asarray(rows, np.int32), None, edge_ptr)


def chunks_by_hand(degrees: list[int], threshold: float, chunk: int) -> tuple[int, int]:
    light = sorted((degree for degree in degrees if degree < threshold), reverse=True)
    heavy = [degree for degree in degrees if degree >= threshold]
    return (
        sum(math.ceil(longest / PIECE) for longest in light[:: chunk // PIECE]),
        sum(math.ceil(degree / chunk) for degree in heavy),
    )


@given(degree_lists)
def test_count_degrees(groups):
    counts = count_degrees([order_of(groups)])
    assert counts.num_groups == len(groups)
    for group, degrees in enumerate(groups):
        own = counts.groups == group
        expected = sorted(Counter(degrees).items(), reverse=True)
        assert list(zip(counts.degrees[own], counts.rows[own], strict=True)) == expected
        assert counts.reach[own].tolist() == [
            sum(other >= degree for other in degrees) for degree, _ in expected
        ]


@given(degree_lists)
def test_all_groups_taken_as_one(groups):
    whole = count_degrees([order_of(groups), order_of([[3], [4]])], whole=True)
    first = count_degrees([order_of([[degree for group in groups for degree in group]])])
    expected = join_counts([first, count_degrees([order_of([[3, 4]])])])
    assert_equal(whole, expected)


@given(degree_lists, degree_lists)
def test_joined_counts_are_those_of_all_orders(groups, others):
    orders = [order_of(groups), order_of(others)]
    joined = join_counts([count_degrees([order]) for order in orders])
    assert_equal(joined, count_degrees(orders))


def assert_equal(found: DegreeCounts, expected: DegreeCounts) -> None:
    assert found.num_groups == expected.num_groups
    for name in ("groups", "degrees", "rows", "reach"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name


@given(degree_lists, st.integers(1, 50))
def test_heavy_rows(groups, threshold):
    found = heavy_rows(count_degrees([order_of(groups)]), threshold)
    assert found.tolist() == [sum(d >= threshold for d in degrees) for degrees in groups]


@given(degree_lists, st.integers(1, 50), st.sampled_from([8, 16, 32]))
def test_count_chunks(groups, threshold, chunk):
    light, heavy = count_chunks(count_degrees([order_of(groups)]), threshold, chunk)
    expected = [chunks_by_hand(degrees, threshold, chunk) for degrees in groups]
    assert list(zip(light, heavy, strict=True)) == expected


@given(degree_lists, st.sampled_from([8, 16, 32]))
def test_split_rows_takes_the_cheapest_power_of_two(groups, chunk):
    thresholds, cost = split_rows(count_degrees([order_of(groups)]), chunk)
    powers = [2**power for power in range(1, 6)]
    expected = 0
    for threshold, degrees in zip(thresholds, groups, strict=True):
        assert threshold in powers or threshold > max(max(d, default=0) for d in groups)
        fewest = min(sum(chunks_by_hand(degrees, t, chunk)) for t in [*powers, math.inf])
        assert sum(chunks_by_hand(degrees, threshold, chunk)) == fewest
        expected += fewest * (chunk + CHUNK_OVERHEAD)
    assert cost == expected


def test_a_hub_is_walked_on_its_own():
    # One row of 1000 edges among 1000 rows of one: its block alone would take 125 chunks.
    thresholds, cost = split_rows(count_degrees([order_of([[1000] + [1] * 1000])]), 128)
    assert 1 < thresholds[0] <= 1000
    assert cost == (8 + 63) * (128 + CHUNK_OVERHEAD)


@pytest.mark.parametrize(("rows", "expected"), [(10_000, 1024), (512, 64), (1, 16)])
def test_chunk_grows_with_the_slabs_up_to_an_eighth_of_the_rows(rows, expected):
    counts = count_degrees([order_of([[2] * 1024])])
    assert choose_chunk(counts, rows) == expected


def test_without_edges():
    counts = count_degrees([order_of([[], []])])
    assert counts.num_groups == 2
    assert split_rows(counts, 16)[1] == 0
    assert choose_chunk(counts, 10**6) == 16
