"""Pickles, archives and headers of an attacker: each is refused, and changes nothing."""

import collections
import pickle
import pickletools
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph.datasets import limits, untrusted
from jaxgraph.datasets.file_rows import npy_rows
from jaxgraph.datasets.files import BrokenFileError
from jaxgraph.datasets.npz import load_npz


def read(path: Path) -> untrusted.Data:
    return untrusted.load_pickles({"value": path})["value"]


def call(module: str, name: str, *args: bytes) -> bytes:
    """A call, by name, with arguments that are themselves instructions."""
    return b"c" + f"{module}\n{name}\n".encode() + b"(" + b"".join(args) + b"tR"


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def raw(content: bytes) -> bytes:
    return b"B" + struct.pack("<I", len(content)) + content


def dtype(
    code: str, state: bytes = b"(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
) -> bytes:
    return call("numpy", "dtype", text(code), b"K\x00", b"K\x01") + state


def array(shape: bytes, of: bytes, content: bytes) -> bytes:
    empty = b"cnumpy\nndarray\n" + b"(K\x00t" + raw(b"b")
    made = call("numpy.core.multiarray", "_reconstruct", empty)
    return made + b"(K\x01" + shape + of + b"\x89" + content + b"tb"


def laughs(levels: int) -> bytes:
    """A list of two references to a list of two references, and so on."""
    return b"(K\x01K\x01lq\x00" + b"".join(
        b"(h" + bytes([i]) + b"h" + bytes([i]) + b"lq" + bytes([i + 1]) for i in range(levels)
    )


def csr(**changed: bytes) -> bytes:
    one = array(b"(K\x01t", dtype("i4"), raw(bytes(4)))
    two = array(b"(K\x02t", dtype("i4"), raw(struct.pack("<ii", 0, 1)))
    state = {"data": one, "indices": one, "indptr": two, "_shape": b"(K\x01K\x01t"} | changed
    items = b"".join(text(key) + value for key, value in state.items())
    return b"\x80\x02cscipy.sparse._csr\ncsr_matrix\n)\x81}(" + items + b"ub."


def point_to(address: int) -> bytes:
    return raw(struct.pack("<Q", address))


FLAGS_OF_NO_OBJECT = b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
HOSTILE = {
    "eval": call("builtins", "eval", text("1")),
    "an old instance": b"(ios\nsystem\n",
    "objects of raw bytes": array(b"(K\x01t", dtype("O8", FLAGS_OF_NO_OBJECT), point_to(0x4141)),
    "objects by buffer": call(
        "numpy._core.numeric", "_frombuffer", point_to(8), dtype("O8"), b"(K\x01t", b"U\x01C"
    ),
    "no bytes, many elements": array(b"(J\xff\xff\xff\x7ft", dtype("S0"), raw(b"")),
    "fewer bytes than elements": array(b"(J\xff\xff\xff\x7ft", dtype("f8"), raw(bytes(8))),
    "attributes of a class": b"cnumpy\nndarray\n(N}U\x04madeK\x01stb",
    "a list in itself": b"]q\x00h\x00a",
    "laughs": laughs(60),
    "a deep list": b"]" * 10_000 + b"a" * 9_999,
    "a memo of 4 GiB": b"]r\xff\xff\xff\xff",
    "bytes of 2**63": b"\x8e" + struct.pack("<Q", 2**63) + b"abc",
    "an unbuilt array": call(
        "numpy.core.multiarray", "_reconstruct", b"cnumpy\nndarray\n(K\x00t" + raw(b"b")
    ),
    "an index below the matrix": csr(
        indices=array(b"(K\x01t", dtype("i4"), raw(struct.pack("<i", -1)))
    ),
    "an index that wraps": csr(
        indices=array(b"(K\x01t", dtype("u8"), raw(struct.pack("<Q", 2**64 - 1)))
    ),
    "a matrix of 2**40 rows": csr(_shape=b"(\x8a\x06" + (2**40).to_bytes(6, "little") + b"K\x01t"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_is_refused(tmp_path: Path, name: str) -> None:
    path, content = tmp_path / "value.pickle", HOSTILE[name]
    path.write_bytes(content if content.endswith(b".") else content + b".")
    with pytest.raises(BrokenFileError, match=r"value.pickle: ") as raised:
        read(path)
    assert len(str(raised.value)) < 1000


def test_the_process_is_ended_by_its_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = untrusted._WORKER.read_text()
    path = tmp_path / "value.pickle"
    path.write_bytes(b"N.")
    for name, harm in {"time": "while True: pass", "crash": "import os; os.abort()"}.items():
        script = tmp_path / f"{name}.py"
        limited = worker.replace("= 60, 1 << 20", "= 1, 1 << 20")
        script.write_text(
            limited.replace(
                "def _pickle(path: Path) -> dict[str, Any]:", f"def _pickle(path):\n    {harm}"
            )
        )
        monkeypatch.setattr(untrusted, "_WORKER", script)
        with pytest.raises(BrokenFileError, match=r"value.pickle: .*its reader ended with SIG"):
            read(path)


@pytest.mark.parametrize("protocol", range(6))
def test_harmless_pickles_of_any_protocol_are_read(tmp_path: Path, protocol: int) -> None:
    matrix = np.array([[0, 1.5], [2, 0]])
    values: dict[str, Any] = {
        "matrix": sp.csr_matrix(matrix),
        "array": sp.csr_array(matrix),
        "columns": sp.csc_matrix(matrix),
        "big end": np.arange(3, dtype=">i4"),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "empty": np.zeros((0, 3)),
        "booleans": np.array([True, False]),
        "texts": np.array(["a", "bc"]),
        "objects": np.array(["é", "b"], object),
        "lists": collections.defaultdict(list, {0: [1, 2], 7: [], 1: [int(np.int64(3))]}),
    }
    paths = {name: tmp_path / name for name in values}
    for name, value in values.items():
        content = pickle.dumps(value, protocol)
        paths[name].write_bytes(pickletools.optimize(content) if protocol % 2 else content)
    found = untrusted.load_pickles(paths)
    for name, expected in values.items():
        value = found[name]
        if sp.issparse(expected):
            assert type(value) is sp.csr_array
            np.testing.assert_array_equal(value.toarray(), expected.toarray())
        elif isinstance(value, untrusted.Lists):
            lists = np.split(value.values, np.cumsum(value.lengths)[:-1])
            assert dict(zip(value.keys.tolist(), map(np.ndarray.tolist, lists), strict=True)) == {
                0: [1, 2],
                7: [],
                1: [3],
            }
        else:
            np.testing.assert_array_equal(value, expected)


def test_pickles_of_python_2_are_read(tmp_path: Path) -> None:
    path = tmp_path / "value.pickle"
    path.write_bytes(
        b"cnumpy.core.multiarray\n_reconstruct\np0\n(cnumpy\nndarray\np1\n(I0\ntp2\nS'b'\np3\ntp4\n"
        b"Rp5\n(I1\n(I2\ntp6\ncnumpy\ndtype\np7\n(S'i2'\np8\nI0\nI1\ntp9\nRp10\n(I3\nS'<'\np11\n"
        b"NNNI-1\nI-1\nI0\ntp12\nbI00\nS'\\x01\\xff\\n\\x00'\np13\ntp14\nb."
    )
    np.testing.assert_array_equal(read(path), [-255, 10])


def test_a_real_file_of_another_collection_is_read(data_dir: Path) -> None:
    members = load_npz(data_dir / "karate" / "karate_club.npz")
    assert list(members) == ["adj_matrix", "node_label"]
    assert (members["adj_matrix"].shape, members["adj_matrix"].nnz) == ((34, 34), 156)
    assert np.bincount(members["node_label"]).tolist() == [12, 5, 11, 6]


class Touch:
    """Pickles as a call that creates a file: without the file, nothing ran."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_call_is_refused_and_does_not_run(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "value.pickle"
    path.write_bytes(pickle.dumps([Touch(victim)]))
    with pytest.raises(BrokenFileError, match=r"value.pickle: .*the pickle asks for pathlib"):
        read(path)
    np.savez(tmp_path / "arrays.npz", labels=np.array([Touch(victim)], object))
    with pytest.raises(BrokenFileError, match=r"arrays.npz: .*the pickle asks for pathlib"):
        load_npz(tmp_path / "arrays.npz")["labels"]
    assert not victim.exists()


@given(data=st.data())
def test_a_truncated_npz_is_an_error_that_names_the_file(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("truncated") / "short.npz"
    np.savez(path, plain=np.arange(4))
    content = path.read_bytes()
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(BrokenFileError, match=r"short.npz: cannot be read as an npz archive"):
        load_npz(path)


def npz(path: Path, header: str, content: bytes = b"", name: str = "value.npy") -> Path:
    encoded = header.encode() + b"\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        magic = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(encoded))
        archive.writestr(name, magic + encoded + content)
    return path


@pytest.mark.parametrize(
    ("descr", "shape", "content"),
    [
        ("'<f8'", "(1000000000000,)", b""),
        ("'<f8'", "(4611686018427387904, 4)", b""),
        ("'<f8'", "(-1,)", bytes(8)),
        ("'<f8'", "(2,)", bytes(15)),
        ("'<f8'", "(2,)", bytes(17)),
        ("'|S0'", "(1000000000000,)", b""),
        ("'<c8'", "(1,)", bytes(8)),
        ("'|V8'", "(1,)", bytes(8)),
        ("[('a', '<f8')]", "(1,)", bytes(8)),
        ("'|O'", "(1,)", bytes(8)),
        ("'<f8'", "(" * 3000 + ")" * 3000, bytes(8)),
    ],
)
def test_a_header_is_not_believed(tmp_path: Path, descr: str, shape: str, content: bytes) -> None:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"
    path = npz(tmp_path / "arrays.npz", header, content)
    with pytest.raises(BrokenFileError, match=r"arrays.npz: cannot be read as"):
        load_npz(path)["value"]
    with zipfile.ZipFile(path) as archive:
        (tmp_path / "array.npy").write_bytes(archive.read("value.npy"))
    with pytest.raises(BrokenFileError, match=r"array.npy: cannot be read as"):
        npy_rows(tmp_path / "array.npy")


def test_an_archive_out_of_proportion_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = "{'descr': '|u1', 'fortran_order': False, 'shape': (3000000,), }"
    path = npz(tmp_path / "bomb.npz", header, bytes(3_000_000))
    assert load_npz(path)["value"].size == 3_000_000
    monkeypatch.setattr(limits, "_ALWAYS_EXPANDED", 1 << 20)
    with pytest.raises(BrokenFileError, match=r"bomb.npz: .* bytes expand to 30000"):
        load_npz(path)


def test_members_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "arrays.npz"
    np.savez(path, value=np.arange(3))
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("value.npy", archive.read("value.npy"))
    with pytest.raises(BrokenFileError, match="two members have the same name"):
        load_npz(path)
