"""Ranges by cost: against every possible cut of small graphs, and counts by sets."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxgraph import Graph
from jaxgraph.partition import Partition, partition, report
from jaxgraph.partition.cost_ranges import cost_ranges
from jaxgraph.partition.node_cost import CacheMisses, NodeCost
from tests.strategies import graphs


def cost_by_sets(graph: Graph, cost: NodeCost, ranges: list[list[int]]) -> list[float]:
    """The cost of each part, node by node and edge by edge, as the docstring of NodeCost says."""
    edges = list(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))
    costs = []
    for part in ranges:
        halo = {s for s, r in edges if r in part and s not in part}
        total = cost.per_part + cost.per_padded_row * max(map(len, ranges))
        total += sum(cost.per_node[v] for v in part) + cost.per_halo_row * len(halo)
        for miss in cost.misses:
            share = max(0.0, 1 - miss.cached_rows / (len(part) + len(halo)))
            total += share * sum(miss.per_node[v] for v in part)
        costs.append(total)
    return costs


def least_of_all_cuts(graph: Graph, cost: NodeCost, order: list[int], num_parts: int) -> float:
    best = float("inf")
    for inner in itertools.combinations(range(1, len(order)), num_parts - 1):
        cuts = [0, *inner, len(order)]
        ranges = [order[a:b] for a, b in itertools.pairwise(cuts)]
        best = min(best, max(cost_by_sets(graph, cost, ranges)))
    return best


def costs_of(graph: Graph, seed: int, **more: Any) -> NodeCost:
    rng = np.random.default_rng(seed)
    # A node costs no less than a halo row: no range costs more than one that contains it.
    return NodeCost(rng.integers(1, 4, graph.num_nodes) + 0.5 * graph.in_degrees(), **more)


@settings(max_examples=60, deadline=None)
@given(graphs(max_nodes=9), st.integers(0, 99), st.sampled_from((0.0, 0.3, 1.0)), st.data())
def test_no_cut_is_better(graph: Graph, seed: int, per_halo_row: float, data: Any) -> None:
    num_parts = data.draw(st.integers(1, min(4, graph.num_nodes)))
    order = np.random.default_rng(seed).permutation(graph.num_nodes)
    cost = costs_of(graph, seed, per_halo_row=per_halo_row, per_part=0.25)
    cuts = cost_ranges(graph, cost, order, num_parts)
    assert cuts[0] == 0 and cuts[-1] == graph.num_nodes and np.all(np.diff(cuts) >= 1)
    ranges = [order[a:b].tolist() for a, b in itertools.pairwise(cuts)]
    found = max(cost_by_sets(graph, cost, ranges))
    best = least_of_all_cuts(graph, cost, order.tolist(), num_parts)
    assert best <= found * (1 + 1e-9)
    assert found <= 1.003 * best


@settings(max_examples=25, deadline=None)
@given(graphs(max_nodes=9), st.integers(0, 99), st.data())
def test_padding_and_misses_count(graph: Graph, seed: int, data: Any) -> None:
    num_parts = data.draw(st.integers(1, min(3, graph.num_nodes)))
    misses = (CacheMisses(0.5 * graph.in_degrees(), 2.0),)
    cost = costs_of(graph, seed, per_halo_row=0.3, per_padded_row=2.0, misses=misses)
    order = np.arange(graph.num_nodes)
    cuts = cost_ranges(graph, cost, order, num_parts)
    ranges = [order[a:b].tolist() for a, b in itertools.pairwise(cuts)]
    found = max(cost_by_sets(graph, cost, ranges))
    # The bound on nodes is chosen without the halo: near the best, not the best.
    assert found <= 1.35 * least_of_all_cuts(graph, cost, order.tolist(), num_parts)


def test_parts_have_equal_nodes_and_equal_edges_where_degrees_differ() -> None:
    rng = np.random.default_rng(0)
    weights = np.arange(1, 801) ** -0.9
    ends = rng.choice(800, (2, 8000), p=weights / weights.sum())
    graph = Graph.from_edges(*np.concatenate([ends, ends[::-1]], axis=1), num_nodes=800)
    cost = NodeCost(10.0 + graph.in_degrees(), per_padded_row=20.0)
    parts = partition(graph, 4, "cost", node_cost=cost)
    edges = np.bincount(parts.assignment, graph.in_degrees())
    # Groups of METIS with equal nodes alone gather high degrees: 1.13 and 1.19.
    assert parts.counts().max() < 1.1 * 200 and edges.max() < 1.1 * edges.mean()


def test_the_order_is_that_whose_slowest_part_costs_least() -> None:
    ring = np.arange(400)
    place = np.random.default_rng(0).permutation(400)
    cost = NodeCost(np.ones(400), per_halo_row=1.0, per_padded_halo_row=1.0)
    for names, is_own in ((ring, True), (place, False)):
        graph = Graph.from_edges(names, names[(ring + 1) % 400], num_nodes=400)
        parts = partition(graph, 4, "cost", node_cost=cost)
        assert (parts.rank is None) == is_own
        assert report(graph, parts).halo_rows.max() <= 8


def test_the_report_tells_the_cost_of_each_part() -> None:
    graph = Graph.from_edges([0, 0, 3, 2], [1, 2, 0, 3], num_nodes=4)
    cost = NodeCost(
        np.array([1.0, 2.0, 3.0, 4.0]),
        per_halo_row=10.0,
        per_padded_row=100.0,
        per_padded_halo_row=1000.0,
        per_part=0.5,
        misses=(CacheMisses(np.array([1.0, 1.0, 1.0, 1.0]), 2.0),),
    )
    found = report(graph, Partition.from_assignment([0, 0, 1, 1], 2), cost)
    # 2 nodes and 1 halo row each: a third of the senders is missed.
    assert found.predicted_cost is not None
    np.testing.assert_allclose(found.predicted_cost, [1213.5 + 2 / 3, 1217.5 + 2 / 3])
    assert found.to_dict()["predicted_cost"] == found.predicted_cost.tolist()


@pytest.mark.parametrize(
    ("node_cost", "message"),
    [
        (None, r"method='cost' needs the cost.*planner.node_cost"),
        (np.ones(3), "got 3 costs for 4 nodes"),
        (np.array([1, 2, -1.0, 0]), r"node 2 costs -1.0, one of 1 such"),
        (np.array([1, np.nan, np.inf, 0]), "node 1 costs nan, one of 2 such"),
        (np.ones((4, 1)), r"float64 \[4, 1\]"),
        (["a", "b", "c", "d"], "expected real numbers"),
    ],
)
def test_costs_that_are_none_are_refused(node_cost: Any, message: str) -> None:
    graph = Graph.from_edges([0], [1], num_nodes=4)
    with pytest.raises(ValueError, match=message):
        partition(graph, 2, "cost", order="rcm", node_cost=node_cost)


def test_other_costs_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="per_halo_row: got -1"):
        NodeCost(np.ones(2), per_halo_row=-1)
    with pytest.raises(ValueError, match=r"misses\.per_node: got 1 costs for 2 nodes"):
        NodeCost(np.ones(2), misses=(CacheMisses(np.ones(1), 1.0),))
    graph = Graph.from_edges([0], [1], num_nodes=4)
    with pytest.raises(ValueError, match="'hash' takes no cost of nodes"):
        partition(graph, 2, "hash", node_cost=np.ones(4))
