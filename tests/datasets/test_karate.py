"""The karate club against two independent copies of it."""

import networkx as nx
import numpy as np

from jaxgraph.datasets import load_karate
from tests.datasets.structure import component_sizes, mask_sizes, present


def test_edges_and_clubs_are_those_of_networkx() -> None:
    graph, reference = load_karate(), nx.karate_club_graph()
    expected = {pair for u, v in reference.edges for pair in ((u, v), (v, u))}
    pairs = list(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))
    assert len(pairs) == 156
    assert set(pairs) == expected
    clubs = [reference.nodes[node]["club"] == "Officer" for node in range(34)]
    np.testing.assert_array_equal(present(graph.labels), clubs)


def test_the_leaders_train_and_both_clubs_are_in_every_mask() -> None:
    graph = load_karate()
    assert (graph.num_nodes, graph.num_classes, graph.num_features) == (34, 2, 0)
    assert np.flatnonzero(present(graph.train_mask)).tolist() == [0, 33]
    assert mask_sizes(graph) == [2, 8, 24]
    for mask in (graph.train_mask, graph.val_mask, graph.test_mask):
        assert np.ptp(np.bincount(present(graph.labels)[present(mask)])) == 0
    assert component_sizes(graph) == [34]
