"""Pickles: objects of data files are read, all others are refused before they run."""

import collections
import pickle
import re
import struct
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxgraph.datasets.files import BrokenFileError
from jaxgraph.datasets.npz import load_npz
from jaxgraph.datasets.restricted_pickle import load_pickle


class Touch:
    """Pickles as a call that creates a file: without the file, nothing ran."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def pickled(tmp_path: Path, value: Any, protocol: int = 4) -> Path:
    path = tmp_path / "value.pickle"
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", [3, 4])
def test_arrays_matrices_and_dictionaries_are_read(tmp_path: Path, protocol: int) -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    np.testing.assert_array_equal(load_pickle(pickled(tmp_path, array, protocol)), array)
    matrix = sp.random_array((5, 4), density=0.5, format="csr", rng=np.random.default_rng(0))
    read = load_pickle(pickled(tmp_path, sp.csr_matrix(matrix), protocol))
    assert isinstance(read, sp.csr_array)
    np.testing.assert_array_equal(read.toarray(), matrix.toarray())
    lists = collections.defaultdict(list, {0: [1, 2], 1: [0]})
    assert load_pickle(pickled(tmp_path, lists, protocol)) == lists


def test_a_real_file_of_another_collection_is_read(data_dir: Path) -> None:
    members = load_npz(data_dir / "karate" / "karate_club.npz")
    assert list(members) == ["adj_matrix", "node_label"]
    assert (members["adj_matrix"].shape, members["adj_matrix"].nnz) == ((34, 34), 156)
    assert np.bincount(members["node_label"]).tolist() == [12, 5, 11, 6]


@given(
    value=hnp.arrays(np.int64, hnp.array_shapes())
    | hnp.arrays(np.float32, hnp.array_shapes())
    | hnp.arrays(object, hnp.array_shapes(), elements=st.integers() | st.text())
)
def test_any_array_survives_an_npz(
    tmp_path_factory: pytest.TempPathFactory, value: np.ndarray
) -> None:
    path = tmp_path_factory.mktemp("npz") / "arrays.npz"
    np.savez(path, value=value)
    np.testing.assert_array_equal(load_npz(path)["value"], value)


def test_an_npz_holds_arrays_and_objects(tmp_path: Path) -> None:
    path = tmp_path / "arrays.npz"
    matrix = sp.csr_matrix(np.eye(3, dtype=np.float32))
    wrapped = np.empty((), object)
    wrapped[()] = matrix
    names = np.array(["a", "b"], object)
    np.savez_compressed(path, plain=np.arange(3), matrix=wrapped, names=names)
    members = load_npz(path)
    np.testing.assert_array_equal(members["plain"], [0, 1, 2])
    np.testing.assert_array_equal(members["matrix"].toarray(), np.eye(3))
    assert members["names"].tolist() == ["a", "b"]


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_call_is_refused_and_does_not_run(tmp_path: Path, protocol: int) -> None:
    victim = tmp_path / "victim"
    path = pickled(tmp_path, [Touch(victim)], protocol)
    with pytest.raises(BrokenFileError, match=r"value.pickle: the pickle asks for .*; only numpy"):
        load_pickle(path)
    assert not victim.exists()


def test_a_call_inside_an_npz_is_refused_and_does_not_run(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "arrays.npz"
    np.savez(path, labels=np.array([Touch(victim)], object))
    with pytest.raises(BrokenFileError, match=r"arrays.npz: the pickle asks for pathlib"):
        load_npz(path)["labels"]
    assert not victim.exists()


@pytest.mark.parametrize(
    "value",
    [subprocess.Popen, np.fromfile, sp.coo_matrix((2, 2)), collections.Counter(), slice(1)],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_types_without_business_are_named(tmp_path: Path, value: Any) -> None:
    name = getattr(value, "__name__", type(value).__name__)
    with pytest.raises(BrokenFileError, match=rf"asks for [\w.]+\.{name}, which"):
        load_pickle(pickled(tmp_path, value))


@pytest.mark.parametrize(
    ("indices", "indptr"),
    [
        ([0, 9], [0, 1, 2]),
        ([0, -1], [0, 1, 2]),
        ([0, 1], [0, 1, 3]),
        ([0, 1], [0, 1, 1, 2]),
        ([0, 1], [0, 2, 1]),
    ],
)
def test_a_matrix_that_points_outside_itself_is_refused(
    tmp_path: Path, indices: list[int], indptr: list[int]
) -> None:
    matrix = sp.csr_matrix(np.eye(2))
    matrix.indices = np.array(indices, np.int32)
    matrix.indptr = np.array(indptr, np.int32)
    with pytest.raises(BrokenFileError, match=r"cannot be read as a pickle \(ValueError: "):
        load_pickle(pickled(tmp_path, matrix))


def test_a_matrix_of_objects_is_refused(tmp_path: Path) -> None:
    matrix = sp.csr_matrix(np.eye(2))
    matrix.data = np.array([[], {}], object)
    with pytest.raises(BrokenFileError, match="whose data are not numbers"):
        load_pickle(pickled(tmp_path, matrix))


@given(data=st.data())
def test_a_truncated_pickle_is_an_error_that_names_the_file(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = pickle.dumps([sp.csr_matrix(np.eye(3)), np.arange(5), {0: [1]}])
    path = tmp_path_factory.mktemp("truncated") / "short.pickle"
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(BrokenFileError, match=r"short.pickle: cannot be read as a pickle .*again"):
        load_pickle(path)


@given(data=st.data())
def test_a_truncated_npz_is_an_error_that_names_the_file(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("truncated") / "short.npz"
    np.savez(path, plain=np.arange(4), objects=np.array([1, "a"], object))
    content = path.read_bytes()
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(BrokenFileError, match=r"short.npz: cannot be read as an npz archive"):
        load_npz(path)


def test_a_member_that_is_no_array_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "odd.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("value.npy", b"not an array" + struct.pack("<i", 1))
    with pytest.raises(BrokenFileError, match=re.escape(f"{path}: cannot be read as an npz")):
        load_npz(path)["value"]
