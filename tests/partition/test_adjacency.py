"""The undirected simple graph: symmetric, sorted, without self-loops and repetitions."""

import numpy as np
from hypothesis import given

from jaxgraph import Graph
from jaxgraph.partition.adjacency import undirected_adjacency
from tests.strategies import graphs


@given(graphs())
def test_equals_a_loop_over_the_edges(graph: Graph) -> None:
    neighbours: list[set[int]] = [set() for _ in range(graph.num_nodes)]
    for sender, receiver in zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True):
        if sender != receiver:
            neighbours[sender].add(receiver)
            neighbours[receiver].add(sender)
    found = undirected_adjacency(graph.senders, graph.receivers, graph.num_nodes)
    assert found.num_nodes == graph.num_nodes
    for node, expected in enumerate(neighbours):
        row = found.neighbours[found.starts[node] : found.starts[node + 1]]
        assert row.tolist() == sorted(expected)


def test_an_edge_repeated_256_times_is_one() -> None:
    found = undirected_adjacency(np.zeros(256, np.int32), np.ones(256, np.int32), 2)
    np.testing.assert_array_equal(found.starts, [0, 1, 2])
    np.testing.assert_array_equal(found.neighbours, [1, 0])


def test_rows_come_in_the_order_asked_for() -> None:
    path = undirected_adjacency(np.array([0, 1, 2]), np.array([1, 2, 3]), 5)
    rows = path.rows(np.array([2, 4, 0]))
    np.testing.assert_array_equal(rows.starts, [0, 2, 2, 3])
    np.testing.assert_array_equal(rows.neighbours, [1, 3, 1])
