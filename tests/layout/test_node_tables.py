"""Rows and slots of the user's data."""

import numpy as np
import pytest

from jaxgraph.layout import node_tables as module
from jaxgraph.layout.node_tables import global_degrees
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
