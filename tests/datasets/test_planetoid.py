"""Planetoid: the published counts of the real files, and files that are missing or broken."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from jaxgraph.datasets import BrokenFileError, MissingFileError, load_planetoid
from tests.datasets.structure import (
    check_published,
    mask_sizes,
    present,
    share_of_equal_labels,
)

PUBLISHED = {
    "cora": {
        "nodes": 2708,
        "edges": 5278,
        "features": 1433,
        "non_zeros": 49216,
        "classes": [351, 217, 418, 818, 426, 298, 180],
        "masks": [140, 500, 1000],
        "components": (78, 2485),
        "max_degree": 168,
        "equal_labels": 0.810,
    },
    "citeseer": {
        "nodes": 3327,
        "edges": 4552,
        "features": 3703,
        "non_zeros": 105165,
        "classes": [249, 590, 668, 701, 596, 508],
        "masks": [120, 500, 1000],
        "components": (438, 2120),
        "max_degree": 99,
        "equal_labels": None,  # 15 nodes have no label
    },
    "pubmed": {
        "nodes": 19717,
        "edges": 44324,
        "features": 0,
        "classes": [4103, 7739, 7875],
        "masks": [60, 500, 1000],
        "components": (1, 19717),
        "max_degree": 171,
        "equal_labels": 0.802,
    },
}
CITESEER_GAPS = [
    *(2407, 2489, 2553, 2682, 2781, 2953, 3042, 3063),
    *(3212, 3214, 3250, 3292, 3305, 3306, 3309),
]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name: str, data_dir: Path) -> None:
    graph = load_planetoid(name, data_dir, features=name != "pubmed")
    published: dict[str, Any] = PUBLISHED[name]
    check_published(graph, published)
    assert graph.num_features == published["features"]
    if graph.nodes is not None:
        assert isinstance(graph.nodes, sp.csr_array)
        assert graph.nodes.nnz == published["non_zeros"]
        assert np.unique(graph.nodes.data).tolist() == [1]
    if published["equal_labels"] is not None:
        assert share_of_equal_labels(graph) == pytest.approx(published["equal_labels"], abs=5e-4)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_first_nodes_train_twenty_of_each_class(name: str, data_dir: Path) -> None:
    graph = load_planetoid(name, data_dir, features=False)
    train, val = (np.flatnonzero(present(m)) for m in (graph.train_mask, graph.val_mask))
    assert np.concatenate([train, val]).tolist() == list(range(train.size + 500))
    assert np.bincount(present(graph.labels)[train]).tolist() == [20] * graph.num_classes


def test_nodes_that_citeseer_leaves_out_have_no_data(data_dir: Path) -> None:
    graph = load_planetoid("citeseer", data_dir)
    labels, nodes = present(graph.labels), present(graph.nodes)
    assert np.flatnonzero(labels < 0).tolist() == CITESEER_GAPS
    assert not nodes[CITESEER_GAPS].any()
    for mask in (graph.train_mask, graph.val_mask, graph.test_mask):
        assert not present(mask)[CITESEER_GAPS].any()
    assert graph.in_degrees()[CITESEER_GAPS].min() >= 1


def test_test_rows_go_to_the_nodes_that_the_index_names(data_dir: Path) -> None:
    # Homophily of the test nodes collapses to chance if the rows stay in the order of the file.
    graph = load_planetoid("cora", data_dir)
    labels, test = present(graph.labels), present(graph.test_mask)
    at_test = test[graph.senders]
    equal = labels[graph.senders] == labels[graph.receivers]
    assert equal[at_test].mean() > 0.75
    features = present(graph.nodes)
    overlap = np.einsum("ef,ef->e", features[graph.senders], features[graph.receivers])
    chance = features[graph.senders] @ features[test].mean(axis=0)
    assert overlap[at_test].mean() > 2 * chance.mean()


def write_small(folder: Path, protocol: int = 5, **changed: Any) -> Path:
    """Writes a data set of 506 nodes: 4 for training, 500 for validation, 2 to test, in reverse."""
    num_others, num_features = 504, 3
    ally = np.eye(2, dtype=np.int32)[np.arange(num_others) % 2]
    allx = sp.csr_matrix(np.arange(num_others * num_features, dtype=np.float32).reshape(-1, 3))
    parts: dict[str, Any] = {
        "allx": allx,
        "ally": ally,
        "x": allx[:4],
        "y": ally[:4],
        "tx": sp.csr_matrix(np.array([[7, 0, 0], [0, 8, 0]], np.float32)),
        "ty": np.array([[0, 1], [1, 0]], np.int32),
        "graph": {node: [(node + 1) % 506, (node - 1) % 506, node] for node in range(506)},
    } | changed
    root = folder / "planetoid"
    root.mkdir(exist_ok=True)
    for part, value in parts.items():
        if value is not None:
            (root / f"ind.pubmed.{part}").write_bytes(pickle.dumps(value, protocol))
    (root / "ind.pubmed.test.index").write_text("505\n504\n")
    return folder


def test_rows_of_features_and_labels_go_to_their_nodes(tmp_path: Path) -> None:
    graph = load_planetoid("pubmed", write_small(tmp_path))
    nodes = present(graph.nodes)
    np.testing.assert_array_equal(nodes[:504].ravel(), np.arange(504 * 3))
    np.testing.assert_array_equal(nodes[504:], [[0, 8, 0], [7, 0, 0]])
    assert present(graph.labels)[504:].tolist() == [0, 1]
    assert graph.num_edges == 2 * 506
    assert mask_sizes(graph) == [4, 500, 2]
    assert load_planetoid("pubmed", tmp_path, features=False).nodes is None


def test_pubmed_without_its_features_is_refused_unless_they_are_not_wanted(data_dir: Path) -> None:
    message = r"ind.pubmed.allx: no such file .*features=False reads the graph"
    with pytest.raises(MissingFileError, match=message):
        load_planetoid("pubmed", data_dir)
    assert load_planetoid("pubmed", data_dir, features=False).num_nodes == 19_717


def test_a_row_without_class_is_no_label(tmp_path: Path) -> None:
    ally = np.eye(2, dtype=np.int32)[np.arange(510) % 2]
    ally[508] = 0
    allx = sp.csr_matrix(np.ones((510, 3), np.float32))
    graph = {node: [(node + 1) % 512] for node in range(512)}
    write_small(tmp_path, ally=ally, allx=allx, x=allx[:4], graph=graph)
    (tmp_path / "planetoid" / "ind.pubmed.test.index").write_text("511\n510\n")
    labels = present(load_planetoid("pubmed", tmp_path).labels)
    assert np.flatnonzero(labels < 0).tolist() == [508]


@pytest.mark.parametrize("text", ["", "504\n504\n", "504\n5_05\n", "504\n-505"])
def test_a_broken_index_is_named(tmp_path: Path, text: str) -> None:
    write_small(tmp_path)
    (tmp_path / "planetoid" / "ind.pubmed.test.index").write_text(text)
    with pytest.raises(BrokenFileError, match=r"ind.pubmed.test.index: (cannot be read|ids run)"):
        load_planetoid("pubmed", tmp_path)
