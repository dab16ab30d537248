"""MATLAB files: the published counts of the real ones, and files that are missing or broken."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from jaxgraph.datasets import load_matlab
from tests.datasets.structure import (
    check_published,
    present,
)

PUBLISHED: dict[str, dict[str, Any]] = {
    "blogcatalog": {
        "nodes": 10_312,
        "edges": 333_983,
        "self_loops": 0,
        "components": (1, 10_312),
        "max_degree": 3992,
        "labels": 39,
        "assignments": 14_476,
        "labels_of_a_node": (1, 11),
        "nodes_of_a_label": (8, 1623),
        "masks": [6187, 2063, 2062],
    },
    "ppi": {
        "nodes": 3890,
        "edges": 37_845,
        "self_loops": 894,
        "components": (35, 3852),
        "max_degree": 594,
        "labels": 50,
        "assignments": 6640,
        "labels_of_a_node": (1, 10),
        "nodes_of_a_label": (30, 198),
        "masks": [2334, 778, 778],
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name: str, data_dir: Path) -> None:
    graph = load_matlab(name, data_dir)
    published = PUBLISHED[name]
    check_published(graph, published)
    labels = present(graph.labels)
    assert graph.is_multilabel
    assert graph.num_classes == published["labels"]
    assert labels.sum() == published["assignments"]
    of_a_node, of_a_label = labels.sum(axis=1), labels.sum(axis=0)
    assert (of_a_node.min(), of_a_node.max()) == published["labels_of_a_node"]
    assert (of_a_label.min(), of_a_label.max()) == published["nodes_of_a_label"]
    assert graph.nodes is None


def write(folder: Path, *, compressed: bool = False, **matrices: Any) -> Path:
    scipy.io.savemat(folder / "blogcatalog.mat", matrices, do_compression=compressed)
    return folder


NETWORK = sp.csc_matrix(np.ones((10, 10)) - np.eye(10))
GROUP = sp.csc_matrix(np.eye(10, 4))


@pytest.mark.parametrize("compressed", [False, True])
def test_other_variables_and_stored_zeros_are_left_out(tmp_path: Path, compressed: bool) -> None:
    network = NETWORK.copy()
    network.data[:4] = 0
    others: dict[str, Any] = {"note": "text", "cell": np.array([1, "a"], object), "x": np.eye(2)}
    write(tmp_path, compressed=compressed, **others, network=network, group=GROUP, empty=[])
    graph = load_matlab("blogcatalog", tmp_path)
    assert graph.num_edges == 90 - 4
    rows, columns = np.nonzero(network.toarray())
    np.testing.assert_array_equal(np.stack([graph.senders, graph.receivers]), [rows, columns])
    np.testing.assert_array_equal(present(graph.labels), GROUP.toarray())
