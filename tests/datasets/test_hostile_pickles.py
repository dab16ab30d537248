"""Pickles and archives of an attacker: each is refused, cheaply, and changes nothing."""

import pickle
import pickletools
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from jaxgraph.datasets import limits, restricted_pickle
from jaxgraph.datasets.files import BrokenFileError
from jaxgraph.datasets.npz import load_npy, load_npz
from jaxgraph.datasets.restricted_pickle import load_pickle

MOST_MEMORY = 32 << 20


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
COPY = call("_codecs", "encode", b"h\x00", text("latin1")) + b"0"
HOSTILE = {
    "objects of raw bytes": array(b"(K\x01t", dtype("O8", FLAGS_OF_NO_OBJECT), point_to(0x4141)),
    "objects of raw text": array(b"(K\x01t", dtype("O"), b"U\x08AAAAAAAA"),
    "objects by buffer": call(
        "numpy._core.numeric", "_frombuffer", point_to(8), dtype("O8"), b"(K\x01t", b"U\x01C"
    ),
    "objects by scalar": call("numpy.core.multiarray", "scalar", dtype("O8"), point_to(8)),
    "fields in a type": array(
        b"(K\x01t",
        dtype("V8", b"(K\x03U\x01|N(U\x01at}U\x01a(" + dtype("O8") + b"K\x00tsK\x08K\x01K\x00tb"),
        point_to(8),
    ),
    "a type in a type": array(
        b"(K\x01t",
        dtype("i4", b"(K\x03U\x01<(" + dtype("O8") + b"(K\x01ttNNK\x08K\x01K\x00tb"),
        point_to(8),
    ),
    "no bytes, many elements": array(b"(J\xff\xff\xff\x7ft", dtype("S0"), raw(b"")),
    "fewer bytes than elements": array(b"(J\xff\xff\xff\x7ft", dtype("f8"), raw(bytes(8))),
    "a negative size": array(b"(J\xff\xff\xff\xffJ\xff\xff\xff\xfft", dtype("u1"), raw(b"\x01")),
    "sizes whose product wraps": array(
        b"(" + b"\x8a\x09" + (2**64 // 8).to_bytes(9, "little") + b"K\x08t", dtype("u1"), raw(b"")
    ),
    "a state of a state": dtype("i4") + b"(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
    "defaults of a function": b"cnumpy\ndtype\n(N}U\x0c__defaults__(K\x01K\x01tstb",
    "attributes of a class": b"ccollections\ndefaultdict\n}U\x0b__setattr__K\x01sb",
    "attributes of a module": b"cnumpy.core.multiarray\n_reconstruct\n(N}U\x01aK\x01stb",
    "attributes of a list": b"]}U\x01aK\x01sb",
    "a name in a module of ours": call("numpy", "core.multiarray._reconstruct", b"N"),
    "a dotted name": b"\x80\x04" + text("numpy") + text("dtype.__class__") + b"\x93",
    "a name that is no text": b"\x80\x04K\x01K\x02\x93",
    "eval": call("builtins", "eval", text("1")),
    "an old instance": b"(ios\nsystem\n",
    "an instance with arguments": b"\x80\x04cnumpy\nndarray\n(J\xff\xff\xff\x7ft}\x92",
    "ndarray itself": call("numpy", "ndarray", b"J\xff\xff\xff\x7f"),
    "a class that is no array": call(
        "numpy.core.multiarray", "_reconstruct", b"c__builtin__\nlist\n", b"(K\x00t", raw(b"b")
    ),
    "an object that was never stored": b"j\x00\x00\x00\x10",
    "a list in itself": b"]q\x00h\x00a",
    "a dictionary in itself": b"}q\x00K\x01h\x00s",
    "laughs": laughs(60),
    "laughs of arrays": b"("
    + array(b"(K\x01t", dtype("u1"), raw(b"a"))
    + b"q\x00"
    + b"h\x00" * 9
    + b"(h\x00"
    + b"h\x00" * 200
    + b"lq\x01"
    + b"h\x01" * 200
    + b"t",
    "a text copied often": b"T\xff\xff\x00\x00" + b"a" * 65_535 + b"q\x000" + COPY * 300 + b"N",
    "a deep list": b"]" * 10_000 + b"a" * 9_999,
    "a deep tuple": b")" + b"\x85" * 10_000,
    "a string of 4 GiB": b"X\xff\xff\xff\xffabc",
    "bytes of 2**63": b"\x8e" + struct.pack("<Q", 2**63) + b"abc",
    "a negative length": b"T\xff\xff\xff\xffabc",
    "an integer of 2 GiB": b"\x8b\xff\xff\xff\x7fabc",
    "a negative integer size": b"\x8b\xff\xff\xff\xff",
    "digits": b"L" + b"9" * 10**6 + b"L\n",
    "a frame beyond the end": b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"N",
    "a negative memo": b"Np-5\n",
    "colliding keys": b"}(" + b"(K\x01tN" * 3 + b"u",
    "a persistent object": b"Pabc\n",
    "a registered extension": b"\x82\x01",
    "a buffer from elsewhere": b"\x80\x05\x97",
    "more than one object": b"NN",
    "a mark alone": b"(",
    "values below a mark": b"]K\x01(a",
    "an unbuilt array": call(
        "numpy.core.multiarray", "_reconstruct", b"cnumpy\nndarray\n(K\x00t" + raw(b"b")
    ),
    "booleans of 255": array(b"(K\x04t", dtype("b1"), raw(b"\xff" * 4)),
    "an index below the matrix": csr(
        indices=array(b"(K\x01t", dtype("i4"), raw(struct.pack("<i", -1)))
    ),
    "an index that wraps": csr(
        indices=array(b"(K\x01t", dtype("u8"), raw(struct.pack("<Q", 2**64 - 1)))
    ),
    "row pointers that wrap": csr(
        indptr=array(b"(K\x02t", dtype("u8"), raw(struct.pack("<QQ", 2**63, 1)))
    ),
    "a matrix of text": csr(data=text("abc")),
    "a matrix of one size": csr(_shape=b"(K\x01t"),
    "a matrix of 2**40 rows": csr(_shape=b"(\x8a\x06" + (2**40).to_bytes(6, "little") + b"K\x01t"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_is_refused_at_little_cost(tmp_path: Path, name: str) -> None:
    path = tmp_path / "value.pickle"
    content = HOSTILE[name]
    path.write_bytes(content if content.endswith(b".") else content + b".")
    state = (vars(restricted_pickle).copy(), restricted_pickle._Dtype.__init__.__defaults__)
    tracemalloc.start()
    try:
        with pytest.raises(BrokenFileError, match=r"value.pickle: ") as raised:
            load_pickle(path)
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()
    assert len(str(raised.value)) < 1000
    assert state == (vars(restricted_pickle), restricted_pickle._Dtype.__init__.__defaults__)


def test_the_harmless_counterparts_are_read(tmp_path: Path) -> None:
    path = tmp_path / "value.pickle"
    path.write_bytes(array(b"(K\x02t", dtype("i4"), raw(struct.pack("<ii", 5, 7))) + b".")
    np.testing.assert_array_equal(load_pickle(path), [5, 7])
    path.write_bytes(csr())
    np.testing.assert_array_equal(load_pickle(path).toarray(), [[0]])
    # An index of the memo is no size.
    path.write_bytes(b"]r\x00\x00\x00\x10j\x00\x00\x00\x10\x86.")
    tracemalloc.start()
    assert load_pickle(path) == ([], [])
    assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    tracemalloc.stop()


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("optimize", [False, True])
def test_harmless_pickles_of_any_protocol_are_read(
    tmp_path: Path, protocol: int, optimize: bool
) -> None:
    matrix = np.array([[0, 1.5], [2, 0]])
    value: dict[Any, Any] = {
        "matrix": sp.csr_matrix(matrix),
        "array": sp.csr_array(matrix),
        "columns": sp.csc_matrix(matrix),
        "big end": np.arange(3, dtype=">i4"),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "read-only": np.broadcast_to(np.float32(1), (2,)).copy(),
        "empty": np.zeros((0, 3)),
        "booleans": np.array([True, False]),
        "texts": np.array(["a", "bc"]),
        "objects": np.array([1, "é", None, [2]], object),
        "number": np.int64(-3),
        "numbers": [0, -1, 255, 65_536, -(2**31), 2**40, 1.5, True, None],
        "bytes": b"\x00\xff",
        "nothing": b"",
        7: [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), {}, [[]]],
    }
    value["read-only"].flags.writeable = False
    content = pickle.dumps(value, protocol)
    path = tmp_path / "value.pickle"
    path.write_bytes(pickletools.optimize(content) if optimize else content)
    read = load_pickle(path)
    assert read.keys() == value.keys()
    for key, expected in value.items():
        if sp.issparse(expected):
            assert type(read[key]) is sp.csr_array
            np.testing.assert_array_equal(read[key].toarray(), expected.toarray())
        elif isinstance(expected, np.ndarray):
            assert read[key].dtype == expected.dtype
            np.testing.assert_array_equal(read[key], expected)
        else:
            assert read[key] == expected


def test_pickles_of_python_2_are_read(tmp_path: Path) -> None:
    path = tmp_path / "value.pickle"
    path.write_bytes(
        b"cnumpy.core.multiarray\n_reconstruct\np0\n(cnumpy\nndarray\np1\n(I0\ntp2\nS'b'\np3\ntp4\n"
        b"Rp5\n(I1\n(I2\ntp6\ncnumpy\ndtype\np7\n(S'i2'\np8\nI0\nI1\ntp9\nRp10\n(I3\nS'<'\np11\n"
        b"NNNI-1\nI-1\nI0\ntp12\nbI00\nS'\\x01\\xff\\n\\x00'\np13\ntp14\nb."
    )
    np.testing.assert_array_equal(load_pickle(path), [-255, 10])


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
        ("'|b1'", "(2,)", b"\x02\x00"),
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
    with pytest.raises(BrokenFileError, match=r"arrays.npz: cannot be read as an npz archive"):
        load_npz(path)["value"]
    with zipfile.ZipFile(path) as archive:
        (tmp_path / "array.npy").write_bytes(archive.read("value.npy"))
    with pytest.raises(BrokenFileError, match=r"array.npy: cannot be read as an npy file"):
        load_npy(tmp_path / "array.npy")


def test_an_archive_out_of_proportion_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = "{'descr': '|u1', 'fortran_order': False, 'shape': (3000000,), }"
    path = npz(tmp_path / "bomb.npz", header, bytes(3_000_000))
    assert load_npz(path)["value"].size == 3_000_000
    monkeypatch.setattr(limits, "_ALWAYS_EXPANDED", 1 << 20)
    with pytest.raises(BrokenFileError, match=r"bomb.npz: .* bytes expand to 30000"):
        load_npz(path)


def test_members_of_one_name_and_of_other_methods_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "arrays.npz"
    np.savez(path, value=np.arange(3))
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("value.npy", archive.read("value.npy"))
    with pytest.raises(BrokenFileError, match="two members have the same name"):
        load_npz(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("value.npy", b"")
    with pytest.raises(BrokenFileError, match="compressed by an unsupported method"):
        load_npz(path)["value"]
