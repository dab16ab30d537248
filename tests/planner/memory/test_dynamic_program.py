"""ROC's algorithm 1: its table 3, its printed form, and exhaustive search."""

import time
from functools import cache

import numpy as np
import pytest

from benchmarks.memory_manager import gcn_step, no_cache, write_back_cache
from jaxgraph.planner.memory.cache_policies import furthest_read, least_recently_used
from jaxgraph.planner.memory.dataflow import Dataflow
from jaxgraph.planner.memory.dynamic_program import active_tensors, least_transfer
from jaxgraph.planner.memory.schedule import simulate
from tests.planner.memory.dataflows import chain, figure_3, random_dataflow
from tests.planner.memory.searches import least_bytes


def valid_states(flow: Dataflow) -> set[frozenset[str]]:
    """The sets of operations that hold all that their members depend on."""
    found = {frozenset[str]()}
    for operation in flow.operations:
        needs = {flow.writers[key].name for key in operation.reads if key in flow.writers}
        found |= {done | {operation.name} for done in found if needs <= done}
    return found


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


def as_printed(flow: Dataflow, capacity: int) -> float:
    """Algorithm 1 line by line; it counts fetches alone."""
    by_name = {each.name: each for each in flow.operations}
    valid = valid_states(flow)

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


def test_a_gcn_of_four_layers_is_planned_in_seconds():
    flow = gcn_step(232_965, 114_848_857, (602, 256, 256, 256, 41), 4)
    capacity = int(1.2 * flow.least_capacity()[0])
    start = time.process_time()
    found = simulate(least_transfer(flow, capacity), capacity)
    assert time.process_time() - start < 10
    assert found.transferred <= simulate(furthest_read(flow, capacity), capacity).transferred


def test_layers_are_aggregated_where_they_are_narrow():
    flow = gcn_step(10, 30, (7, 5, 6, 3), 8)
    names = [each.name for each in flow.operations]
    assert names[:5] == ["map[0]", "aggregate[0]", "activate[1]", "aggregate[1]", "map[1]"]
    assert flow.bytes["reduced[1]"] == 10 * 5 * 4 and flow.bytes["edges"] == 30 * 8
    assert flow.bytes["parameters[2]"] == (6 * 3 + 3) * 4
    for now, operation in enumerate(flow.operations):
        written = {key for each in flow.operations[:now] for key in each.writes}
        inputs = {each.key for each in flow.tensors if each.on_host}
        assert set(operation.reads) <= written | inputs and not written & set(operation.writes)


def test_a_device_too_small_is_told_the_least():
    with pytest.raises(ValueError, match="has 1 bytes, and o0 alone needs 2"):
        least_transfer(chain(), 1)
