"""Many graphs as one: every array is where it belongs, and what does not fit is named."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph import Graph, TypedGraph, transforms
from jaxgraph.graph_batches import grouped
from tests.strategies import SMALL_GRAPHS, graphs


def edges_of(batch: TypedGraph) -> Any:
    return batch.edge_sets["node", "edge", "node"]


def members_of(batch: TypedGraph) -> Any:
    return batch.edge_sets["node", "member", "graph"]


def taken_apart(batch: TypedGraph) -> list[Graph]:
    """The graphs of a batch, by the nodes of each."""
    nodes, edges, members = batch.node_sets["node"], edges_of(batch), members_of(batch)
    fields = ("senders", "receivers", "edges", "edge_weight", "edge_type", "edge_data")
    union = nodes.replace(**{name: getattr(edges, name) for name in fields})
    count = batch.node_sets["graph"].num_nodes
    return [
        transforms.subgraph(union, members.senders[members.receivers == number])
        for number in range(count)
    ]


ARRAYS = ("senders", "receivers", "nodes", "labels", "edges", "edge_weight", "edge_type")


def assert_same(one: Graph, other: Graph) -> None:
    """Two graphs with equal arrays, but for masks and names."""
    for name in ARRAYS:
        np.testing.assert_equal(getattr(one, name), getattr(other, name), err_msg=name)
    for field in ("node_data", "edge_data"):
        np.testing.assert_equal({**getattr(one, field)}, {**getattr(other, field)})


@given(st.lists(graphs(max_nodes=8, edge_data=True), min_size=1, max_size=4))
def test_a_batch_holds_every_graph(given: list[Graph]) -> None:
    rng = np.random.default_rng(0)
    given = [
        each.with_nodes(target=rng.random((each.num_nodes, 2))).with_edges(
            length=rng.random(each.num_edges)
        )
        for each in given
    ]
    batch = Graph.batch(given)
    assert (batch.target, batch.readout) == ("graph", ("member",))
    for one, other in zip(taken_apart(batch), given, strict=True):
        assert_same(one, other)


def test_the_sets_are_nodes_and_graphs() -> None:
    batch = Graph.batch(SMALL_GRAPHS, labels=np.arange(len(SMALL_GRAPHS)))
    assert (batch.target, batch.readout, batch.name) == ("graph", ("member",), "graph")
    assert list(batch.node_sets) == ["node", "graph"]
    assert list(batch.relation_names()) == ["edge", "member"]
    counts = [each.num_nodes for each in SMALL_GRAPHS]
    np.testing.assert_array_equal(
        members_of(batch).receivers, np.repeat(np.arange(len(counts)), counts)
    )
    np.testing.assert_array_equal(members_of(batch).senders, np.arange(sum(counts)))
    nodes = batch.node_sets["node"]
    assert all(getattr(nodes, f"{split}_mask") is None for split in ("train", "val", "test"))
    # An inverse of the readout would carry messages.
    assert list(transforms.with_inverses(batch).relation_names()) == ["edge", "member", "rev_edge"]
    for other in (copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))):
        assert (other.target, other.readout) == ("graph", ("member",))


def small(columns: int = 2, **arrays: Any) -> Graph:
    return Graph.from_edges([0, 1], [1, 0], nodes=np.ones((3, columns)), **arrays)


def test_graphs_have_arrays_of_their_own() -> None:
    batch = Graph.batch(
        [small(), small(), small()],
        labels=[1, 0, 1],
        nodes=np.eye(3),
        train_mask=[True, False, False],
        test_mask=[False, True, True],
        node_data={"energy": [0.5, np.nan, 2]},
    )
    graph = batch.node_sets["graph"]
    assert (graph.num_nodes, graph.num_classes, graph.num_features) == (3, 2, 3)
    np.testing.assert_array_equal(graph.train_mask, [True, False, False])
    np.testing.assert_array_equal(graph.test_mask, [False, True, True])
    np.testing.assert_array_equal(graph.node_data["energy"], [0.5, np.nan, 2])


def test_sparse_features_stay_sparse() -> None:
    dense = [np.eye(4)[:2], np.eye(4)[1:], 2 * np.eye(4)]
    sparse = [sp.csr_array(each) for each in dense]
    mixed = [sparse[0], dense[1], sparse[2]]
    for features in (sparse, mixed, mixed[1:]):
        batch = Graph.batch([Graph.from_edges([0], [1], nodes=each) for each in features])
        found: Any = batch.node_sets["node"].nodes
        assert isinstance(found, sp.csr_array)
        np.testing.assert_array_equal(found.toarray(), np.concatenate(dense[-len(features) :]))


def without(name: str) -> Graph:
    return small(labels=[0, 1, 0], edge_type=[0, 1]).replace(**{name: None})


MISTAKES: list[tuple[Any, dict[str, Any], str]] = [
    (small(), {}, "Graph.batch(graphs): got a Graph; expected a list of at least one Graph."),
    ([], {}, "Graph.batch(graphs): got none; expected a list of at least one Graph."),
    ([small(), 3], {}, "Graph.batch(graphs): got an int; expected a list"),
    (
        [without("labels"), small(labels=[0, 1, 0], edge_type=[0, 1])],
        {},
        "labels of graph 0 is missing, and that of graph 1 has entries of shape []; expected the",
    ),
    (
        [small(labels=[0, 1, 0], edge_type=[0, 1]), without("edge_type")],
        {},
        "edge_type of graph 0 has entries of shape [], and that of graph 1 is missing; expected",
    ),
    (
        [small(), small(), small(3)],
        {},
        "nodes of graph 0 has 2 columns, and that of graph 2 has 3 columns; expected the same of",
    ),
    (
        [small(), small().with_nodes(target=np.zeros(3))],
        {},
        "node_data['target'] of graph 0 is missing, and that of graph 1 has entries of shape []",
    ),
    (
        [small().with_edges(length=np.zeros((2, 3, 4))), small().with_edges(length=np.zeros(2))],
        {},
        "edge_data['length'] of graph 0 has entries of shape [3, 4], and that of graph 1 has",
    ),
    (
        np.array([small(), small()], object),
        {},
        "got a NumPy array; expected a list of at least one",
    ),
    ([small()], {"labels": [0, 1]}, "node set 'graph': labels: got shape [2]; expected [1]"),
    ([small()], {"label": [0]}, "node set 'graph': "),
    ([small()], {"heat": [0.5]}, "'heat' is no argument; labels are classes, and other arrays of"),
    ([small()], {"train_mask": [False]}, "node set 'graph': train_mask: selects no node"),
]


@pytest.mark.parametrize(("given", "options", "message"), MISTAKES)
def test_graphs_that_do_not_fit_are_refused(
    given: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Graph.batch(given, **options)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 0, 2], "graph 1 of 3 has no nodes, and no rows to read; leave it out."),
        ([0, 1, 1], "edge 0 goes from graph 0 to graph 1; expected edges inside of graphs."),
        ([0, 0], "graph_ids: got shape [2]; expected [3]"),
        ([0, 0, -1], "graph_ids: values run from -1 to 0; expected one number per node"),
    ],
)
def test_ids_that_do_not_fit_a_union_are_refused(ids: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        grouped(small(), ids)


@pytest.mark.parametrize("readout", ["member", ("edge",), ("members",), ["member"]])
def test_a_readout_is_a_tuple_of_edges_into_the_target(readout: Any) -> None:
    batch = Graph.batch([small()], labels=[0])
    message = "expected a tuple of names of sets of edges that end in the target, 'graph': some of "
    with pytest.raises(ValueError, match=re.escape(f"readout is {readout!r}; {message}'member'")):
        TypedGraph(batch.node_sets, batch.edge_sets, target="graph", readout=readout)
