"""OGB's folders of heterogeneous graphs, written here with the files and names of ogbn-mag."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxgraph import datasets
from jaxgraph.datasets import BrokenFileError, MissingFileError, load_ogb_typed
from jaxgraph.typed_graph import TypedGraph
from tests.datasets.structure import present
from tests.datasets.test_ogb import write_csv

PAPERS, AUTHORS = 6, 4
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
FEATURES = np.arange(2 * PAPERS).reshape(PAPERS, 2) / 8
LABELS = np.arange(PAPERS) % 3
EDGES = np.array([[0, 1], [3, 5], [3, 0]])


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))


def write_typed(folder: Path, num_papers: int = PAPERS, edges: Any = EDGES) -> Path:
    """Writes papers that cite each other by some edges, and authors who write them by the same."""
    raw, split = folder / "raw", folder / "split" / "time"
    num_authors = max(AUTHORS, int(np.max(edges[:, 0])) + 1)
    write_text(raw / "num-node-dict.csv.gz", f"author,paper\n{num_authors},{num_papers}\n")
    for kind in ("feat", "label"):
        write_text(raw / f"nodetype-has-{kind}.csv.gz", "author,paper\nFalse,True\n")
    write_text(split / "nodetype-has-split.csv.gz", "author,paper\nFalse,True\n")
    features = np.arange(2 * num_papers).reshape(num_papers, 2) / 8
    write_csv(raw / "node-feat" / "paper" / "node-feat.csv.gz", features, form="%.9g")
    write_csv(raw / "node-feat" / "paper" / "node_year.csv.gz", [2010] * num_papers)
    labels = np.arange(num_papers) % 3
    write_csv(raw / "node-label" / "paper" / "node-label.csv.gz", labels)
    write_text(raw / "triplet-type-list.csv.gz", "author,writes,paper\npaper,cites,paper\n")
    for number, ends in enumerate((WRITES, CITES)):
        relation = raw / "relations" / "___".join(ends)
        write_csv(relation / "edge.csv.gz", edges)
        write_csv(relation / "num-edge-list.csv.gz", [len(edges)])
        write_csv(relation / "edge_reltype.csv.gz", [number] * len(edges))
    for part, ids in (("train", [0, 2]), ("valid", [1]), ("test", [5, 3])):
        write_csv(split / "paper" / f"{part}.csv.gz", ids)
    return folder


@pytest.mark.parametrize("inner", ["ogbn_mag", "."])
def test_a_folder_holds_the_sets_and_their_arrays(tmp_path: Path, inner: str) -> None:
    write_typed(tmp_path / inner)
    graph = datasets.load("ogbn-mag", data_dir=tmp_path, inverses=False)
    assert isinstance(graph, TypedGraph)
    assert (graph.name, graph.target, list(graph.edge_sets)) == (
        "ogbn-mag",
        "paper",
        [WRITES, CITES],
    )
    papers, authors = graph.node_sets["paper"], graph.node_sets["author"]
    assert (papers.num_nodes, authors.num_nodes, authors.nodes) == (PAPERS, AUTHORS, None)
    np.testing.assert_allclose(present(papers.nodes), FEATURES)
    np.testing.assert_array_equal(present(papers.labels), LABELS)
    masks = (papers.train_mask, papers.val_mask, papers.test_mask)
    assert [np.flatnonzero(present(mask)).tolist() for mask in masks] == [[0, 2], [1], [3, 5]]
    for edges in graph.edge_sets.values():
        np.testing.assert_array_equal(np.stack([edges.senders, edges.receivers], 1), EDGES)
        assert edges.edge_type is None


def test_each_set_of_edges_has_its_inverse_unless_it_is_left_out(tmp_path: Path) -> None:
    graph = load_ogb_typed("ogbn-mag", write_typed(tmp_path))
    assert list(graph.edge_sets) == [
        *(WRITES, CITES),
        *(("paper", "rev_writes", "author"), ("paper", "rev_cites", "paper")),
    ]
    np.testing.assert_array_equal(
        graph.edge_sets["paper", "rev_writes", "author"].receivers, EDGES[:, 0]
    )


def test_the_name_of_another_data_set_is_that_of_its_folder(tmp_path: Path) -> None:
    write_typed(tmp_path / "ogbn_other")
    assert load_ogb_typed("ogbn-other", tmp_path).name == "ogbn-other"


def test_one_of_several_splits_is_named(tmp_path: Path) -> None:
    write_typed(tmp_path)
    for row, part in enumerate(("train", "valid", "test")):
        write_csv(tmp_path / "split" / "other" / "paper" / f"{part}.csv.gz", [row])
    with pytest.raises(ValueError, match=r"split: .* holds other, time; pass one of these names"):
        load_ogb_typed("ogbn-mag", tmp_path)
    graph = load_ogb_typed("ogbn-mag", tmp_path, split="other")
    assert np.flatnonzero(present(graph.node_sets["paper"].test_mask)).tolist() == [2]


OF_WRITES = "relations/author___writes___paper"


@pytest.mark.parametrize(
    ("path", "text", "match"),
    [
        ("num-node-dict.csv.gz", "author,paper\n4,6\n4,6\n", "num-node-dict.*one graph"),
        ("num-node-dict.csv.gz", "author,paper\n4,x\n", "num-node-dict.*one graph"),
        ("num-node-dict.csv.gz", "author\n4\n", "no set of nodes 'paper'"),
        ("nodetype-has-label.csv.gz", "author,paper\nFalse\n", "nodetype-has-label.*one graph"),
        (
            "node-feat/paper/node-feat.csv.gz",
            "1,2\n" * 5,
            r"ogbn_mag.*paper.*nodes: got shape \[5, 2\]",
        ),
        (
            "node-label/paper/node-label.csv.gz",
            "1\n" * 7,
            r"ogbn_mag.*paper.*labels: got shape \[7\]",
        ),
        ("node-label/paper/node-label.csv.gz", "0.5\n" * 6, "node-label.*fractions"),
        (
            f"{OF_WRITES}/edge.csv.gz",
            "0,1\n3,5\n",
            r"writes.*edge.csv.*\[2, 2\]; expected .*\[3, 2\]",
        ),
        (
            f"{OF_WRITES}/edge.csv.gz",
            "0,1,2\n" * 3,
            r"writes.*edge.csv.*\[3, 3\]; expected .*\[3, 2\]",
        ),
        (f"{OF_WRITES}/edge.csv.gz", "0,1\n3,5\n4,0\n", "ogbn_mag.*writes.*senders.*num_nodes = 4"),
        (f"{OF_WRITES}/num-edge-list.csv.gz", "3\n3\n", "num-edge-list.*2 graphs"),
        ("../split/time/paper/train.csv.gz", "0\n6\n", "train.*ids of the 6 nodes"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, path: str, text: str, match: str) -> None:
    folder = write_typed(tmp_path / "ogbn_mag")
    write_text(folder / "raw" / path, text)
    with pytest.raises(BrokenFileError, match=match):
        load_ogb_typed("ogbn-mag", tmp_path)


@pytest.mark.parametrize(
    "path",
    [
        *("num-node-dict.csv.gz", "nodetype-has-label.csv.gz", "triplet-type-list.csv.gz"),
        *("node-feat/paper/node-feat.csv.gz", "node-label/paper/node-label.csv.gz"),
        *(f"{OF_WRITES}/edge.csv.gz", f"{OF_WRITES}/num-edge-list.csv.gz"),
        "../split/time/paper/valid.csv.gz",
    ],
)
def test_a_missing_file_is_named(tmp_path: Path, path: str) -> None:
    (write_typed(tmp_path) / "raw" / path).unlink()
    with pytest.raises(MissingFileError, match=rf"{path.lstrip('./')}: .*ogb.stanford.edu"):
        load_ogb_typed("ogbn-mag", tmp_path)


def test_a_missing_relation_is_named(tmp_path: Path) -> None:
    folder = write_typed(tmp_path)
    triplets = "author,writes,paper\npaper,has_topic,paper\n"
    write_text(folder / "raw" / "triplet-type-list.csv.gz", triplets)
    with pytest.raises(MissingFileError, match=r"paper___has_topic___paper.*ogb.stanford.edu"):
        load_ogb_typed("ogbn-mag", tmp_path)
