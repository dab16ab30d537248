"""Rows and slots of the user's data."""

import numpy as np
import pytest

from jaxgraph import Graph
from jaxgraph.layout import node_tables as module
from jaxgraph.layout.node_tables import edge_arrays, global_degrees, node_arrays
from tests.oracles.edges import Edges
from tests.strategies import small_graphs


@pytest.mark.parametrize("graph", small_graphs(edge_data=True), ids=lambda graph: graph.name)
def test_degrees_are_those_of_the_whole_graph(graph, monkeypatch):
    monkeypatch.setattr(module, "_EDGES_AT_A_TIME", 8)
    edges = Edges.of(graph.senders, graph.receivers, graph.num_nodes, graph.edge_weight)
    degrees = global_degrees(graph)
    assert np.array_equal(degrees["in_degree"], edges.in_degrees())
    weighted = edges.sum_by_receiver(edges.weight)
    assert np.allclose(degrees["weighted_in_degree"], weighted, rtol=1e-6)
    loops = set(graph.senders[graph.senders == graph.receivers].tolist())
    missing = [node not in loops for node in range(graph.num_nodes)]
    assert degrees["missing_self_loop"].tolist() == missing


def test_rows_of_nodes():
    graph = small_graphs()[-1]
    nodes = np.array([5, 0, 36])
    arrays = node_arrays(graph, global_degrees(graph), nodes)
    assert arrays["node_ids"].tolist() == [5, 0, 36]
    assert arrays["node_mask"].all()
    for name in ("nodes", "labels", "train_mask", "val_mask", "test_mask"):
        assert np.array_equal(arrays[name], getattr(graph, name)[nodes])
    assert "graph_ids" not in arrays
    assert "weighted_in_degree" not in arrays


def test_slots_of_edges():
    graph = small_graphs(edge_data=True)[-1]
    slots = np.array([210, 3])
    arrays = edge_arrays(graph, slots)
    assert arrays.keys() == {"edges", "edge_weight", "edge_type"}
    for name, values in arrays.items():
        assert np.array_equal(values, getattr(graph, name)[slots])
    bare = Graph.from_edges([0], [1])
    assert edge_arrays(bare, np.array([0])) == {}
