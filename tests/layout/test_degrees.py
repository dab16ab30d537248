"""Chunks counted from distinct degrees, compared with cutting every block and row by hand."""

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph.layout.degrees import (
    CHUNK_OVERHEAD,
    PIECE,
    RUNS_JOINED,
    DegreeCounts,
    choose_chunk,
    choose_lanes,
    choose_longest,
    count_chunks,
    count_degrees,
    count_joins,
    count_levels,
    count_runs,
    heavy_rows,
    join_counts,
)
from jaxgraph.layout.row_order import RowOrder, order_rows

Groups = list[list[int]]
degree_lists = st.lists(
    st.lists(st.integers(1, 40), max_size=12), min_size=1, max_size=4
)  # the degree of each row, by group


def order_of(groups: Groups) -> RowOrder:
    """An order whose rows have these degrees."""
    rows = [row for group in groups for row, degree in enumerate(group) for _ in range(degree)]
    edge_ptr = np.cumsum([0, *(sum(group) for group in groups)])
    return order_rows(np.asarray(rows, np.int32), None, edge_ptr)


def runs_by_hand(degrees: list[int], longest: int) -> list[int]:
    """How many runs each heavy row is cut into."""
    return [math.ceil(degree / longest) for degree in degrees if degree > longest]


def chunks_by_hand(degrees: list[int], longest: int, chunk: int) -> int:
    block = chunk // PIECE
    light = sorted((degree for degree in degrees if degree <= longest), reverse=True)
    blocks = math.ceil(sum(runs_by_hand(degrees, longest)) / block)
    return sum(math.ceil(d / PIECE) for d in light[::block]) + blocks * math.ceil(longest / PIECE)


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
def test_heavy_rows_and_their_runs(groups, longest):
    counts, expected = count_degrees([order_of(groups)]), [runs_by_hand(g, longest) for g in groups]
    assert heavy_rows(counts, longest).tolist() == [len(runs) for runs in expected]
    assert count_runs(counts, longest).tolist() == [sum(runs) for runs in expected]


@given(degree_lists, st.integers(1, 50), st.sampled_from([8, 16, 32]))
def test_count_chunks(groups, longest, chunk):
    found = count_chunks(count_degrees([order_of(groups)]), longest, chunk)
    assert found.tolist() == [chunks_by_hand(degrees, longest, chunk) for degrees in groups]


@given(degree_lists, st.sampled_from([8, 16, 32]))
def test_the_longest_run_is_the_cheapest_power_of_two(groups, chunk):
    longest, cost = choose_longest(count_degrees([order_of(groups)]), chunk)
    largest = max((degree for degrees in groups for degree in degrees), default=1)
    room = chunk - chunk // PIECE
    choices = [power for power in (4, 8, 16, 32) if power < largest] + [largest]
    costs = {
        choice: sum(chunks_by_hand(degrees, choice, chunk) for degrees in groups)
        for choice in choices
        if max(sum(runs_by_hand(degrees, choice)) for degrees in groups) <= room
    }
    assert costs[longest] == min(costs.values())
    assert cost == costs[longest] * (chunk + CHUNK_OVERHEAD)


def test_a_hub_is_cut():
    # One row of 1000 edges among 1000 rows of one: its block alone would take 250 chunks.
    longest, cost = choose_longest(count_degrees([order_of([[1000] + [1] * 1000])]), 128)
    assert longest == 16
    assert cost == (8 + 32) * (128 + CHUNK_OVERHEAD)


@pytest.mark.parametrize(("rows", "expected"), [(20_000, 2048), (512, 64), (1, 16)])
def test_chunk_grows_with_the_slabs_up_to_an_eighth_of_the_rows(rows, expected):
    counts = count_degrees([order_of([[2] * 1024])])
    assert choose_chunk(counts, rows, 2) == expected
    assert choose_chunk(counts, rows // 4, 1) == expected


@pytest.mark.parametrize(
    ("rows", "degrees", "expected"),
    # A level costs less than the places that long rows would leave free in all others, and less
    # than joining many runs; where few rows go on, joining their runs costs less than a level.
    # Where the sums of all rows stay in the caches, further ones cost less than free places.
    [
        (1, [], (5, 6)),
        (1, [1, 2], (5, 6)),
        (1, [5, 6], (6, 6)),
        (1000, [*[2] * 200, 8], (5, 6, 6)),
        (10, [*[2] * 200, 8], (8, 6)),
        (10, [*[6] * 20, 500], (6, 16)),
        (1900, [*[4] * 10, *[8] * 4, *[12] * 3], (5, 8, 8)),
        (1950, [*[4] * 10, *[8] * 4, *[12] * 3], (8, 6, 6)),
        (1000, [40] * 20, (8, 16, 16, 16)),
        (1000, [64] * 20, (16, 16, 16, 16, 16)),
    ],
)
def test_lanes_leave_few_places_free_and_few_runs_to_join(rows, degrees, expected):
    counts = count_degrees([order_of([degrees])])
    counts = dataclasses.replace(counts, rows=rows * counts.rows, reach=rows * counts.reach)
    assert choose_lanes(counts) == expected


LANES = st.lists(st.integers(1, 16), min_size=2, max_size=5)


@given(st.lists(st.integers(1, 5000), max_size=12), LANES)
def test_levels_and_joins_are_counted_as_rows_are_cut(degrees, lanes):
    counts = count_degrees([order_of([degrees])])
    *levels, run = lanes
    bounds = np.cumsum(levels)
    expected = [max(sum(degree > bound for degree in degrees), 1) for bound in bounds[:-1]]
    assert count_levels(counts, lanes) == tuple(expected)
    joins = []
    sizes = [len(range(bounds[-1], degree, run)) for degree in degrees if degree > bounds[-1]]
    while sizes:
        joins.append((len(sizes), sum(sizes)))
        sizes = [len(range(RUNS_JOINED, n, RUNS_JOINED)) for n in sizes if n > RUNS_JOINED]
    assert count_joins(counts, lanes) == tuple(joins)


def test_without_edges():
    counts = count_degrees([order_of([[], []])])
    assert counts.num_groups == 2
    assert choose_longest(counts, 16)[1] == 0
    assert choose_chunk(counts, 10**6, 1) == 16
