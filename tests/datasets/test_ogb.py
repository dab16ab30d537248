"""OGB's folders, in both forms, written here like the benchmark's own tools."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxgraph.datasets import (
    BrokenFileError,
    MissingFileError,
    limits,
    load_ogb,
    read_ogb_folder,
)
from tests.datasets.structure import is_symmetric, present

NUM_NODES = 6
EDGES = np.array([[0, 1], [1, 2], [2, 1], [5, 0]])
FEATURES = np.linspace(-1, 1, NUM_NODES * 3).reshape(NUM_NODES, 3).astype(np.float32)
LABELS = np.array([0, 2, 1, 0, 2, 1])
SPLIT = {"train": [0, 4], "valid": [2], "test": [5, 1]}
FRACTIONS = np.array([[0.0], [np.nan], [1.0], [2.0], [np.nan], [1.0]])


def write_csv(path: Path, rows: Any, form: str = "%d") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as stream:
        np.savetxt(stream, np.asarray(rows), delimiter=",", fmt=form)


def write_split(folder: Path, name: str = "time", **changed: Any) -> None:
    for part, ids in (SPLIT | changed).items():
        write_csv(folder / "split" / name / f"{part}.csv.gz", ids)


def write_text_form(folder: Path, labels: np.ndarray = LABELS, **changed: Any) -> Path:
    raw = folder / "raw"
    write_csv(raw / "edge.csv.gz", changed.get("edges", EDGES))
    write_csv(raw / "node-feat.csv.gz", changed.get("features", FEATURES), form="%.9g")
    write_csv(raw / "node-label.csv.gz", labels, form="%g")
    write_csv(raw / "num-node-list.csv.gz", changed.get("num_nodes", [NUM_NODES]))
    write_csv(raw / "num-edge-list.csv.gz", changed.get("num_edges", [len(EDGES)]))
    write_split(folder, **changed.get("split", {}))
    return folder


def write_binary_form(folder: Path, labels: np.ndarray = FRACTIONS, **changed: Any) -> Path:
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {
        "edge_index": EDGES.T,
        "node_feat": FEATURES,
        "node_year": np.full((NUM_NODES, 1), 2017),
        "num_nodes_list": np.array([NUM_NODES]),
        "num_edges_list": np.array([len(EDGES)]),
    } | changed
    np.savez(folder / "raw" / "data.npz", **{k: v for k, v in arrays.items() if v is not None})
    np.savez(folder / "raw" / "node-label.npz", node_label=labels)
    write_split(folder)
    return folder


@pytest.mark.parametrize("write", [write_text_form, write_binary_form])
def test_both_forms_give_the_graph_as_it_is(tmp_path: Path, write: Any) -> None:
    graph = read_ogb_folder(write(tmp_path / "ogbn_small", labels=LABELS[:, None]))
    assert graph.name == "ogbn_small"
    assert graph.num_nodes == NUM_NODES
    np.testing.assert_array_equal(np.stack([graph.senders, graph.receivers], axis=1), EDGES)
    np.testing.assert_allclose(present(graph.nodes), FEATURES, rtol=1e-6)
    np.testing.assert_array_equal(present(graph.labels), LABELS)
    for part, name in (("train", "train_mask"), ("valid", "val_mask"), ("test", "test_mask")):
        assert np.flatnonzero(getattr(graph, name)).tolist() == sorted(SPLIT[part])


@pytest.mark.parametrize(
    ("name", "folder_name", "doubled"),
    [
        ("ogbn-arxiv", "ogbn_arxiv", False),
        ("ogbn-products", "ogbn_products", True),
    ],
)
def test_names_give_the_folder_and_the_direction(
    tmp_path: Path, name: str, folder_name: str, doubled: bool
) -> None:
    write_text_form(tmp_path / folder_name)
    graph = load_ogb(name, tmp_path)
    assert graph.name == name
    assert is_symmetric(graph) == doubled
    for undirected in (False, True):
        graph = load_ogb(name, tmp_path / folder_name, undirected=undirected)
        assert is_symmetric(graph) == undirected
        assert graph.num_edges == (6 if undirected else 4)


def test_edge_features_without_node_features_and_several_labels(tmp_path: Path) -> None:
    folder = write_text_form(tmp_path / "ogbn_proteins", labels=np.eye(NUM_NODES, 4))
    (folder / "raw" / "node-feat.csv.gz").unlink()
    write_csv(folder / "raw" / "edge-feat.csv.gz", [[1, 2], [3, 4], [3, 4], [7, 8]])
    graph = load_ogb("ogbn-proteins", tmp_path)
    assert graph.nodes is None
    assert graph.is_multilabel
    pairs = zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)
    features = dict(zip(pairs, present(graph.edges).tolist(), strict=True))
    assert features == {
        **{(0, 1): [1, 2], (1, 0): [1, 2], (1, 2): [3, 4]},
        **{(2, 1): [3, 4], (5, 0): [7, 8], (0, 5): [7, 8]},
    }


def test_nan_is_no_label(tmp_path: Path) -> None:
    write_binary_form(tmp_path)
    for part, ids in (("train", [0]), ("valid", [2]), ("test", [5])):
        write_csv(tmp_path / "split" / "time" / f"{part}.csv.gz", ids)
    labels = present(read_ogb_folder(tmp_path).labels)
    assert labels.tolist() == [0, -1, 1, 2, -1, 1]


def test_one_of_several_splits_is_named(tmp_path: Path) -> None:
    write_text_form(tmp_path)
    write_split(tmp_path, "other")
    write_csv(tmp_path / "split" / "other" / "train.csv.gz", [3])
    with pytest.raises(ValueError, match=r"split: .* holds other, time; pass one of these names"):
        read_ogb_folder(tmp_path)
    graph = read_ogb_folder(tmp_path, split="other")
    assert np.flatnonzero(present(graph.train_mask)).tolist() == [3]


def test_ids_that_are_fractions_and_bombs_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_text_form(tmp_path) / "raw" / "edge.csv.gz"
    write_csv(path, EDGES + 0.5, form="%g")
    with pytest.raises(BrokenFileError, match=r"edge.csv.gz: cannot be read as"):
        read_ogb_folder(tmp_path)
    monkeypatch.setattr(limits, "_ALWAYS_EXPANDED", 1 << 10)
    path.write_bytes(gzip.compress(b"0,1\n" * (1 << 17)))
    with pytest.raises(BrokenFileError, match=r"edge.csv.gz: .* bytes expand to \d+ or more"):
        read_ogb_folder(tmp_path)


def test_a_folder_without_split_is_named(tmp_path: Path) -> None:
    write_text_form(tmp_path)
    (tmp_path / "split").rename(tmp_path / "splits")
    with pytest.raises(MissingFileError, match="split: holds no folder with a split"):
        read_ogb_folder(tmp_path)
