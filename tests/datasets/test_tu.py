"""Graphs to classify: published counts, features, archives, folders and faults of files."""

import zipfile
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from jaxgraph import datasets, transforms
from jaxgraph.datasets import BrokenFileError, MissingFileError, load_tu
from jaxgraph.typed_graph import TypedGraph
from tests.datasets.structure import (
    is_symmetric,
    num_repeated_edges,
    num_self_loops,
    present,
)

PUBLISHED: dict[str, tuple[list[int], int, int, int, int]] = {
    # Sizes of the classes, nodes, undirected edges, features, types of edges.
    "mutag": ([63, 125], 3371, 3721, 7, 4),
    "ptc-mr": ([192, 152], 4915, 5054, 18, 4),
    "proteins": ([663, 450], 43471, 81044, 3 + 1, 0),
    "enzymes": ([100] * 6, 19580, 37282, 3 + 18, 0),
    "nci1": ([2053, 2057], 122747, 132753, 37, 0),
    # The paper's code has as many degrees.
    "imdb-binary": ([500, 500], 19773, 96531, 65, 0),
    "imdb-multi": ([500, 500, 500], 19502, 98903, 59, 0),
}
SMALL: dict[str, str] = {
    "A": "1, 2\n2, 1\n4, 5\n5, 4\n2, 3\n3, 2\n4, 5\n",
    "graph_indicator": "1\n1\n1\n3\n3\n2\n",
    "graph_labels": "7\n-1\n7\n",
    "node_labels": "5\n2\n5\n9\n2\n2\n",
    "node_attributes": " 0.5, 1\n 1.5, 1\n 2.5,  1\n 3.5, 1\n 4.5, 1\n 5.5, 1\n",
    "edge_labels": "3\n3\n0\n0\n1\n1\n0\n",
    "edge_attributes": "1\n2\n3\n4\n5\n6\n3\n",
}
"""Three graphs of 3, 1 and 2 nodes; an edge is there twice."""


def write(folder: Path, **changed: str | None) -> Path:
    """Writes the small set into the folder Small, without the texts that are None."""
    for kind, text in {**SMALL, **changed}.items():
        (folder / "Small").mkdir(parents=True, exist_ok=True)
        if text is not None:
            (folder / "Small" / f"Small_{kind}.txt").write_text(text)
    return folder


def pack(folder: Path, archive: Path) -> None:
    """Packs the small set as the published archives are, with double slashes."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(folder.glob("Small/*.txt")):
            file.writestr(f"Small//{path.name}", path.read_bytes())
        file.writestr("Small//README.txt", "Read me.")


def edges_of(graph: TypedGraph) -> Any:
    return graph.edge_sets["node", "edge", "node"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_counts(name: str, data_dir: Path) -> None:
    classes, num_nodes, num_pairs, features, types = PUBLISHED[name]
    graph = datasets.load(name, data_dir)
    assert isinstance(graph, TypedGraph)
    assert (graph.name, graph.target, graph.readout) == (name, "graph", ("member",))
    nodes, graphs, edges = graph.node_sets["node"], graph.node_sets["graph"], edges_of(graph)
    assert np.bincount(present(graphs.labels)).tolist() == classes
    assert (nodes.num_nodes, nodes.num_features) == (num_nodes, features)
    assert (edges.num_edges, edges.num_edge_types) == (2 * num_pairs, types)
    members = graph.edge_sets["node", "member", "graph"]
    np.testing.assert_array_equal(members.senders, np.arange(num_nodes))
    ids = members.receivers
    np.testing.assert_array_equal(ids[edges.senders], ids[edges.receivers])
    union = nodes.replace(senders=edges.senders, receivers=edges.receivers)
    assert is_symmetric(union)
    assert (num_self_loops(union), num_repeated_edges(union)) == (0, 0)
    labels = present(nodes.nodes)[:, : features - {"proteins": 1, "enzymes": 18}.get(name, 0)]
    np.testing.assert_array_equal(labels.sum(axis=1), 1)


def test_labels_attributes_and_edges_of_a_folder(tmp_path: Path) -> None:
    graph = load_tu("Small", write(tmp_path))
    nodes, graphs, edges = graph.node_sets["node"], graph.node_sets["graph"], edges_of(graph)
    one_hot = [[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0], [1, 0, 0]]
    attributes = np.stack([np.arange(6) + 0.5, np.ones(6)], axis=1)
    np.testing.assert_array_equal(present(nodes.nodes), np.c_[one_hot, attributes])
    np.testing.assert_array_equal(present(graphs.labels), [1, 0, 1])
    np.testing.assert_array_equal(edges.senders, [0, 1, 1, 2, 3, 4])
    np.testing.assert_array_equal(edges.receivers, [1, 0, 2, 1, 4, 3])
    np.testing.assert_array_equal(edges.edge_type, [2, 2, 1, 1, 0, 0])
    np.testing.assert_array_equal(edges.edges[:, 0], [1, 2, 5, 6, 3, 4])
    members = graph.edge_sets["node", "member", "graph"]
    np.testing.assert_array_equal(members.receivers, [0, 0, 0, 2, 2, 1])
    plain = edges_of(load_tu("Small", tmp_path, edge_data=False))
    assert plain.edges is None and plain.edge_type is None
    np.testing.assert_array_equal(plain.senders, edges.senders)


def test_without_labels_and_attributes_the_features_are_degrees(tmp_path: Path) -> None:
    folder = write(tmp_path, node_labels=None, node_attributes=None)
    nodes = load_tu("Small", folder).node_sets["node"].nodes
    # Degrees 1, 2, 1, 1, 1 and 0.
    np.testing.assert_array_equal(present(nodes), np.eye(3)[[1, 2, 1, 1, 1, 0]])
    ones = load_tu("Small", folder, degree_features=False).node_sets["node"].nodes
    np.testing.assert_array_equal(present(ones), np.ones((6, 1)))
    labels = "1, 5\n1, 5\n2, 5\n1, 5\n1, 5\n1, 6\n"
    several = load_tu("Small", write(tmp_path, node_labels=labels)).node_sets["node"].nodes
    assert present(several)[[2, 5], :4].tolist() == [[0, 1, 1, 0], [1, 0, 0, 1]]


def test_an_archive_holds_the_graph_of_its_folder(tmp_path: Path) -> None:
    expected = load_tu("Small", write(tmp_path / "unpacked"))
    (tmp_path / "tu").mkdir()
    pack(tmp_path / "unpacked", tmp_path / "tu" / "Small.zip")
    for place, name in (
        (tmp_path, "Small"),
        (tmp_path / "tu", "Small"),
        (tmp_path / "unpacked" / "Small", "Small"),
    ):
        found = load_tu(name, place)
        np.testing.assert_array_equal(
            present(found.node_sets["node"].nodes), present(expected.node_sets["node"].nodes)
        )
        for field in ("senders", "receivers", "edges", "edge_type"):
            np.testing.assert_array_equal(
                getattr(edges_of(found), field), getattr(edges_of(expected), field)
            )


def test_a_name_is_that_of_the_files_in_any_case(data_dir: Path) -> None:
    for name in ("MUTAG", "mutag"):
        assert load_tu(name, data_dir / "tu").node_sets["graph"].num_nodes == 188
    assert datasets.load("PTC_MR", data_dir).num_nodes == 4915 + 344


def test_folds_and_splits_are_of_the_graphs(data_dir: Path) -> None:
    graph = datasets.load("mutag", data_dir)
    assert graph.node_sets["graph"].train_mask is None
    sizes = [
        int(present(each.node_sets["graph"].test_mask).sum())
        for each in transforms.folds(graph, 10)
    ]
    assert sizes == [19] * 8 + [18] * 2


FAULTS: list[tuple[dict[str, str], str]] = [
    ({"A": "1, 2\n2, 7\n"}, r"A.txt: line 2 has the nodes \[2, 7\]; expected nodes from 1 to 6"),
    ({"A": "0, 1\n"}, r"A.txt: line 1 has the nodes \[0, 1\]"),
    ({"A": "1, 2\n3, 4\n"}, "A.txt: line 2 goes from graph 1 to graph 3; expected edges inside"),
    ({"A": "1, 2, 3\n"}, "A.txt: has 1 lines of 3 numbers; expected 1 lines of 2$"),
    ({"A": "1, 2\n3\n"}, "A.txt: cannot be read as .* a number is missing from row 0 on"),
    ({"A": "1 2\n"}, "A.txt: cannot be read as comma-separated numbers"),
    ({"A": ""}, "A.txt: cannot be read as .* it holds no number"),
    (
        {"graph_indicator": "1\n1\n1\n3\n3\n3\n"},
        "indicator.txt: has nodes of 2 graphs, from 1 to 3; expected some of each from 1 to 3, the",
    ),
    ({"graph_indicator": "0\n1\n1\n3\n3\n2\n"}, "nodes of 4 graphs, from 0 to 3; expected some of"),
    ({"graph_labels": "1\n2\n"}, "from 1 to 3; expected some of each from 1 to 2, the lines of Sm"),
    ({"graph_labels": "1.5\n2\n"}, r"graph_labels.txt: cannot .* `1.5` [^\n]*; expected whole"),
    (
        {"node_labels": "1\n2\n"},
        "node_labels.txt: has 2 lines of 1 numbers; expected 6 lines of some, one for each of",
    ),
    ({"node_attributes": "1\n"}, "node_attributes.txt: has 1 lines of 1 numbers; expected 6 lines"),
    (
        {"node_attributes": "nan\n" * 6},
        "Small: cannot be read as graphs .* nodes: 6 of 24 values are",
    ),
    ({"edge_labels": "1\n"}, "edge_labels.txt: has 1 lines .* 7 lines of 1, one for each of Sm"),
    ({"edge_labels": "1, 1\n" * 7}, "edge_labels.txt: has 7 lines of 2 numbers; expected 7 lines"),
    ({"edge_attributes": "1\n" * 8}, "edge_attributes.txt: has 8 lines of 1 numbers; expected 7"),
    ({"edge_labels": "0\n" * 6 + "1\n"}, "edge_type: the edges 3 -> 4 have different values"),
]


@pytest.mark.parametrize(("changed", "message"), FAULTS)
def test_a_fault_is_named_with_its_file(
    tmp_path: Path, changed: dict[str, str], message: str
) -> None:
    others = {} if "node_attributes" in changed else {"node_attributes": None}
    with pytest.raises(BrokenFileError, match=message):
        load_tu("Small", write(tmp_path, **(others | changed)))


def test_a_missing_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"Small.zip: no such file \(tried .*graphlearning"):
        load_tu("Small", tmp_path)
    with pytest.raises(ValueError, match=r"expected load_tu\(name, folder\)"):
        load_tu(cast(Any, tmp_path), "mutag")
    write(tmp_path, graph_labels=None)
    pack(tmp_path, tmp_path / "Small.zip")
    message = "Small_graph_labels.txt: no such file. Put it there from .*graphlearning"
    for place in (tmp_path, tmp_path / "Small"):
        with pytest.raises(MissingFileError, match=message):
            load_tu("Small", place)


def test_an_archive_with_two_such_texts_is_refused(tmp_path: Path) -> None:
    pack(write(tmp_path), tmp_path / "Small.zip")
    with zipfile.ZipFile(tmp_path / "Small.zip", "a") as file:
        file.writestr("old/Small_A.txt", "1, 2\n")
    with pytest.raises(BrokenFileError, match=r"it holds Small_A.txt twice"):
        load_tu("Small", tmp_path)
