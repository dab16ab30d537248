"""Graphs of triples: published counts, what a line may hold, and what is refused."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from jaxgraph.datasets import BrokenFileError, load_aifb, read_ntriples, read_openke

TEXT = """
# A comment.
<http://a> <http://knows> <http://b> .
_:x <http://knows> <http://a>. # Another.
<http://b>	<http://name>	"Bo \\"B\\" . <b>"@en .
<http://b> <http://born> "1990"^^<http://int> .
"""


def test_every_kind_of_term_is_read(tmp_path: Path) -> None:
    path = tmp_path / "few.nt"
    path.write_text(TEXT)
    graph = read_ntriples(path, inverses=False)
    names, edges = (
        graph.node_sets["entity"].node_names,
        graph.edge_sets["entity", "related", "entity"],
    )
    assert names is not None
    assert list(names) == [
        '"1990"^^<http://int>',
        '"Bo \\"B\\" . <b>"@en',
        "<http://a>",
        "<http://b>",
        "_:x",
    ]
    np.testing.assert_array_equal(edges.senders, [2, 4, 3, 3])
    np.testing.assert_array_equal(edges.receivers, [3, 2, 1, 0])
    np.testing.assert_array_equal(edges.edge_type, [1, 1, 2, 0])
    packed = tmp_path / "few.nt.gz"
    packed.write_bytes(gzip.compress(TEXT.encode()))
    without = read_ntriples(packed, literals=False)
    (edges,) = without.edge_sets.values()
    assert without.num_nodes == 3
    np.testing.assert_array_equal(edges.senders, [0, 2, 1, 0])
    np.testing.assert_array_equal(edges.edge_type, [0, 0, 1, 1])


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("<http://a> <http://b> .\n", "line 1"),
        ("<a> <b> <c> .\n<a> <b> 'c' .\n", "line 2"),
        ("# nothing\n", "holds no triples"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "broken.nt"
    path.write_text(text)
    with pytest.raises(BrokenFileError, match=match):
        read_ntriples(path)


def test_aifb_has_its_published_counts(data_dir: Path) -> None:
    graph = load_aifb(data_dir)
    nodes, (edges,) = graph.node_sets["entity"], graph.edge_sets.values()
    assert (graph.num_nodes, edges.num_edges, edges.num_edge_types) == (8285, 2 * 29043, 90)
    assert nodes.train_mask is not None and nodes.test_mask is not None
    assert (nodes.train_mask.sum(), nodes.test_mask.sum()) == (140, 36)
    assert nodes.labels is not None
    assert sorted(np.bincount(nodes.labels[nodes.labels >= 0])) == [15, 28, 60, 73]


def test_fb15k_237_has_its_published_counts(data_dir: Path) -> None:
    counts = {"train": 272115, "valid": 17535, "test": 20466}
    for part, count in counts.items():
        graph = read_openke(data_dir / "fb15k-237", part)
        (edges,) = graph.edge_sets.values()
        assert (graph.num_nodes, edges.num_edges) == (14541, 2 * count)
        assert edges.num_edge_types <= 2 * 237


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("train2id.txt", "2\n0 1 0\n", r"holds \[1, 3\] numbers; expected 2 lines of 3"),
        ("train2id.txt", "1\n0 7 0\n", "edge set.*receivers"),
        ("entity2id.txt", "2\na\t0\nb\t5\n", "the numbers 0 to 1"),
    ],
)
def test_a_broken_openke_file_is_named(tmp_path: Path, name: str, text: str, match: str) -> None:
    files = {"train2id.txt": "1\n0 1 0\n", "entity2id.txt": "2\na\t0\nb\t1\n"}
    files |= {"relation2id.txt": "1\nr\t0\n", name: text}
    for each, content in files.items():
        (tmp_path / each).write_text(content)
    with pytest.raises(ValueError, match=match):
        read_openke(tmp_path)
