"""Rebalancing: limits hold where they can, no load leaves its limit, parts stay filled."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph import Graph
from jaxgraph.partition.adjacency import Adjacency, undirected_adjacency
from jaxgraph.partition.rebalancing import rebalance
from tests.strategies import assignments, graphs


def adjacency_of(graph: Graph) -> Adjacency:
    return undirected_adjacency(graph.senders, graph.receivers, graph.num_nodes)


def loads_of(assignment: np.ndarray, weights: np.ndarray, num_parts: int) -> np.ndarray:
    """The weight of each part, from a plain count."""
    return np.array(
        [[weight[assignment == part].sum() for part in range(num_parts)] for weight in weights]
    )


@given(graphs(), st.integers(1, 5), st.floats(1.0, 2.0), st.data())
def test_no_part_gets_worse_and_none_is_emptied(
    graph: Graph, num_parts: int, tolerance: float, data: st.DataObject
) -> None:
    start = data.draw(assignments(graph.num_nodes, num_parts))
    weights = np.stack([graph.in_degrees(), np.ones(graph.num_nodes, np.int64)])
    limits = np.ceil(tolerance * weights.sum(axis=1) / num_parts).astype(np.int64)
    balanced = rebalance(start, num_parts, adjacency_of(graph), weights, limits)

    before, after = loads_of(start, weights, num_parts), loads_of(balanced, weights, num_parts)
    assert np.all(after <= np.maximum(before, limits[:, None]))
    assert np.all(after[1][before[1] > 0] > 0)
    if np.all(before <= limits[:, None]):
        np.testing.assert_array_equal(balanced, start)


def test_the_node_that_costs_the_fewest_edges_moves() -> None:
    # Two triangles 0 1 2 and 4 5 6 and node 3, connected to the second but in the first part.
    senders = np.array([0, 1, 2, 4, 5, 6, 3, 3, 2])
    receivers = np.array([1, 2, 0, 5, 6, 4, 4, 5, 3])
    start = np.array([0, 0, 0, 0, 1, 1, 1], np.int32)
    adjacency = undirected_adjacency(senders, receivers, 7)
    weights = np.array([[1, 1, 1, 1, 1, 0, 0]])
    balanced = rebalance(start, 2, adjacency, weights, np.array([3]))
    np.testing.assert_array_equal(balanced, [0, 0, 0, 1, 1, 1, 1])


def test_a_part_without_room_for_one_weight_still_takes_the_other() -> None:
    # The first weight is full everywhere; nodes 3 to 6, of weight 0 in it, can still move.
    nothing = np.array([], np.int32)
    adjacency = undirected_adjacency(nothing, nothing, 7)
    start = np.array([0, 1, 2, 1, 1, 1, 1], np.int32)
    weights = np.array([[1, 1, 1, 0, 0, 0, 0], [1] * 7])
    balanced = rebalance(start, 3, adjacency, weights, np.array([1, 3]))
    np.testing.assert_array_equal(np.sort(np.bincount(balanced)), [1, 3, 3])
    np.testing.assert_array_equal(balanced[:3], [0, 1, 2])
