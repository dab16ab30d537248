"""Properties of a graph's edges and masks that the tests of data sets check."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.sparse import csgraph

from jaxgraph.datasets import to_scipy
from jaxgraph.graph import Graph


def present(array: Any) -> np.ndarray:
    """Returns an array that a graph is expected to have; a sparse one as a dense one."""
    assert array is not None
    return array if isinstance(array, np.ndarray) else array.toarray()


def component_sizes(graph: Graph) -> list[int]:
    """Returns the sizes of the connected components, largest first."""
    _, component = csgraph.connected_components(to_scipy(graph), directed=False)
    return sorted(np.bincount(component).tolist(), reverse=True)


def num_self_loops(graph: Graph) -> int:
    """Returns the number of edges i -> i."""
    return int((graph.senders == graph.receivers).sum())


def is_symmetric(graph: Graph) -> bool:
    """True where every edge has its reverse."""
    adjacency = to_scipy(graph)
    return (adjacency != adjacency.T).nnz == 0


def num_repeated_edges(graph: Graph) -> int:
    """Returns the number of edges that repeat another."""
    pairs = np.stack([graph.senders, graph.receivers])
    return graph.num_edges - np.unique(pairs, axis=1).shape[1]


def share_of_equal_labels(graph: Graph) -> float:
    """Returns the share of edges that join nodes of one class."""
    labels = present(graph.labels)
    return float((labels[graph.senders] == labels[graph.receivers]).mean())


def mask_sizes(graph: Graph) -> list[int]:
    """Returns the numbers of training, validation and test nodes."""
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    return [int(present(mask).sum()) for mask in masks]


def check_published(graph: Graph, published: Mapping[str, Any]) -> None:
    """Compares a graph of undirected edges with published counts."""
    self_loops = published.get("self_loops", 0)
    assert graph.num_nodes == published["nodes"]
    assert graph.num_edges == 2 * published["edges"] + self_loops
    assert (num_self_loops(graph), num_repeated_edges(graph)) == (self_loops, 0)
    assert is_symmetric(graph)
    assert graph.in_degrees().max() == published["max_degree"]
    sizes = component_sizes(graph)
    assert (len(sizes), sizes[0]) == published["components"]
    assert mask_sizes(graph) == published["masks"]
    if "classes" in published:
        labels = present(graph.labels)
        assert np.bincount(labels[labels >= 0]).tolist() == published["classes"]
