"""Files whose content does not fit together: each fault is named with its file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from jaxgraph.datasets import (
    BrokenFileError,
    load_gnn_benchmark,
    load_matlab,
    load_planetoid,
    read_ogb_folder,
)
from tests.datasets import test_gnn_benchmark, test_matlab, test_ogb, test_planetoid
from tests.datasets.test_gnn_benchmark import FEATURES, boxed, pickled_layout
from tests.datasets.test_matlab import GROUP, NETWORK
from tests.datasets.test_ogb import EDGES


def with_neighbour(neighbour: Any) -> dict[str, Any]:
    return {"graph": {node: [(node + 1) % 506] for node in range(506)} | {7: [neighbour]}}


def planetoid(folder: Path, **changed: Any) -> Any:
    return load_planetoid("pubmed", test_planetoid.write_small(folder, **changed))


def gnn_benchmark(folder: Path, **changed: Any) -> Any:
    layout = {key: v for key, v in (pickled_layout() | changed).items() if v is not None}
    np.savez(folder / "amazon_photo.npz", **layout)
    return load_gnn_benchmark("amazon-photo", folder)


def matlab(folder: Path, **matrices: Any) -> Any:
    return load_matlab("blogcatalog", test_matlab.write(folder, **matrices))


def ogb_text(folder: Path, **changed: Any) -> Any:
    return read_ogb_folder(test_ogb.write_text_form(folder, **changed))


def ogb_binary(folder: Path, **changed: Any) -> Any:
    return read_ogb_folder(test_ogb.write_binary_form(folder, **changed))


FAULTS: dict[Callable[..., Any], list[tuple[dict[str, Any], str]]] = {
    planetoid: [
        ({"ty": np.eye(3, 2, dtype=np.int32)}, r"ind.pubmed.ty: has 3 rows; expected 2"),
        ({"tx": sp.csr_matrix((2, 9))}, r"ind.pubmed.tx: has 9 columns and allx 3"),
        ({"allx": np.zeros((504, 3))}, r"ind.pubmed.allx: holds a ndarray; expected a CSR matrix"),
        ({"graph": [[0]]}, r"ind.pubmed.graph: .* holds a list; expected"),
        ({"graph": {0: [1], 1: [0]}}, r"test.index: ids run from 504 to 505; expected"),
        (
            {"graph": dict.fromkeys(range(506), "ab")},
            r"ind.pubmed.graph: .* neighbours are no list",
        ),
        (with_neighbour(True), r"ind.pubmed.graph: cannot be .* a node that is no integer"),
        (with_neighbour(-1), r"ind.pubmed.graph: .* neighbours run from -1 to 505; expected"),
        (with_neighbour(2**63), r"ind.pubmed.graph: cannot be read as"),
        ({"graph": {node + 1: [] for node in range(506)}}, "506 nodes are not numbered from 0"),
        ({"ty": np.array([[0, 1], [0, 0]])}, "test_mask: 1 of its nodes have no label"),
        ({"ty": np.array([[0, 1], [1, 1]])}, "ind.pubmed.ty: .* a row has more than a single 1"),
        ({"ty": np.array([1, 0])}, r"ind.pubmed.ty: .* shape \[2\] of int64"),
        ({"y": np.eye(2)[[1, 1, 1, 1]]}, "ind.pubmed.y: its rows are not the first of al"),
        ({"x": sp.csr_matrix((4, 3))}, "ind.pubmed.x: its rows are not the first of al"),
    ],
    gnn_benchmark: [
        ({"adj_matrix": None}, "has neither a CSR matrix adj_matrix nor arrays adj_data"),
        ({"node_attr": boxed([1])}, "holds a list; expected an array"),
        ({"node_label": None}, "has no array node_label or labels of .*; its keys are adj_matrix"),
        (
            {"node_label": test_gnn_benchmark.LABELS[:9]},
            r"adjacency matrix is \(120, 120\); expected \(9, 9\)",
        ),
        ({"node_attr": boxed(FEATURES[:9])}, r"nodes: got shape \[9, 2\]; expected \[120, any\]"),
    ],
    matlab: [
        ({"network": NETWORK}, "has no sparse matrix 'group'"),
        ({"network": NETWORK.toarray(), "group": GROUP}, "has no sparse matrix 'network'"),
        ({"network": NETWORK, "group": GROUP[:4]}, r"'network' is \(10, 10\); expected \(4, 4\)"),
        ({"network": NETWORK, "group": GROUP * 2}, "4 values other than 0, 1 and NaN"),
    ],
    ogb_text: [
        ({"edges": [[0, 1, 2]]}, r"edge.csv.gz: its edges are int64 \[1, 3\]"),
        ({"num_edges": [9]}, r"edge.csv.gz: .* expected integers \[9, 2\]"),
        ({"num_nodes": [3, 3]}, r"raw: declares 2 graphs; expected one"),
        ({"num_nodes": [10**12]}, r"raw: has nodes of 6 rows; expected 1000000000000"),
        ({"split": {"train": [6]}}, r"train.csv.gz: ids run from 6 to 6; expected ids of the 6"),
        ({"labels": test_ogb.LABELS + 0.5}, r"node-label.csv.gz: has labels that are fractions"),
        ({"features": test_ogb.FEATURES[:4]}, r"raw: has nodes of 4 rows; expected 6"),
    ],
    ogb_binary: [
        ({"edge_index": None}, r"data.npz: has no array edge_index of numbers; it has"),
        ({"edge_index": EDGES}, r"data.npz: .* \[4, 2\]; expected integers \[2, 4\]"),
    ],
}
FILE = {gnn_benchmark: "amazon_photo.npz: .*", matlab: "blogcatalog.mat: .*"}


@pytest.mark.parametrize(
    ("load", "changed", "message"), [(load, *row) for load, rows in FAULTS.items() for row in rows]
)
def test_content_that_does_not_fit_is_named(
    tmp_path: Path, load: Callable[..., Any], changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(BrokenFileError, match=FILE.get(load, "") + message):
        load(tmp_path, **changed)
