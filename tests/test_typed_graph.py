"""Graphs of several sets of nodes and edges on the host: what they hold, and what they refuse."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from jaxgraph.graph import Graph
from jaxgraph.graph_facts import facts_of_typed
from jaxgraph.typed_graph import TypedGraph

PAPERS, AUTHORS = 5, 3
WRITES = ("author", "writes", "paper")


def sets() -> tuple[dict[str, Any], dict[Any, Any]]:
    x = np.arange(2 * PAPERS, dtype=np.float32).reshape(PAPERS, 2)
    nodes = {"paper": {"nodes": x, "labels": [0, 1, 2, 0, -1]}, "author": {"num_nodes": AUTHORS}}
    writes = {"senders": [0, 1, 2, 2], "receivers": [0, 4, 1, 1], "edge_weight": [1, 2, 3, 4]}
    cites = {"senders": [0, 4], "receivers": [1, 0], "edge_type": [0, 6]}
    return nodes, {WRITES: writes, ("paper", "cites", "paper"): cites}


def test_sets_are_read_only_and_survive_copies() -> None:
    graph = TypedGraph(*sets())
    for made in (graph, copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert made.num_nodes == PAPERS + AUTHORS and made.num_edges == 6
        assert not made.edge_sets[WRITES].senders.flags.writeable
        weight, nodes = made.edge_sets[WRITES].edge_weight, made.node_sets["paper"].nodes
        assert weight is not None and weight.dtype == np.float32
        np.testing.assert_array_equal(nodes, sets()[0]["paper"]["nodes"])
    assert "author writes paper: 4" in repr(graph)
    again = TypedGraph(graph.node_sets, graph.edge_sets)
    np.testing.assert_array_equal(again.edge_sets[WRITES].receivers, [0, 4, 1, 1])


def test_facts_are_those_of_each_set() -> None:
    facts = facts_of_typed(TypedGraph(*sets()))
    assert facts.node_sets["paper"].num_classes == 3 and facts.node_sets["paper"].num_features == 2
    writes, cites = facts.edge_sets["writes"], facts.edge_sets["cites"]
    assert (writes.num_edges, writes.num_edge_types, cites.num_edge_types) == (4, 0, 7)
    # In-degrees of the papers: 1, 2, 0, 0, 1.
    assert writes.mean_log_degree == pytest.approx((2 * np.log(2) + np.log(3)) / PAPERS)


def test_a_graph_becomes_one_of_one_set_of_each() -> None:
    graph = Graph.from_edges([0, 1], [1, 2], nodes=np.eye(3), edge_type=[4, 0], name="few")
    graph = graph.with_edges(year=[1, 2])
    made = TypedGraph.of(graph)
    (edges,) = made.edge_sets.values()
    assert (made.name, made.target, edges.num_edge_types) == ("few", "node", 5)
    np.testing.assert_array_equal(edges.receivers, graph.receivers)
    np.testing.assert_array_equal(edges.edge_data["year"], [1, 2])
    assert made.node_sets["node"].num_features == 3 and not made.node_sets["node"].num_edges
    facts = facts_of_typed(made).of_one()
    assert (facts.num_edges, facts.num_edge_types, facts.num_features) == (2, 5, 3)
    with pytest.raises(ValueError, match=r"paper, author.*expected one of each"):
        facts_of_typed(TypedGraph(*sets())).of_one()


def test_relations_have_short_names_where_they_differ() -> None:
    nodes, edges = sets()
    edges["paper", "writes", "author"] = {"senders": [0], "receivers": [1]}
    names = TypedGraph(nodes, edges).relation_names()
    assert list(names) == ["author writes paper", "cites", "paper writes author"]


@pytest.mark.parametrize(
    ("of_nodes", "of_edges", "match"),
    [
        ({"paper": {"nodes": [[1.0]]}}, {}, "no set of nodes 'author'; expected one of 'paper'"),
        ({}, {WRITES: {"senders": [3], "receivers": [0]}}, r"writes.*senders.*num_nodes = 3"),
        ({}, {WRITES: {"senders": [0], "receivers": [5]}}, r"writes.*receivers.*num_nodes = 5"),
        ({}, {WRITES: {"senders": [0]}}, r"writes.*got \['senders'\].*senders and receivers"),
        ({}, {WRITES: {"senders": [0], "receivers": [0, 1]}}, "one of each per edge"),
        ({}, {WRITES: {"senders": [0], "receivers": [0], "edge_weight": [1, 2]}}, "edge_weight"),
        ({}, {WRITES: {"senders": [0], "receivers": [0], "edge_type": [-1]}}, "edge_type"),
        ({}, {("author", "paper"): {"senders": [], "receivers": []}}, "expected .set of the send"),
        ({"a/b": {"num_nodes": 1}}, {}, "has no '/'"),
        ({"paper": {"nodes": [[np.nan]]}}, {}, "node set 'paper': nodes: 1 of 1 values are NaN"),
        ({"paper": {"x": [[1.0]]}}, {}, "node set 'paper'"),
        ({"paper": Graph.from_edges([0], [1])}, {}, "a Graph with 1 edges"),
        ({"paper": 5}, {}, "node set 'paper': got an int"),
    ],
)
def test_errors_name_the_set(of_nodes: Any, of_edges: Any, match: str) -> None:
    nodes, edges = sets()
    if "author" in match:
        del nodes["author"]
    with pytest.raises(ValueError, match=match):
        TypedGraph(nodes | of_nodes, edges | of_edges)


def test_a_graph_has_sets() -> None:
    with pytest.raises(ValueError, match="node_sets: got a dict"):
        TypedGraph({}, {})
    with pytest.raises(ValueError, match="edge_sets: got a list"):
        TypedGraph({"paper": {"num_nodes": 1}}, [])  # type: ignore[arg-type]
