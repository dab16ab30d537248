"""Lists of edges in every format that is read, and in some that are not."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph.datasets import BrokenFileError, MissingFileError, read_edge_list
from jaxgraph.graph import Graph
from tests.datasets.structure import present
from tests.strategies import graphs

SENDERS, RECEIVERS, WEIGHTS = [0, 1, 4], [1, 2, 0], [0.5, 2.0, 1e-3]


def check(graph: Graph, weighted: bool = False) -> None:
    np.testing.assert_array_equal(graph.senders, SENDERS)
    np.testing.assert_array_equal(graph.receivers, RECEIVERS)
    assert graph.num_nodes == 5
    if weighted:
        np.testing.assert_allclose(present(graph.edge_weight), WEIGHTS)
    else:
        assert graph.edge_weight is None


@pytest.mark.parametrize("header", ["", "from{0}to\n", "# a comment, with commas\n\n% more\n"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", " "])
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".txt", ".edges", ".csv.gz"])
def test_text_with_any_delimiter_and_header(
    tmp_path: Path, suffix: str, delimiter: str, header: str
) -> None:
    lines = [f"{u}{delimiter}{v}\n" for u, v in zip(SENDERS, RECEIVERS, strict=True)]
    text = header.format(delimiter) + "".join(lines)
    path = tmp_path / f"graph{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith(".gz") else text.encode())
    graph = read_edge_list(path)
    check(graph)
    assert graph.name == "graph"


@pytest.mark.parametrize("header", ["", "sender,receiver,weight\n"])
def test_a_third_column_holds_weights(tmp_path: Path, header: str) -> None:
    rows = zip(SENDERS, RECEIVERS, WEIGHTS, strict=True)
    path = tmp_path / "graph.csv"
    path.write_text(header + "".join(f"{u}, {v}, {w}\n" for u, v, w in rows))
    check(read_edge_list(path), weighted=True)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_npy_of_either_orientation(tmp_path: Path, dtype: Any) -> None:
    pairs = np.array([SENDERS, RECEIVERS], dtype)
    np.save(tmp_path / "rows.npy", pairs)
    np.save(tmp_path / "columns.npy", pairs.T)
    check(read_edge_list(tmp_path / "rows.npy"))
    check(read_edge_list(tmp_path / "columns.npy"))


@given(graph=graphs(edge_data=True))
def test_any_graph_survives_an_npz(tmp_path_factory: pytest.TempPathFactory, graph: Graph) -> None:
    fields = {key: value for key, value in vars(graph).items() if value is not None}
    path = tmp_path_factory.mktemp("npz") / "graph.npz"
    np.savez(path, **fields)
    read = read_edge_list(path)
    assert repr(read) == repr(graph)
    for key, value in fields.items():
        np.testing.assert_array_equal(getattr(read, key), value)


@given(
    pairs=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=30),
    delimiter=st.sampled_from([",", " "]),
)
def test_any_pairs_survive_text(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[int, int]], delimiter: str
) -> None:
    path = tmp_path_factory.mktemp("text") / "graph.txt"
    path.write_text("\n".join(f"{u}{delimiter}{v}" for u, v in pairs))
    graph = read_edge_list(path, num_nodes=100)
    assert list(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)) == pairs
    assert graph.num_nodes == 100


def test_options_are_applied(tmp_path: Path) -> None:
    np.save(tmp_path / "graph.npy", np.array([[0, 1], [1, 0], [2, 1]]))
    graph = read_edge_list(tmp_path / "graph.npy", num_nodes=9, undirected=True, name="mine")
    assert (graph.name, graph.num_nodes, graph.num_edges) == ("mine", 9, 4)


@pytest.mark.parametrize(
    ("file_name", "content", "message"),
    [
        ("a.csv", "", "no line of numbers"),
        ("a.csv", "from,to\n", "no line of numbers"),
        ("a.csv", "0\n1\n", "1 columns"),
        ("a.csv", "0,1,1,1\n", "4 columns"),
        ("a.csv", "0,1\n2,x\n", "cannot be read as lines of sender"),
        ("a.csv", "0,1\n2\n", "cannot be read as lines of sender"),
        ("a.csv", "0,1\n2.5,1\n", "cannot be read as lines of sender"),
        ("a.csv", "0,1\n-2,1\n", "senders: 1 of 2 ids are negative"),
        ("a.csv", "0,1,nan\n", "edge_weight: 1 of 1 values are NaN"),
        ("a.csv.gz", "0,1\n", "BadGzipFile"),
        ("a.npy", "0,1\n", "cannot be read as an npy file"),
        ("a.npz", "0,1\n", "cannot be read as an npz archive"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, file_name: str, content: str, message: str) -> None:
    path = tmp_path / file_name
    path.write_text(content)
    with pytest.raises(BrokenFileError, match=rf"{file_name}: .*{message}"):
        read_edge_list(path)


def test_arrays_that_are_no_edges_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((3, 3), int))
    with pytest.raises(BrokenFileError, match=r"shape \[3, 3\]; expected \[num_edges, 2\]"):
        read_edge_list(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", np.zeros((3, 2)))
    with pytest.raises(BrokenFileError, match="senders: got dtype float64; expected integers"):
        read_edge_list(tmp_path / "a.npy")
    np.savez(tmp_path / "a.npz", senders=[0])
    with pytest.raises(BrokenFileError, match="has no array receivers; expected arrays named send"):
        read_edge_list(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", senders=[0], receivers=[0], feature=[1])
    with pytest.raises(BrokenFileError, match="has an array feature; expected arrays named"):
        read_edge_list(tmp_path / "a.npz")


def test_a_file_that_is_missing_or_of_another_kind_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"a.csv: no such file"):
        read_edge_list(tmp_path / "a.csv")
    (tmp_path / "a.parquet").touch()
    with pytest.raises(ValueError, match=r"a.parquet: the suffix is none of .csv, .tsv"):
        read_edge_list(tmp_path / "a.parquet")
