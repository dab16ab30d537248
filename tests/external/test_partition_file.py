"""Parts that are cut from files equal those of the graph in memory, file by file."""

from __future__ import annotations

import dataclasses
import gzip
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from jaxgraph import datasets, transforms
from jaxgraph.graph import Graph
from jaxgraph.graph_facts import facts_of
from jaxgraph.parallel import write_parts
from jaxgraph.partition import Partition, partition, report
from tests.datasets.test_ogb import LABELS, write_binary_form, write_csv, write_text_form
from tests.external.folders import SMALL, contents, cut, in_small_chunks

NODES, EDGES = 150, 1100
SLOW = pytest.mark.slow


@pytest.fixture(autouse=True)
def many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_chunks(monkeypatch)


def pairs(seed: int = 0, nodes: int = NODES, edges: int = EDGES) -> np.ndarray:
    """A power law with self-loops, repeated edges and nodes without edges."""
    rng = np.random.default_rng(seed)
    senders = np.minimum((rng.pareto(0.8, edges) * 3).astype(np.int64), nodes - 1)
    receivers = rng.integers(0, nodes, edges)
    found = np.stack([senders, receivers], axis=1)
    found[100:130] = found[10:40]
    found[::97, 0] = found[::97, 1]
    return found


def write_edges(path: Path, table: dict[str, Any]) -> Path:
    """Writes columns in the format of the suffix."""
    frame = pl.DataFrame(table)
    if path.suffix == ".npy":
        np.save(path, frame.to_numpy())
    elif path.suffix == ".parquet":
        frame.write_parquet(path, row_group_size=200)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(frame.write_csv().encode()))
    elif path.suffix == ".txt":
        lines = frame.write_csv(include_header=False, separator="\t").splitlines()
        path.write_text("# a comment\n" + "\n".join([*lines[:9], "", "% another", *lines[9:]]))
    else:
        frame.write_csv(path)
    return path


def assert_same(
    source: Path, graph: Graph, parts: Partition | None = None, mode: str = "sar", **options: Any
) -> None:
    """The parts of a file and of its graph, by hash unless they are given."""
    parts = partition(graph, 3, "hash") if parts is None else parts
    tmp_path = Path(mkdtemp(dir=source.parent))
    facts = facts_of(graph, normalized=options.get("normalize", False))
    expected = write_parts(graph, parts, tmp_path / "memory", mode, facts=facts)
    options |= {"num_parts": parts.num_parts, "mode": mode}
    found = cut(source, tmp_path / "files", **options)
    assert contents(found.folder) == contents(expected)
    quality = dataclasses.replace(found.report, method=parts.method)
    assert quality.to_dict() == report(graph, parts).to_dict()
    assert sorted(path.name[:5] for path in (tmp_path / "files").iterdir()) == ["data-", "manif"]


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".txt", ".parquet", ".npy"])
@pytest.mark.parametrize("mode", ["sar", pytest.param("domain", marks=SLOW)])
def test_every_format_gives_the_parts_of_the_graph(suffix: str, mode: str, tmp_path: Path):
    ends = pairs()
    path = write_edges(tmp_path / f"graph{suffix}", {"source": ends[:, 0], "target": ends[:, 1]})
    graph = datasets.read_edge_list(path)
    assert_same(path, graph, mode=mode)


@pytest.mark.parametrize("shape", ["columns", "rows", "fortran"])
def test_npy_in_every_order(shape: str, tmp_path: Path):
    ends = pairs(1).astype(np.int32)
    stored = {"columns": ends, "rows": ends.T.copy(), "fortran": np.asfortranarray(ends)}[shape]
    np.save(tmp_path / "graph.npy", stored)
    graph = datasets.read_edge_list(tmp_path / "graph.npy")
    assert_same(tmp_path / "graph.npy", graph, partition(graph, 4, "hash"))


@pytest.mark.parametrize("method", ["equal-vertices", "equal-edges", "given", "hash"])
def test_every_method_and_mode_domain(method: str, tmp_path: Path):
    path = write_edges(tmp_path / "graph.csv", {"u": pairs(2)[:, 0], "v": pairs(2)[:, 1]})
    graph = datasets.read_edge_list(path)
    options: dict[str, Any] = {"method": method, "seed": 5, "mode": "domain"}
    if method == "given":
        # The last part has no node.
        assignment = np.random.default_rng(0).integers(0, 3, graph.num_nodes)
        options["assignment"] = tmp_path / "assignment.npy"
        np.save(options["assignment"], assignment)
        parts = Partition.from_assignment(assignment, 4)
    else:
        parts = partition(graph, 4, method, seed=5)
    assert_same(path, graph, parts, **options)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("kind", ["names", "sparse"])
def test_names_and_sparse_ids_keep_their_map(
    suffix: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    in_small_chunks(monkeypatch, dataclasses.replace(SMALL, edges=1000, block=30_000))
    rng = np.random.default_rng(3)
    ids = rng.choice(10**12, NODES, replace=False)
    names = ids if kind == "sparse" else np.array([f"node {i} ü" for i in ids])
    # More lines than names are numbered at once.
    ends = np.concatenate([pairs(seed) for seed in range(9)])
    table = {"source": names[ends[:, 0]], "target": names[ends[:, 1]]}
    path = write_edges(tmp_path / f"graph{suffix}", table)
    relabel = True if kind == "sparse" else None
    graph = datasets.read_edge_list(path, relabel=relabel)
    assert_same(path, graph, relabel=relabel)
    found = cut(path, tmp_path / "again", relabel=relabel).folder.node_names()
    assert found is not None and graph.node_names is not None
    assert np.array_equal(found, graph.node_names)


def test_weights_are_kept_and_dropped(tmp_path: Path):
    ends = pairs(4)
    weights = np.random.default_rng(4).random(EDGES)
    path = write_edges(
        tmp_path / "graph.csv", {"src": ends[:, 0], "dst": ends[:, 1], "weight": weights}
    )
    graph = datasets.read_edge_list(path)
    assert graph.edge_weight is not None
    parts = partition(graph, 2, "hash")
    assert_same(path, graph, parts)
    assert_same(path, graph.replace(edge_weight=None), parts, ignore_edge_data=True)


def test_undirected_adds_reverses_and_removes_repeats(tmp_path: Path):
    path = write_edges(tmp_path / "graph.npy", {"u": pairs(5)[:, 0], "v": pairs(5)[:, 1]})
    graph = transforms.to_undirected(datasets.read_edge_list(path))
    assert_same(path, graph, undirected=True)


def node_arrays(nodes: int, seed: int = 6) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    split = rng.integers(0, 4, nodes)
    return {
        "nodes": rng.random((nodes, 7)),
        "labels": rng.integers(0, 5, nodes),
        "train_mask": split == 0,
        "val_mask": split == 1,
        "test_mask": split == 2,
    }


def save(folder: Path, arrays: dict[str, np.ndarray]) -> Path:
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder


@pytest.mark.parametrize("normalize", [False, True])
def test_features_labels_and_masks_come_from_files(normalize: bool, tmp_path: Path):
    ends, arrays = pairs(6), node_arrays(NODES + 5)
    path = write_edges(tmp_path / "graph.npy", {"u": ends[:, 0], "v": ends[:, 1]})
    graph = Graph.from_edges(ends[:, 0], ends[:, 1], **arrays, name="graph")
    if normalize:
        graph = transforms.normalize_features(graph)
    assert_same(path, graph, node_data=save(tmp_path / "data", arrays), normalize=normalize)


def test_several_labels_and_features_of_degrees(tmp_path: Path):
    ends = pairs(7)
    path = write_edges(tmp_path / "graph.npy", {"u": ends[:, 0], "v": ends[:, 1]})
    labels = np.random.default_rng(7).integers(0, 2, (NODES, 3)).astype(float)
    labels[4, 1] = np.nan
    graph = Graph.from_edges(ends[:, 0], ends[:, 1], labels=labels, name="graph")
    graph = transforms.degree_features(graph)
    folder = save(tmp_path / "data", {"labels": labels})
    assert_same(path, graph, node_data=folder, degree_features=True)


@pytest.mark.parametrize("kind", ["names", "numbers"])
def test_given_ids_order_the_rows_of_node_data(kind: str, tmp_path: Path):
    """`from_pandas(frame, node_names=ids)` of the same, with nodes that no edge has."""
    rng = np.random.default_rng(8)
    ids = rng.choice(10**9, NODES + 4, replace=False)
    ids = ids if kind == "numbers" else np.array([f"n{i}" for i in ids])
    ends, arrays = pairs(8), node_arrays(len(ids))
    table = {"source": ids[ends[:, 0]], "target": ids[ends[:, 1]]}
    path = write_edges(tmp_path / "graph.csv", table)
    graph = datasets.from_pandas(pd.DataFrame(table), node_names=ids, name="graph")
    graph = graph.replace(**arrays)
    assert graph.num_nodes == len(ids)
    folder = save(tmp_path / "data", {**arrays, "ids": ids})
    assert_same(path, graph, node_data=folder)


@pytest.mark.parametrize("write", [write_text_form, write_binary_form])
@pytest.mark.parametrize("undirected", [False, True])
def test_folders_of_the_open_graph_benchmark(write: Any, undirected: bool, tmp_path: Path):
    of_edges = np.arange(8, dtype=np.float32).reshape(4, 2)
    folder = write(tmp_path / "ogbn_small", labels=LABELS, edge_feat=of_edges)
    if write is write_text_form:
        write_csv(folder / "raw" / "edge-feat.csv.gz", of_edges)
    graph = datasets.read_ogb_folder(folder, undirected=False)
    assert graph.edges is not None
    if undirected:
        graph = transforms.to_undirected(graph.replace(edges=None))
    assert_same(folder, graph, undirected=undirected, ignore_edge_data=undirected)
