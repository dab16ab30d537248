"""Transforms against brute force on small graphs, and their errors."""

import re
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph import transforms
from jaxgraph.graph import Graph
from jaxgraph.typed_graph import TypedGraph
from tests.strategies import graphs


def present(array: np.ndarray | None) -> np.ndarray:
    assert array is not None
    return array


def masks_of(graph: Graph) -> np.ndarray:
    return np.stack([present(m) for m in (graph.train_mask, graph.val_mask, graph.test_mask)])


def pairs_of(graph: Graph) -> list[tuple[int, int]]:
    return list(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))


def labelled_graph(sizes: tuple[int, ...], unlabelled: int = 0) -> Graph:
    labels = np.concatenate([np.repeat(np.arange(len(sizes)), sizes), np.full(unlabelled, -1)])
    labels = np.random.default_rng(3).permutation(labels)
    return Graph.from_edges([0], [1], num_nodes=labels.size, labels=labels)


@given(graphs(max_nodes=12))
def test_undirected_holds_both_directions_once_in_order(graph: Graph) -> None:
    expected = sorted({edge for u, v in pairs_of(graph) for edge in ((u, v), (v, u))})
    assert pairs_of(transforms.to_undirected(graph)) == expected


@given(graphs(max_nodes=12), st.integers(0, 2**32 - 1))
def test_undirected_keeps_attributes_that_agree(graph: Graph, seed: int) -> None:
    # A symmetric function of the two ends agrees on an edge, its repetitions and its reverse.
    table = np.random.default_rng(seed).normal(size=(graph.num_nodes, graph.num_nodes, 2))
    table = (table + table.transpose(1, 0, 2)).astype(np.float32)

    def values(of: Graph) -> np.ndarray:
        return table[of.senders, of.receivers]

    attributed = graph.replace(
        edges=values(graph),
        edge_weight=values(graph)[:, 0],
        edge_type=(values(graph)[:, 1] > 0).astype(int),
    )
    result = transforms.to_undirected(attributed)
    assert pairs_of(result) == pairs_of(transforms.to_undirected(graph))
    np.testing.assert_array_equal(present(result.edges), values(result))
    np.testing.assert_array_equal(present(result.edge_weight), values(result)[:, 0])
    np.testing.assert_array_equal(present(result.edge_type), values(result)[:, 1] > 0)


@pytest.mark.parametrize(
    "attribute",
    [{"edges": [[1], [2]]}, {"edge_weight": [1, 2]}, {"edge_type": [0, 1]}],
    ids=lambda attribute: next(iter(attribute)),
)
def test_attributes_that_conflict_are_refused_with_the_edge(attribute: dict[str, Any]) -> None:
    name = next(iter(attribute))
    opposite = Graph.from_edges([2, 1], [1, 2], num_nodes=3, **attribute)
    message = f"{name}: the edges 1 -> 2 have different values.*{name}=None"
    with pytest.raises(ValueError, match=message):
        transforms.to_undirected(opposite)
    repeated = Graph.from_edges([1, 1], [2, 2], num_nodes=3, **attribute)
    with pytest.raises(ValueError, match=message):
        transforms.remove_duplicate_edges(repeated)


@given(graphs(max_nodes=12))
def test_duplicates_are_removed_and_directions_kept(graph: Graph) -> None:
    assert pairs_of(transforms.remove_duplicate_edges(graph)) == sorted(set(pairs_of(graph)))


def test_each_set_of_edges_gets_an_inverse_with_its_attributes() -> None:
    writes, cites = ("author", "writes", "paper"), ("paper", "cites", "paper")
    edges = {"senders": [0, 1, 1], "receivers": [3, 0, 2], "edge_weight": [1, 2, 3]}
    graph = TypedGraph(
        {"paper": {"num_nodes": 4}, "author": {"num_nodes": 2}},
        {writes: edges, cites: edges | {"edge_data": {"year": [7, 8, 9]}}},
        "few",
        "paper",
    )
    both = transforms.with_inverses(graph)
    assert (both.name, both.target, both.num_edges) == ("few", "paper", 12)
    inverse = (("paper", "rev_writes", "author"), ("paper", "rev_cites", "paper"))
    assert list(both.edge_sets) == [writes, cites, *inverse]
    for ends, back in zip((writes, cites), inverse, strict=True):
        one, other = graph.edge_sets[ends], both.edge_sets[back]
        np.testing.assert_array_equal(one.senders, other.receivers)
        np.testing.assert_array_equal(one.receivers, other.senders)
        np.testing.assert_array_equal(present(one.edge_weight), present(other.edge_weight))
    np.testing.assert_array_equal(both.edge_sets[inverse[1]].edge_data["year"], [7, 8, 9])
    clash = TypedGraph(graph.node_sets, {**graph.edge_sets, inverse[0]: both.edge_sets[inverse[0]]})
    with pytest.raises(ValueError, match=r"an edge set .'paper', 'rev_writes', 'author'. already"):
        transforms.with_inverses(clash)


@pytest.mark.parametrize("weighted", [False, True])
def test_edges_among_billions_of_nodes_stay_themselves(weighted: bool) -> None:
    # sender * num_nodes + receiver of these is beyond 64 bits.
    edges = [(8589934592, 4294967296), (17179869184, 8589934592), (17179869184, 0)]
    senders, receivers = np.array([*edges, edges[0]]).T
    graph = Graph.from_edges(senders, receivers, num_nodes=1 << 36)
    if weighted:
        graph = graph.replace(edge_weight=[1, 2, 3, 1])
    assert pairs_of(transforms.remove_duplicate_edges(graph)) == sorted(edges)
    both = transforms.to_undirected(graph)
    assert pairs_of(both) == sorted(edges + [(v, u) for u, v in edges])
    if weighted:
        weights = dict(zip(edges, (1, 2, 3), strict=True))
        expected = [weights.get((u, v)) or weights[v, u] for u, v in pairs_of(both)]
        assert present(both.edge_weight).tolist() == expected


@given(graphs(max_nodes=12), st.booleans())
def test_both_ways_to_find_duplicates_agree(graph: Graph, weighted: bool) -> None:
    if weighted:
        graph = graph.replace(edge_weight=graph.senders + 20 * graph.receivers)
    found = transforms.remove_duplicate_edges(graph)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transforms, "_MOST_NODES_OF_KEYS", 0)
        assert pairs_of(transforms.remove_duplicate_edges(graph)) == pairs_of(found)


@given(graphs(max_nodes=12))
def test_self_loops_are_added_where_missing(graph: Graph) -> None:
    result = transforms.add_self_loops(graph)
    missing = set(range(graph.num_nodes)) - {u for u, v in pairs_of(graph) if u == v}
    assert pairs_of(result) == pairs_of(graph) + [(i, i) for i in sorted(missing)]


@given(graphs(max_nodes=12))
def test_self_loops_are_removed_with_their_attributes(graph: Graph) -> None:
    weighted = graph.replace(edge_weight=np.arange(graph.num_edges))
    result = transforms.remove_self_loops(weighted)
    kept = [(index, edge) for index, edge in enumerate(pairs_of(graph)) if edge[0] != edge[1]]
    assert pairs_of(result) == [edge for _, edge in kept]
    np.testing.assert_array_equal(present(result.edge_weight), [index for index, _ in kept])


def test_new_self_loops_weigh_one_and_need_no_other_attribute() -> None:
    graph = Graph.from_edges([0, 1], [1, 1], edge_weight=[0.5, 3.0])
    weights = present(transforms.add_self_loops(graph).edge_weight)
    np.testing.assert_array_equal(weights, [0.5, 3.0, 1.0])
    attributes: list[dict[str, Any]] = [{"edges": np.ones((2, 1))}, {"edge_type": [0, 1]}]
    for attribute in attributes:
        name = next(iter(attribute))
        with pytest.raises(ValueError, match=f"{name}: a new self-loop has no value for it"):
            transforms.add_self_loops(Graph.from_edges([0, 1], [1, 1], **attribute))


def test_normalized_rows_sum_to_one_and_zero_rows_stay() -> None:
    graph = Graph.from_edges([0], [1], nodes=[[1, 3], [0, 0], [0.5, 0]])
    result = transforms.normalize_features(graph)
    np.testing.assert_allclose(present(result.nodes), [[0.25, 0.75], [0, 0], [1, 0]])
    with pytest.raises(ValueError, match="nodes: the graph 'graph' has no features"):
        transforms.normalize_features(graph.replace(nodes=None))


def test_sparse_features_stay_sparse() -> None:
    dense = np.random.default_rng(0).random((6, 5)).astype(np.float32)
    dense[dense < 0.6] = 0
    graph = Graph.from_edges([0], [1], nodes=dense)
    for change in (
        transforms.normalize_features,
        lambda graph: transforms.subgraph(graph, np.array([4, 1, 0])),
        transforms.to_undirected,
    ):
        nodes = change(graph.replace(nodes=sp.csr_array(dense))).nodes
        assert isinstance(nodes, sp.csr_array)
        np.testing.assert_array_equal(nodes.toarray(), present(change(graph).nodes))


def test_degree_features_are_logarithms_or_one_hot() -> None:
    graph = Graph.from_edges([0, 1, 2, 3], [1, 2, 1, 1], num_nodes=4)
    logs = present(transforms.degree_features(graph).nodes)
    np.testing.assert_allclose(logs[:, 0], np.log([1, 4, 2, 1]), rtol=1e-6)
    one_hot = transforms.degree_features(graph, max_degree=2).nodes
    np.testing.assert_array_equal(present(one_hot), np.eye(3)[[0, 2, 1, 0]])
    with pytest.raises(ValueError, match="max_degree: got -1"):
        transforms.degree_features(graph, max_degree=-1)


@given(st.integers(1, 5), st.integers(0, 4), st.integers(0, 2**32 - 1))
def test_split_by_class_draws_the_given_number_of_each(train: int, val: int, seed: int) -> None:
    graph = labelled_graph((10, 0, 12, 30), unlabelled=5)
    result = transforms.random_split(graph, train, val, seed=seed)
    labels = present(graph.labels)
    counts = np.bincount(labels[present(result.train_mask)], minlength=4)
    np.testing.assert_array_equal(counts, [train, 0, train, train])
    if val:
        counts = np.bincount(labels[present(result.val_mask)], minlength=4)
        np.testing.assert_array_equal(counts, [val, 0, val, val])
    else:
        assert result.val_mask is None
    assert present(result.test_mask).sum() == 52 - 3 * (train + val)


def test_split_depends_on_the_seed_only() -> None:
    graph = labelled_graph((100, 100))
    first, again, other = (masks_of(transforms.random_split(graph, seed=s)) for s in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_split_by_fraction_covers_labelled_nodes_once() -> None:
    graph = labelled_graph((37, 63), unlabelled=10)
    result = transforms.random_split(graph, fractions=(0.6, 0.2, 0.2), seed=4)
    masks = masks_of(result)
    np.testing.assert_array_equal(masks.sum(axis=1), [60, 20, 20])
    np.testing.assert_array_equal(masks.sum(axis=0), present(graph.labels) >= 0)
    unlabelled = transforms.random_split(graph.replace(labels=None), fractions=(0.5, 0.2, 0.3))
    assert (masks_of(unlabelled).sum(axis=0) == 1).all()
    without_val = transforms.random_split(graph, fractions=(0.1, 0.0, 0.3))
    assert without_val.val_mask is None
    assert present(without_val.test_mask).sum() == 30


def test_split_by_fraction_takes_every_node_of_a_multilabel_graph() -> None:
    graph = Graph.from_edges([0], [1], labels=np.zeros((20, 3)))
    result = transforms.random_split(graph, fractions=(0.5, 0.25, 0.25))
    masks = masks_of(result)
    np.testing.assert_array_equal(masks.sum(axis=1), [10, 5, 5])


REFUSED_SPLITS: list[tuple[Graph, dict[str, Any], str]] = [
    (Graph.from_edges([0], [1]), {}, "labels: the graph 'graph' has none"),
    (Graph.from_edges([0], [1], labels=np.ones((2, 1))), {}, "labels: multi-label nodes have"),
    (labelled_graph((60, 40)), {}, "val_per_class = 50, but class 1 has 40 nodes"),
    (labelled_graph((60, 60)), {"labels_per_class": 0}, "labels_per_class = 0, val_per_class = 30"),
    (labelled_graph((9,)), {"fractions": (0.9, 0.2, 0.1)}, "fractions: got (0.9, 0.2, 0.1)"),
    (labelled_graph((9,)), {"fractions": (0.9, 0.1)}, "fractions: got (0.9, 0.1)"),
    (labelled_graph((9,)), {"fractions": (0.9, 0.01, 0.01)}, "fractions: 0.01 of 9 labelled nodes"),
]


@pytest.mark.parametrize(("graph", "options", "message"), REFUSED_SPLITS)
def test_impossible_splits_are_refused(graph: Graph, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        transforms.random_split(graph, **options)


@given(graphs(max_nodes=12))
def test_largest_component_agrees_with_networkx(graph: Graph) -> None:
    undirected = nx.Graph()
    undirected.add_nodes_from(range(graph.num_nodes))
    undirected.add_edges_from(pairs_of(graph))
    components = [sorted(nodes) for nodes in nx.connected_components(undirected)]
    kept = max(components, key=lambda nodes: (len(nodes), -nodes[0]))
    result = transforms.largest_component(graph.replace(labels=np.arange(graph.num_nodes)))
    np.testing.assert_array_equal(present(result.labels), kept)
    renamed = [(kept[u], kept[v]) for u, v in pairs_of(result)]
    assert renamed == [(u, v) for u, v in pairs_of(graph) if u in kept]


def test_subgraph_reorders_nodes_and_keeps_all_attributes() -> None:
    masks = np.eye(4, dtype=bool)
    graph = Graph.from_edges(
        [0, 1, 2, 3, 1],
        [1, 2, 3, 0, 1],
        nodes=np.arange(8).reshape(4, 2),
        labels=[0, 1, 2, 3],
        edges=np.arange(5)[:, None],
        edge_weight=np.arange(5),
        edge_type=np.arange(5),
        train_mask=masks[0],
        val_mask=masks[1],
        test_mask=masks[2],
    )
    result = transforms.subgraph(graph, np.array([2, 1]))
    assert pairs_of(result) == [(1, 0), (1, 1)]
    np.testing.assert_array_equal(present(result.nodes), [[4, 5], [2, 3]])
    np.testing.assert_array_equal(present(result.labels), [2, 1])
    for name in ("edges", "edge_weight", "edge_type"):
        np.testing.assert_array_equal(np.ravel(getattr(result, name)), [1, 4])
    assert result.train_mask is None
    np.testing.assert_array_equal(present(result.val_mask), [False, True])


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 0], "node_ids: some ids are repeated"),
        ([3], "node_ids: values run from 3 to 3; expected ids from 0 to 1"),
        ([-1], "node_ids: values run from -1 to -1"),
        ([], "node_ids: got float64 [0]; expected at least one integer id"),
        ([True, False], "node_ids: got bool [2]; expected at least one integer id"),
    ],
)
def test_subgraph_refuses_ids_it_cannot_use(ids: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        transforms.subgraph(Graph.from_edges([0], [1]), np.array(ids))


def test_a_split_can_be_drawn_among_some_nodes() -> None:
    labels = np.arange(30) % 3
    edges = {"senders": np.arange(19), "receivers": np.arange(1, 20), "num_nodes": 30}
    graph = Graph.from_edges(**edges, labels=labels)
    among = transforms.in_largest_component(graph)
    assert np.flatnonzero(among).tolist() == list(range(20))
    by_share: dict[str, Any] = {"fractions": (0.25, 0.25, 0.5)}
    for options in ({}, by_share):
        split = transforms.random_split(graph, 2, 2, among=among, **options)
        masks = np.array([split.train_mask, split.val_mask, split.test_mask])
        np.testing.assert_array_equal(masks.sum(axis=0), among)
    with pytest.raises(ValueError, match=r"among: got int64 \[3\]; expected bool \[30\]"):
        transforms.random_split(graph, 2, 2, among=np.arange(3))


@pytest.mark.parametrize("kind", ["dense", "sparse", "none"])
def test_label_columns_are_the_classes_of_training_nodes(kind: str) -> None:
    labels = np.array([2, 0, 1, 2, -1, 0])
    nodes: Any = np.arange(12, dtype=np.float32).reshape(6, 2)
    nodes = {"dense": nodes, "sparse": sp.csr_array(nodes), "none": None}[kind]
    split = np.array([0, 0, 1, 2, 3, 2])
    masks = {name: split == i for i, name in enumerate(("train_mask", "val_mask", "test_mask"))}
    graph = Graph.from_edges([0], [1], nodes=nodes, labels=labels, num_nodes=6, **masks)
    found = transforms.with_label_columns(graph)
    assert sp.issparse(found.nodes) == (kind == "sparse")
    rows = found.nodes.toarray() if sp.issparse(found.nodes) else found.nodes
    expected = np.zeros((6, 3))
    expected[0, 2] = expected[1, 0] = 1
    np.testing.assert_array_equal(rows[:, -3:], expected)
    if graph.nodes is not None:
        before = graph.nodes.toarray() if kind == "sparse" else graph.nodes
        np.testing.assert_array_equal(rows[:, :-3], before)
    np.testing.assert_array_equal(found.node_data["label_columns"], graph.train_mask)
    assert transforms.subgraph(found, np.array([2, 3])).train_mask is None


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"labels": None}, "has no labels"),
        ({"labels": np.eye(6)}, "has labels of several classes at once"),
        ({"train_mask": None}, "has no training nodes"),
    ],
)
def test_labels_that_make_no_columns_are_refused(changes: dict[str, Any], match: str) -> None:
    graph = Graph.from_edges(
        [0], [1], labels=np.arange(6) % 3, train_mask=np.arange(6) < 4, name="few"
    )
    assert transforms.with_label_columns(graph).num_features == 3
    with pytest.raises(ValueError, match=f"the graph 'few' {match}"):
        transforms.with_label_columns(graph.replace(**changes))


@pytest.mark.parametrize(
    "change",
    [
        lambda graph: graph.replace(nodes=graph.nodes[:, :2]),
        lambda graph: graph.replace(nodes=graph.nodes[:, ::-1]),
        lambda graph: graph.replace(nodes=2 * graph.nodes),
        lambda graph: graph.replace(nodes=None),
        lambda graph: graph.replace(labels=None),
        lambda graph: graph.replace(labels=np.roll(graph.labels, 1)),
        lambda graph: graph.replace(train_mask=graph.train_mask & (np.arange(6) > 1)),
        lambda graph: graph.with_nodes(label_columns=np.ones(6, bool)),
        lambda graph: transforms.subgraph(graph, np.flatnonzero(graph.labels < 2)),
        transforms.degree_features,
    ],
)
def test_label_columns_stay_those_of_the_training_nodes(change: Any) -> None:
    graph = Graph.from_edges([0], [1], labels=np.arange(6) % 3, train_mask=np.arange(6) < 4)
    found = transforms.with_label_columns(graph)
    with pytest.raises(ValueError, match="are no longer the labels of the training nodes"):
        change(found)
    with pytest.raises(ValueError, match="has label columns already"):
        transforms.with_label_columns(found)
