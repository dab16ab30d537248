"""Caches by rules, against counts by hand."""

import dataclasses

import pytest

from benchmarks.memory_manager import no_cache, write_back_cache
from jaxgraph.planner.memory.cache_policies import furthest_read, least_recently_used
from jaxgraph.planner.memory.dataflow import Dataflow, Operation, Tensor
from jaxgraph.planner.memory.schedule import simulate
from tests.planner.memory.dataflows import chain, figure_3

# Three inputs and room for two: a b c a b.
SCAN = Dataflow(
    tuple(Tensor(name, 1, on_host=True) for name in "abc"),
    tuple(Operation(f"{i}", (name,), ()) for i, name in enumerate("abcab")),
)


# A second use of a makes b the one that is dropped.
AGAIN = dataclasses.replace(
    SCAN, operations=tuple(Operation(f"{i}", (name,), ()) for i, name in enumerate("abaca"))
)


@pytest.mark.parametrize(
    ("flow", "rule", "capacity", "fetched", "saved"),
    [
        (SCAN, no_cache, 2, 5, 0),
        (SCAN, least_recently_used, 2, 4, 0),  # c has been read for the last time
        (SCAN, write_back_cache, 2, 5, 0),
        (SCAN, furthest_read, 2, 4, 0),
        (SCAN, write_back_cache, 3, 3, 0),
        (AGAIN, write_back_cache, 2, 3, 0),
        (AGAIN, least_recently_used, 2, 3, 0),
        (chain(), no_cache, 2, 3, 2),
        (chain(), least_recently_used, 2, 1, 0),
        # The cache does not know that x, t0 and t1 have been read for the last time.
        (chain(), write_back_cache, 2, 1, 1),
        (figure_3(), no_cache, 5, 17, 6),
        (figure_3(), least_recently_used, 8, 4, 0),
    ],
)
def test_bytes_by_hand(flow, rule, capacity, fetched, saved):
    used = simulate(rule(flow, capacity), capacity)
    assert (used.fetched, used.saved) == (fetched, saved)


@pytest.mark.parametrize("rule", [no_cache, least_recently_used, write_back_cache, furthest_read])
def test_an_operation_that_does_not_fit_is_named(rule):
    with pytest.raises(ValueError, match="has 4 bytes, and 6 alone needs 5: the least that works"):
        rule(figure_3(), 4)
