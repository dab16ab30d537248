"""ROC's algorithm 1: its table 3, its printed form, and exhaustive search."""

import time
from functools import cache

import numpy as np
import pytest

from jaxgraph.planner.memory.cache_policies import (
    furthest_read,
    least_recently_used,
    no_cache,
    write_back_cache,
)
from jaxgraph.planner.memory.dataflow import Dataflow, Rates
from jaxgraph.planner.memory.dynamic_program import active_tensors, least_transfer, valid_states
from jaxgraph.planner.memory.schedule import simulate
from jaxgraph.planner.memory.step_dataflow import Shape, training_step
from tests.planner.memory.dataflows import chain, figure_3, random_dataflow
from tests.planner.memory.searches import least_bytes


def test_table_3():
    expected = {
        "": "",
        "1": "g a",
        "12": "g a b w1",
        "123": "g a b h1 w1 w2",
        "1234": "g a b w1 w2 dh1",
        "12345": "g a b w1 db",
        "123456": "g a da",
        "1234567": "",
    }
    flow = figure_3()
    found = {"".join(sorted(s)): active_tensors(flow, s) for s in valid_states(flow)}
    assert found == {state: frozenset(keys.split()) for state, keys in expected.items()}


def test_states_of_independent_operations_are_all_their_sets():
    flow = chain(2)
    side = Dataflow(
        (*flow.tensors, *(type(t)(f"other_{t.name}", 1, on_host=t.on_host) for t in flow.tensors)),
        (
            *flow.operations,
            *(
                type(o)(f"other_{o.name}", (f"other_{o.reads[0]}",), (f"other_{o.writes[0]}",))
                for o in flow.operations
            ),
        ),
    )
    states = list(valid_states(side))
    assert len(states) == len(set(states)) == 9


def as_printed(flow: Dataflow, capacity: int) -> float:
    """Algorithm 1 line by line; it counts fetches alone."""
    by_name = {each.name: each for each in flow.operations}
    valid = set(valid_states(flow))

    @cache
    def cost(done: frozenset[str], on_device: frozenset[str]) -> float:
        if not done:
            return flow.size(on_device)
        least = float("inf")
        for name in done:
            before, operation = done - {name}, by_name[name]
            if before in valid:
                reads, writes = set(operation.reads), set(operation.writes)
                stayed = (on_device - writes) & active_tensors(flow, before)
                if flow.size(on_device | reads | writes) <= capacity:
                    least = min(least, cost(before, stayed) + flow.size(reads - stayed))
        return least

    return cost(frozenset(by_name), frozenset())


def test_the_printed_algorithm_caches_nothing():
    flow = chain()
    assert as_printed(flow, 4) == 3
    used = simulate(least_transfer(flow, 4), 4)
    assert (used.fetched, used.saved) == (1, 0)
    assert as_printed(figure_3(), 99) == 17
    assert simulate(least_transfer(figure_3(), 99), 99).transferred == 4


def test_bytes_equal_those_of_exhaustive_search():
    num_better = 0
    for seed in (*range(30), 41, 45, 55, 64, 77, 79):
        rng = np.random.default_rng(seed)
        flow = random_dataflow(rng)
        capacity = flow.least_capacity()[0] + int(rng.integers(4))
        found = simulate(least_transfer(flow, capacity), capacity)
        assert found.transferred == least_bytes(flow, capacity), seed
        by_rules = [
            simulate(rule(flow, capacity), capacity).transferred
            for rule in (no_cache, least_recently_used, write_back_cache, furthest_read)
        ]
        assert min(by_rules) >= found.transferred
        num_better += min(by_rules) > found.transferred
    assert num_better > 5


def test_a_gat_of_four_layers_is_planned_in_seconds():
    widths = (602, 256, 256, 256, 41)
    shape = Shape("gat", 232_965, 114_848_857, widths, heads=4, has_norm=True, has_residual=True)
    flow = training_step(shape, Rates(1.0, 1.0, 1.0, 1.0))
    capacity = int(1.2 * flow.least_capacity()[0])
    start = time.process_time()
    found = simulate(least_transfer(flow, capacity), capacity)
    assert time.process_time() - start < 10
    assert found.transferred < simulate(furthest_read(flow, capacity), capacity).transferred


def test_a_device_too_small_is_told_the_least():
    with pytest.raises(ValueError, match="has 1 bytes, and o0 alone needs 2"):
        least_transfer(chain(), 1)
