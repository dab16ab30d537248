"""Lists of edges in every supported format, and in some others."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from jaxgraph.datasets import (
    AmbiguousFileError,
    BrokenFileError,
    MissingFileError,
    read_edge_list,
)
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


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_npy_of_either_orientation(tmp_path: Path, dtype: Any) -> None:
    pairs = np.array([SENDERS, RECEIVERS], dtype)
    np.save(tmp_path / "columns.npy", pairs.T)
    check(read_edge_list(tmp_path / "columns.npy"))
    pairs = np.array([[0, 1, 4, 4], [1, 2, 0, 0]], dtype)
    np.save(tmp_path / "rows.npy", pairs)
    graph = read_edge_list(tmp_path / "rows.npy")
    np.testing.assert_array_equal([graph.senders, graph.receivers], pairs)


@given(graph=graphs(edge_data=True))
def test_any_graph_survives_an_npz(tmp_path_factory: pytest.TempPathFactory, graph: Graph) -> None:
    held = {key: value for key, value in vars(graph).items() if value is not None}
    fields = {key: value for key, value in held.items() if not isinstance(value, Mapping)}
    path = tmp_path_factory.mktemp("npz") / "graph.npz"
    np.savez(path, **fields)
    read = read_edge_list(path)
    assert repr(read) == repr(graph)
    for key, value in fields.items():
        np.testing.assert_array_equal(getattr(read, key), value)


def test_options_are_applied(tmp_path: Path) -> None:
    np.save(tmp_path / "graph.npy", np.array([[0, 1], [1, 0], [2, 1]]))
    graph = read_edge_list(tmp_path / "graph.npy", num_nodes=9, undirected=True, name="mine")
    assert (graph.name, graph.num_nodes, graph.num_edges) == ("mine", 9, 4)


def test_an_npy_that_can_be_read_in_two_ways_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([[0, 1], [2, 3]]))
    with pytest.raises(AmbiguousFileError, match=r"shape \[2, 2\], so that rows may be edges, or"):
        read_edge_list(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", np.array([[10**12, 5], [5, 5], [5, 10**12]]))
    with pytest.raises(AmbiguousFileError, match=r"largest id is 1000000000000.*relabel=True"):
        read_edge_list(tmp_path / "a.npy")
    graph = read_edge_list(tmp_path / "a.npy", relabel=True)
    assert present(graph.node_names).tolist() == [5, 10**12]


def test_three_edges_in_two_rows_may_be_two_with_weights(tmp_path: Path) -> None:
    pairs = np.array([SENDERS, RECEIVERS])
    np.save(tmp_path / "a.npy", pairs)
    message = r"a\.npy: has shape \[2, 3\], so that rows may be two edges with their weights, or"
    with pytest.raises(AmbiguousFileError, match=message) as refused:
        read_edge_list(tmp_path / "a.npy")
    assert "np.savez(path, senders=..., receivers=...)" in str(refused.value)
    np.savez(tmp_path / "a.npz", senders=SENDERS, receivers=RECEIVERS, edge_weight=WEIGHTS)
    check(read_edge_list(tmp_path / "a.npz"), weighted=True)
    np.save(tmp_path / "a.npy", pairs.T)
    check(read_edge_list(tmp_path / "a.npy"))


def test_arrays_that_are_no_edges_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((3, 3), int))
    with pytest.raises(BrokenFileError, match=r"shape \[3, 3\]; expected \[num_edges, 2\]"):
        read_edge_list(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", np.zeros((3, 2)))
    with pytest.raises(BrokenFileError, match="holds float64; expected integers"):
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
    path = tmp_path / "a.dat"
    path.write_text("0,1\n1,2\n")
    with pytest.raises(ValueError, match=r"a\.dat: the suffix is none of .csv, .*format='text'"):
        read_edge_list(path)
    assert read_edge_list(path, format="Text").num_edges == 2
    with pytest.raises(ValueError, match="format: got 'gml'; expected one of text, MatrixMarket"):
        read_edge_list(path, format="gml")
    with pytest.raises(ValueError, match="column 'w': 0 columns have this name"):
        read_edge_list(path, format="text", weights="w")
