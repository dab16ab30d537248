"""Digests of the data of graphs: the same wherever a graph is placed, others for other data."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from jaxgraph import Graph
from jaxgraph.parallel import make_mesh, shard
from jaxgraph.train.graph_digest import of_graphs
from tests.train.small_model import on_devices, random_partition, small_graph

PLACEMENTS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "sar": (3, 3, {}),
    "domain": (3, 3, {"mode": "domain"}),
    "several parts": (4, 2, {}),
    "stream": (4, 2, {"mode": "stream"}),
    "p3": (4, 4, {"mode": "p3"}),
    "p3, few slices": (4, 4, {"mode": "p3", "feature_budget": 10**6}),
}


def with_all_data(sparse: bool = False) -> Graph:
    graph, rng = small_graph(61), np.random.default_rng(1)
    nodes: Any = graph.nodes
    weights = rng.random(graph.num_edges).astype(np.float32)
    graph = graph.replace(nodes=sp.csr_array(nodes) if sparse else nodes, edge_weight=weights)
    graph = graph.with_nodes(target=rng.random((61, 2))).with_edges(length=weights + 1)
    return graph.replace(edge_type=rng.integers(0, 3, graph.num_edges))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_digest_does_not_depend_on_the_placement(name: str, sparse: bool) -> None:
    num_parts, devices, options = PLACEMENTS[name]
    graph = with_all_data(sparse)
    sharded = shard(graph, random_partition(graph, num_parts), make_mesh(devices), **options)
    # Sparse features count as dense ones, of which they hold the non-zeros.
    expected = of_graphs([on_devices(with_all_data(), 1)])
    assert len(expected) == 10
    assert of_graphs([sharded]) == expected


def changed(graph: Graph) -> dict[str, tuple[Graph, set[str]]]:
    """Graphs that differ in the named arrays."""
    rng = np.random.default_rng(2)
    nodes: Any = graph.nodes
    other, last = nodes.copy(), graph.edge_weight
    other[60, 5] = np.nextafter(other[60, 5], np.float32(9))
    assert last is not None
    of_edges = {"edge_weight", "edge_type", "edge_data['length']"}
    pair = {"train_mask": graph.val_mask, "val_mask": graph.train_mask}
    permuted = rng.permutation(61)
    return {
        "a bit": (graph.replace(nodes=other), {"nodes"}),
        "twice": (graph.replace(nodes=2 * nodes), {"nodes"}),
        "columns": (graph.replace(nodes=nodes[:, ::-1]), {"nodes"}),
        "labels": (graph.replace(labels=np.asarray(graph.labels)[permuted]), {"labels"}),
        "masks": (graph.replace(**pair), {"train_mask", "val_mask"}),
        "weights": (graph.replace(edge_weight=last[::-1]), {"edge_weight"}),
        "no weights": (graph.replace(edge_weight=None), {"edge_weight"}),
        "reversed": (
            graph.replace(senders=graph.receivers, receivers=graph.senders),
            {"senders, receivers"} | of_edges,
        ),
        "target": (graph.with_nodes(target=np.ones((61, 2))), {"node_data['target']"}),
    }


@pytest.mark.parametrize("num_parts", [1, 3])
def test_other_data_has_another_digest(num_parts: int) -> None:
    graph = with_all_data()
    expected = of_graphs([on_devices(graph, num_parts)])
    for name, (other, names) in changed(graph).items():
        found = of_graphs([on_devices(other, num_parts)])
        differ = {key for key in expected | found if expected.get(key) != found.get(key)}
        assert differ == names, name


def test_several_graphs_count_in_their_order() -> None:
    one, other = (on_devices(small_graph(20, seed=seed), 1) for seed in range(2))
    found, swapped = of_graphs([one, other]), of_graphs([other, one])
    assert found.keys() == swapped.keys() and "graph 1: labels" in found
    assert found["labels"] == swapped["graph 1: labels"] != swapped["labels"]
