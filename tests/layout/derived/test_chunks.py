"""Chunks counted from distinct lengths, compared with cutting every block and row by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph.layout.derived.chunks import (
    CHUNK_OVERHEAD,
    PIECE,
    choose_chunk,
    choose_longest,
    count_chunks,
    count_runs,
    heavy_rows,
)
from tests.lengths import degree_lists, lengths_of


def runs_by_hand(degrees: list[int], longest: int) -> list[int]:
    """The number of runs that each heavy row is cut into."""
    return [math.ceil(degree / longest) for degree in degrees if degree > longest]


def chunks_by_hand(degrees: list[int], longest: int, chunk: int) -> int:
    block = chunk // PIECE
    light = sorted((degree for degree in degrees if degree <= longest), reverse=True)
    blocks = math.ceil(sum(runs_by_hand(degrees, longest)) / block)
    return sum(math.ceil(d / PIECE) for d in light[::block]) + blocks * math.ceil(longest / PIECE)


@given(degree_lists, st.integers(1, 50))
def test_heavy_rows_and_their_runs(groups, longest):
    counts, expected = lengths_of(groups), [runs_by_hand(g, longest) for g in groups]
    assert heavy_rows(counts, longest).tolist() == [[len(runs) for runs in expected]]
    assert count_runs(counts, longest).tolist() == [[sum(runs) for runs in expected]]


@given(degree_lists, st.integers(1, 50), st.sampled_from([8, 16, 32]))
def test_count_chunks(groups, longest, chunk):
    found = count_chunks(lengths_of(groups), longest, chunk)
    assert found.tolist() == [[chunks_by_hand(degrees, longest, chunk) for degrees in groups]]


@given(degree_lists, st.sampled_from([8, 16, 32]))
def test_the_longest_run_is_the_cheapest_power_of_two(groups, chunk):
    longest, cost = choose_longest(lengths_of(groups), chunk)
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
    longest, cost = choose_longest(lengths_of([[1000] + [1] * 1000]), 128)
    assert longest == 16
    assert cost == (8 + 32) * (128 + CHUNK_OVERHEAD)


@pytest.mark.parametrize(("rows", "expected"), [(20_000, 2048), (512, 64), (1, 16)])
def test_chunk_grows_with_the_slabs_up_to_an_eighth_of_the_rows(rows, expected):
    counts = lengths_of([[2] * 1024])
    assert choose_chunk(counts, rows, 2) == expected
    assert choose_chunk(counts, rows // 4, 1) == expected


def test_without_edges():
    counts = lengths_of([[], []])
    assert counts.num_groups == 2
    assert choose_longest(counts, 16)[1] == 0
    assert choose_chunk(counts, 10**6, 1) == 16
