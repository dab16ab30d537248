"""gnn-benchmark: the published counts of the real files, both key layouts, broken files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from jaxgraph.datasets import BrokenFileError, load_gnn_benchmark
from jaxgraph.transforms import largest_component
from tests.datasets.structure import (
    check_published,
    mask_sizes,
    present,
)

PUBLISHED: dict[str, dict[str, Any]] = {
    "amazon-photo": {
        "nodes": 7650,
        "edges": 119_081,
        "isolated": 115,
        "max_degree": 1434,
        "masks": [160, 240, 7487 - 400],
        "components": (136, 7487),
        "largest_component_edges": 119_043,
        "features": 745,
        "non_zeros": 1_979_909,
        "classes": [369, 1686, 703, 915, 882, 823, 1941, 331],
    },
    "coauthor-cs": {
        "nodes": 18_333,
        "edges": 81_894,
        "isolated": 0,
        "max_degree": 136,
        "masks": [300, 450, 18_333 - 750],
        "components": (1, 18_333),
        "largest_component_edges": 81_894,
        "features": 6805,
        "non_zeros": 1_092_079,
        "classes": [
            *(708, 462, 2050, 429, 1394, 2193, 371, 924),
            *(775, 118, 1444, 2033, 420, 4136, 876),
        ],
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name: str, data_dir: Path) -> None:
    graph = load_gnn_benchmark(name, data_dir)
    published = PUBLISHED[name]
    check_published(graph, published)
    assert np.count_nonzero(graph.in_degrees() == 0) == published["isolated"]
    assert isinstance(graph.nodes, sp.csr_array) == name.startswith("coauthor")
    nodes = present(graph.nodes)
    assert nodes.shape[1] == published["features"]
    # Words that occur, as PyTorch Geometric reads them; the co-author files hold counts up to 105.
    assert np.count_nonzero(nodes) == published["non_zeros"]
    assert (nodes.min(), nodes.max()) == (0, 1)
    assert nodes.sum(dtype=np.float64) == published["non_zeros"]
    structure = largest_component(graph.replace(nodes=None))
    assert structure.num_nodes == published["components"][1]
    assert structure.num_edges == 2 * published["largest_component_edges"]


def test_split_has_twenty_and_thirty_of_each_class_and_follows_the_seed(data_dir: Path) -> None:
    graph = load_gnn_benchmark("amazon-photo", data_dir)
    labels, train, val = (present(a) for a in (graph.labels, graph.train_mask, graph.val_mask))
    assert np.bincount(labels[train]).tolist() == [20] * 8
    assert np.bincount(labels[val]).tolist() == [30] * 8
    # The authors draw from the largest component; the others are in no mask.
    isolated = graph.in_degrees() == 0
    assert not any(present(m)[isolated].any() for m in (train, val, graph.test_mask))
    other = load_gnn_benchmark("amazon-photo", data_dir, split_seed=1)
    assert (train != present(other.train_mask)).any()
    again = load_gnn_benchmark("amazon-photo", data_dir, split_seed=0)
    np.testing.assert_array_equal(train, present(again.train_mask))


NUM_NODES = 120
ADJACENCY = sp.csr_matrix(
    (np.ones(121), (np.r_[np.arange(120), 0], np.r_[(np.arange(120) + 1) % 120, 0])), (120, 120)
)
FEATURES = sp.csr_matrix(np.arange(NUM_NODES * 2, dtype=np.float32).reshape(-1, 2))
LABELS = np.arange(NUM_NODES) % 2


def boxed(value: Any) -> np.ndarray:
    box = np.empty((), object)
    box[()] = value
    return box


def pickled_layout() -> dict[str, Any]:
    return {
        "adj_matrix": boxed(ADJACENCY),
        "node_attr": boxed(FEATURES),
        "node_label": LABELS,
        "metadata": boxed({"class_names": np.array(["even", "odd"], object)}),
    }


def plain_layout() -> dict[str, Any]:
    parts: dict[str, Any] = {"labels": LABELS, "class_names": np.array(["even", "odd"], object)}
    for prefix, matrix in (("adj", ADJACENCY), ("attr", FEATURES)):
        for part in ("data", "indices", "indptr", "shape"):
            parts[f"{prefix}_{part}"] = getattr(matrix, part)
    return parts


@pytest.mark.parametrize("layout", [pickled_layout, plain_layout])
@pytest.mark.parametrize(
    ("name", "file_name"),
    [
        ("amazon-photo", "amazon/amazon_photo.npz"),
        ("amazon-photo", "amazon_electronics_photo.npz"),
        ("coauthor-cs", "ms_academic_cs.npz"),
        ("coauthor-physics", "coauthor/coauthor_phy.npz"),
        ("amazon-computers", "amazon_co_buy_computer.npz"),
    ],
)
def test_both_layouts_are_read(tmp_path: Path, name: str, file_name: str, layout: Any) -> None:
    path = tmp_path / file_name
    path.parent.mkdir(exist_ok=True)
    np.savez(path, **layout())
    graph = load_gnn_benchmark(name, tmp_path)
    assert (graph.name, graph.num_nodes, graph.num_edges) == (name, 120, 240)
    np.testing.assert_array_equal(present(graph.nodes), FEATURES.toarray() > 0)
    np.testing.assert_array_equal(present(graph.labels), LABELS)
    assert mask_sizes(graph) == [40, 60, 20]


@pytest.mark.parametrize("layout", [pickled_layout, plain_layout])
def test_a_stored_zero_is_no_edge(tmp_path: Path, layout: Any) -> None:
    parts = layout()
    stored = sp.csr_matrix(
        (np.r_[ADJACENCY.data, 0.0], (np.r_[ADJACENCY.tocoo().row, 5], np.r_[ADJACENCY.indices, 9]))
    )
    assert stored.nnz == ADJACENCY.nnz + 1
    changed: dict[str, Any] = {"adj_matrix": boxed(stored)}
    changed |= {f"adj_{part}": getattr(stored, part) for part in ("data", "indices", "indptr")}
    np.savez(tmp_path / "amazon_photo.npz", **{key: changed.get(key, parts[key]) for key in parts})
    assert load_gnn_benchmark("amazon-photo", tmp_path).num_edges == 240


def test_features_out_of_proportion_to_the_file_are_refused(tmp_path: Path) -> None:
    wide = sp.csr_matrix((np.ones(1, np.float32), ([0], [2**40 - 1])), (NUM_NODES, 2**40))
    parts: dict[str, Any] = pickled_layout() | {"node_attr": boxed(wide)}
    np.savez(tmp_path / "amazon_photo.npz", **parts)
    with pytest.raises(BrokenFileError, match=r"120 x 1099511627776 with 1 entries; expected at"):
        load_gnn_benchmark("amazon-photo", tmp_path)


def test_counts_become_one_and_repeated_entries_are_counts(tmp_path: Path) -> None:
    # Row 0 stores its word twice, row 1 a zero.
    entries = np.array([1, 2, 0, 7], np.float32), np.array([1, 1, 0, 0]), np.array([0, 2, 3, 4])
    features = sp.vstack([sp.csr_matrix(entries, (3, 2)), sp.csr_matrix((117, 2), dtype="f4")])
    assert features.nnz == 4
    layout: dict[str, Any] = pickled_layout() | {"node_attr": boxed(features)}
    np.savez(tmp_path / "amazon_photo.npz", **layout)
    nodes = present(load_gnn_benchmark("amazon-photo", tmp_path).nodes)
    np.testing.assert_array_equal(nodes[:4], [[0, 1], [0, 0], [1, 0], [0, 0]])
