"""Conversions from and to scipy, and from networkx."""

import re
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given

from jaxgraph.datasets import from_networkx, from_scipy, to_scipy
from jaxgraph.graph import Graph
from jaxgraph.transforms import remove_duplicate_edges
from tests.datasets.structure import present
from tests.strategies import graphs


def pairs_of(graph: Graph) -> list[tuple[int, int]]:
    return list(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))


@given(graphs())
def test_an_adjacency_matrix_counts_the_edges_between_two_nodes(graph: Graph) -> None:
    dense = np.zeros((graph.num_nodes, graph.num_nodes))
    np.add.at(dense, (graph.senders, graph.receivers), 1)
    np.testing.assert_array_equal(to_scipy(graph).toarray(), dense)


@given(graphs())
def test_there_and_back_is_the_graph_without_repetitions(graph: Graph) -> None:
    simple = remove_duplicate_edges(graph)
    assert pairs_of(from_scipy(to_scipy(simple))) == pairs_of(simple)


@pytest.mark.parametrize("form", [sp.coo_array, sp.csr_matrix, sp.csc_array, sp.lil_matrix])
def test_values_are_weights_unless_all_are_one(form: Any) -> None:
    dense = np.array([[0, 2, 0], [0, 0, 0.5], [0, 0, 0]])
    graph = from_scipy(form(dense), labels=[0, 1, 0], name="weighted")
    order = np.argsort(graph.senders)
    assert graph.senders[order].tolist() == [0, 1]
    assert graph.receivers[order].tolist() == [1, 2]
    assert present(graph.edge_weight)[order].tolist() == [2, 0.5]
    assert (graph.name, graph.num_classes) == ("weighted", 2)
    np.testing.assert_array_equal(to_scipy(graph).toarray(), dense)
    assert from_scipy(form(dense > 0)).edge_weight is None


def test_zeros_that_are_stored_are_no_edges() -> None:
    matrix = sp.coo_array(([1.0, 0.0], ([0, 1], [1, 0])), shape=(2, 2))
    assert pairs_of(from_scipy(matrix)) == [(0, 1)]
    with pytest.raises(ValueError, match="adjacency: got values of complex128; expected real"):
        from_scipy(sp.coo_array(np.eye(2) * 1j))


def test_only_square_sparse_matrices_are_taken() -> None:
    with pytest.raises(ValueError, match="adjacency: got a ndarray; expected a scipy sparse"):
        from_scipy(np.eye(3))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=re.escape("adjacency: got shape (2, 3); expected")):
        from_scipy(sp.coo_array((2, 3)))


def test_undirected_edges_become_two_and_directed_ones_stay() -> None:
    edges = [("a", "b"), ("b", "c"), ("c", "c")]
    assert sorted(pairs_of(from_networkx(nx.Graph(edges)))) == [
        *((0, 1), (1, 0), (1, 2), (2, 1), (2, 2))
    ]
    assert pairs_of(from_networkx(nx.DiGraph(edges))) == [(0, 1), (1, 2), (2, 2)]


def test_parallel_edges_and_isolated_nodes_are_kept() -> None:
    source = nx.MultiDiGraph([(0, 1), (0, 1)])
    source.add_node(2)
    graph = from_networkx(source)
    assert (pairs_of(graph), graph.num_nodes) == ([(0, 1), (0, 1)], 3)
    assert from_networkx(nx.empty_graph(4)).num_edges == 0
    numbered = nx.Graph([(np.int64(0), np.int64(1))])
    assert from_networkx(numbered).node_names is None


def test_weights_follow_both_directions() -> None:
    source = nx.Graph()
    source.add_weighted_edges_from([(0, 1, 3.0), (1, 1, 4.0)])
    graph = from_networkx(source, weight="weight")
    weights = dict(zip(pairs_of(graph), present(graph.edge_weight).tolist(), strict=True))
    assert weights == {(0, 1): 3, (1, 0): 3, (1, 1): 4}
    source.add_edge(0, 2)
    with pytest.raises(ValueError, match=re.escape("weight: the edge (0, 2) has no attribute 'we")):
        from_networkx(source, weight="weight")


def test_attributes_of_nodes_and_edges_are_taken_by_name() -> None:
    source = nx.Graph()
    for name, age, club, known in (("ann", 30, "b", True), ("bob", 40, "a", False)):
        source.add_node(name, age=age, size=[1.5, 2], club=club, known=known, unknown=not known)
    source.add_edge("ann", "bob", length=3.0, kind="road", w=2)
    graph = from_networkx(
        source,
        weight="w",
        nodes=["age", "size"],
        labels="club",
        train_mask="known",
        test_mask="unknown",
        edges=("length",),
        edge_type="kind",
    )
    assert pairs_of(graph) == [(0, 1), (1, 0)]
    assert present(graph.nodes).tolist() == [[30, 1.5, 2], [40, 1.5, 2]]
    assert present(graph.labels).tolist() == [1, 0]
    assert present(graph.train_mask).tolist() == [True, False]
    assert present(graph.edges).tolist() == [[3], [3]]
    assert present(graph.edge_type).tolist() == [0, 0]
    assert present(graph.edge_weight).tolist() == [2, 2]
    assert present(graph.node_names).tolist() == ["ann", "bob"]
    with pytest.raises(ValueError, match=r"nodes: the attribute 'club' holds 'b'; expected numb"):
        from_networkx(source, nodes="club")
    del source.nodes["bob"]["age"]
    with pytest.raises(ValueError, match="nodes: the node 'bob' has no attribute 'age'"):
        from_networkx(source, nodes="age")


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ([0, 1, 2], None),
        ([1, 0, 2], [1, 0, 2]),
        ([10**12, 5, 7], [10**12, 5, 7]),
        ([(0, 0), (0, 1), "x"], ["(0, 0)", "(0, 1)", "x"]),
    ],
)
def test_nodes_that_are_no_rows_keep_their_names(nodes: list[Any], names: Any) -> None:
    source = nx.DiGraph()
    source.add_nodes_from(nodes)
    found = from_networkx(source).node_names
    assert (None if found is None else found.tolist()) == names


def test_the_order_of_nodes_can_be_given() -> None:
    source = nx.DiGraph([("a", "b")])
    graph = from_networkx(source, node_order=["b", "a"], labels=[7, 3])
    assert pairs_of(graph) == [(1, 0)]
    assert present(graph.labels).tolist() == [7, 3]
    for wrong in (["a"], ["a", "b", "b"], ["a", "c"]):
        with pytest.raises(ValueError, match=f"node_order: got {len(wrong)} nodes, which are not"):
            from_networkx(source, node_order=wrong)
