"""MatrixMarket and METIS: SciPy's writer, the examples of the manual, and damaged files."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from hypothesis import given

from jaxgraph.datasets import AmbiguousFileError, BrokenFileError, read_edge_list, to_scipy
from jaxgraph.graph import Graph
from jaxgraph.transforms import remove_self_loops, to_undirected
from tests.datasets.structure import present
from tests.strategies import graphs

BANNER = "%%MatrixMarket matrix coordinate"


def read(folder: Path, content: str | bytes, name: str, **options: Any) -> Graph:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_edge_list(path, **options)


def pairs_of(graph: Graph) -> list[tuple[int, int]]:
    return sorted(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))


@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric"])
@pytest.mark.parametrize("name", ["a.mtx", "a.txt", "a.csv", "a.mtx.gz"])
def test_a_matrix_of_any_symmetry_and_name_is_the_one_written(
    tmp_path: Path, name: str, symmetry: str
) -> None:
    lower = np.array([[0, 0, 0], [2.5, 0, 0], [0, -1, 0]])
    sign = {"general": 0, "symmetric": 1, "skew-symmetric": -1}[symmetry]
    dense = lower + sign * lower.T
    scipy.io.mmwrite(tmp_path / "written.mtx", sp.coo_array(dense), symmetry=symmetry)
    content = (tmp_path / "written.mtx").read_bytes()
    graph = read(tmp_path, gzip.compress(content) if name.endswith("gz") else content, name)
    np.testing.assert_array_equal(to_scipy(graph).toarray(), dense)
    assert graph.node_names is None
    assert read(tmp_path, content, "b.txt", weights=False).edge_weight is None


def test_a_pattern_has_no_weights_and_zeros_are_no_edges(tmp_path: Path) -> None:
    graph = read(tmp_path, f"{BANNER} pattern symmetric\n% c\n4 4 2\n2 1\n3 3\n", "a.mtx")
    assert pairs_of(graph) == [(0, 1), (1, 0), (2, 2)]
    assert (graph.num_nodes, graph.edge_weight) == (4, None)
    graph = read(tmp_path, f"{BANNER} real general\n4 4 2\n2 1 0\n3 3 .5\n", "a.mtx")
    assert (pairs_of(graph), present(graph.edge_weight).tolist()) == ([(2, 2)], [0.5])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("3 3 2\n2 1\n", "no banner of MatrixMarket.*format='text'"),
        (f"{BANNER} real general\n3 4 1\n2 1 .5\n", "3 rows and 4 columns; expected a square"),
        (f"{BANNER} complex general\n3 3 1\n2 1 1 2\n", "complex values"),
        (f"{BANNER} real general\n3 3 2000000000\n2 1 .5\n", "2,000,000,000 entries and has 1"),
        ("%%MatrixMarket matrix array real general\n2 2\n1\n0\n0\n1\n", "holds a dense matrix"),
        (f"{BANNER} real general\n3 3 2\n2 1 .5\n9 1 1\n", "line 4: is an entry outside"),
        (f"{BANNER} real general\n3 3 2\n2 1 .5\n", "declares 2 entries and has 1"),
        (
            f"{BANNER} real symmetric\n% c\n3 3 2\n2 1 .5\n3 1 1~",
            "line 5: '1~' is no number",
        ),
    ],
)
def test_a_damaged_matrix_is_refused(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(BrokenFileError, match=rf"a\.mtx: .*{message}"):
        read(tmp_path, content, "a.mtx")


@pytest.mark.parametrize(("symmetry", "sign"), [("symmetric", 1), ("skew-symmetric", -1)])
def test_a_symmetric_matrix_of_both_triangles_is_refused(
    tmp_path: Path, symmetry: str, sign: int
) -> None:
    body = f"% c\n\n3 3 4\n2 1 7\n3 2 5\n\n1 2 {sign * 7}\n2 3 {sign * 5}\n"
    message = rf"a\.mtx: line 5 holds the entry \[2, 1\], and line 8 its mirror.* of a {symmetry} m"
    with pytest.raises(BrokenFileError, match=message) as refused:
        read(tmp_path, f"{BANNER} integer {symmetry}\n{body}", "a.mtx")
    assert "write 'general' for" in str(refused.value)
    dense = [[0, sign * 7, 0], [7, 0, sign * 5], [0, 5, 0]]
    graph = read(tmp_path, f"{BANNER} integer general\n{body}", "a.mtx")
    np.testing.assert_array_equal(to_scipy(graph).toarray(), dense)
    body = "3 3 2\n2 1 7\n3 2 5\n"
    graph = read(tmp_path, f"{BANNER} integer {symmetry}\n{body}", "a.mtx")
    np.testing.assert_array_equal(to_scipy(graph).toarray(), dense)


def test_an_edge_that_a_symmetric_matrix_repeats_is_kept(tmp_path: Path) -> None:
    graph = read(tmp_path, f"{BANNER} pattern symmetric\n3 3 4\n2 1\n2 1\n2 3\n3 3\n", "a.mtx")
    expected = [(0, 1), (0, 1), (1, 0), (1, 0), (1, 2), (2, 1), (2, 2)]
    assert pairs_of(graph) == expected


def test_a_matrix_of_far_more_rows_than_entries_is_asked_about(tmp_path: Path) -> None:
    content = f"{BANNER} real general\n100000000000 100000000000 1\n2 1 .5\n"
    with pytest.raises(AmbiguousFileError, match="declares 100,000,000,000 nodes for 1 edges"):
        read(tmp_path, content, "a.mtx")
    assert read(tmp_path, content, "a.mtx", num_nodes=10**11).num_nodes == 10**11


@given(graph=graphs(max_nodes=9))
def test_any_undirected_graph_survives_metis(
    tmp_path_factory: pytest.TempPathFactory, graph: Graph
) -> None:
    graph = remove_self_loops(to_undirected(graph))
    lines = [f"% a comment\n{graph.num_nodes} {graph.num_edges // 2}"]
    lines += [
        " ".join(str(v + 1) for v in graph.receivers[graph.senders == u].tolist())
        for u in range(graph.num_nodes)
    ]
    found = read(tmp_path_factory.mktemp("metis"), "\n".join(lines) + "\n", "a.graph")
    assert (pairs_of(found), found.num_nodes) == (pairs_of(graph), graph.num_nodes)


@pytest.mark.parametrize(
    ("content", "weights"),
    [
        ("3 2 1\n2 7 3 8\n1 7\n1 8\n", [7, 8, 7, 8]),
        ("3 2 011 2\n5 5 2 7 3 8\n5 5 1 7\n5 5 1 8\n", [7, 8, 7, 8]),
        ("3 2 100\n9 2 3\n9 1\n9 1\n", None),
    ],
)
def test_flags_of_metis_tell_weights_from_neighbours(
    tmp_path: Path, content: str, weights: list[float] | None
) -> None:
    graph = read(tmp_path, content, "a.metis")
    assert pairs_of(graph) == [(0, 1), (0, 2), (1, 0), (2, 0)]
    found = None if graph.edge_weight is None else graph.edge_weight.tolist()
    assert found == weights
    assert read(tmp_path, content, "a.metis", weights=False).edge_weight is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "line 1: '' is no header of METIS"),
        ("0 1\n1 2\n", "line 1: '0 1' is no header of METIS.*format='text'"),
        ("3 2\n2 3\n1\n1 9\n", "line 4: has neighbour 9; expected whole numbers from 1 to 3"),
        ("3 2 1\n2 3 1\n1\n1\n", "line 2: has 3 numbers, too few"),
        ("3 2\n2 3\n1\n", "declares 3 nodes and has 2 lines"),
        ("2 1\n2\n1\n1\n", "line 4: is the line of one node more than 2"),
        ("3 5\n2 3\n1\n1\n", "declares 5 edges, so 10 neighbours, and has 4"),
    ],
)
def test_a_damaged_metis_graph_is_refused(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(BrokenFileError, match=rf"a\.graph: .*{message}"):
        read(tmp_path, content, "a.graph")
