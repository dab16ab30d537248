"""The process that reads pickles and MATLAB files, with limits of memory and time (`untrusted`).

Run with a reader ("pickle" or "matlab") and a folder. It reads the files ``0``, ``1`` and so on of
the folder, and writes the plain arrays of each to ``0.npz``, ``1.npz`` and so on. It is a script:
it imports nothing of the package, so that it starts in a fraction of a second.

A pickle calls functions by name. The names of data stand here for small classes that keep their
arguments; all others are refused without a look-up. NumPy sees checked numbers alone.
"""

from __future__ import annotations

import pickle
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_ALWAYS_ALLOWED, _MEMORY_PER_BYTE = 1 << 30, 100
_SECONDS, _BYTES_PER_SECOND = 60, 1 << 20
_DTYPE = re.compile(r"[|<>=]?(b1|i[1248]|u[1248]|f[248]|O[48]?|[SU][1-9][0-9]{0,5})")
_MATRICES = ("network", "group")
"""The variables that are read from a MATLAB file."""
_CSR = ("data", "indices", "indptr")


class _Dtype:
    def __init__(self, code: str, *_: Any) -> None:
        if not _DTYPE.fullmatch(code):
            raise ValueError("an array of a type that data does not use; expected numbers")
        self.is_object, self.dtype = "O" in code, np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        _, order, *compound = state
        if any(part is not None for part in compound[:3]):
            raise ValueError("an array of compound elements")
        self.dtype = self.dtype.newbyteorder(order)


class _Array:
    """The state of an array: its shape, its type, its order, and its bytes or objects."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state[-4:]

    def made(self) -> np.ndarray:
        shape, kind, fortran, content = self.state
        if kind.is_object:
            found = np.array(list(map(_number_or_text, content)))
        elif isinstance(content, str):  # Python 2 pickled bytes as text.
            found = _of_bytes(content.encode("latin1"), kind.dtype)
        else:
            found = _of_bytes(content, kind.dtype)
        return found.reshape(shape, order="F" if fortran else "C")


def _of_bytes(content: bytes, dtype: np.dtype) -> np.ndarray:
    # Compiled code expects 0 or 1 in a boolean.
    return (
        np.frombuffer(content, np.uint8) != 0
        if dtype.kind == "b"
        else np.frombuffer(content, dtype)
    )


def _number_or_text(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str):
        raise ValueError(f"an array of objects holds a {type(value).__name__}; expected numbers")
    return value


class _Rows:
    """The state of a CSR matrix."""

    columns = False

    def __setstate__(self, state: Any) -> None:
        # Classes with slots have a state of two parts.
        self.state = state[0] if isinstance(state, tuple) else state


class _Columns(_Rows):
    """The state of a CSC matrix."""

    columns = True


def _from_buffer(content: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    array = _Array()
    array.state = (shape, dtype, order == "F", content)
    return array


def _scalar(dtype: Any, content: Any) -> Any:
    return _from_buffer(content, dtype, (), "C").made().item()


def _bytes(content: Any = b"", encoding: str = "latin1") -> bytes:
    return content.encode("latin1") if isinstance(content, str) else bytes(memoryview(content))


def _dictionary(*_: Any) -> dict[Any, Any]:
    return {}


def _reconstructor(kind: Any, base: Any, state: Any) -> Any:
    return kind()


_NAMES: dict[str, Any] = {
    "numpy.dtype": _Dtype,
    "numpy.ndarray": _Array,
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy.core.multiarray.scalar": _scalar,
    "numpy.core.numeric._frombuffer": _from_buffer,
    "csr": _Rows,
    "csc": _Columns,
    "collections.defaultdict": _dictionary,
    "collections.OrderedDict": _dictionary,
    "_codecs.encode": _bytes,
    "builtins.bytes": _bytes,
    "builtins.bytearray": _bytes,
    "builtins.list": list,
    "builtins.object": list,
    "copyreg._reconstructor": _reconstructor,
}
# Other versions, and Python 2, have other names for the same.
_OTHER_NAMES = (
    (r"^numpy\._core\.", "numpy.core."),
    (r"^__builtin__\.", "builtins."),
    (r"^copy_reg\.", "copyreg."),
    (r"^scipy\.sparse\._?(cs[rc])\.\1_(matrix|array)$", r"\1"),
)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        for other, known in _OTHER_NAMES:
            full = re.sub(other, known, full)
        if full not in _NAMES:
            raise ValueError(
                f"the pickle asks for {full[:160]}, which data of graphs does not use; only numpy "
                "arrays, CSR matrices and lists of neighbours are read. Do not open this file with "
                "another program unless you trust its source."
            )
        return _NAMES[full]


def _pickle(path: Path) -> dict[str, Any]:
    with path.open("rb") as stream:
        return _plain(_Unpickler(stream, encoding="latin1").load())


def _plain(value: Any) -> dict[str, Any]:
    if isinstance(value, _Array):
        if value.state[1].is_object and value.state[0] == ():
            return _plain(value.state[3][0])
        return {"array": value.made()}
    if isinstance(value, _Rows):
        arrays = {name: value.state[name].made() for name in _CSR}
        return arrays | {"shape": np.array(value.state["_shape"]), "by_column": value.columns}
    if isinstance(value, dict):
        return _lists(value)
    raise ValueError(
        f"it holds a {type(value).__name__}; expected an array, a CSR matrix or a dictionary"
    )


def _lists(value: dict[Any, Any]) -> dict[str, Any]:
    """The lists of numbers of a dictionary, one after the other."""
    if not set(map(type, value.values())) <= {list, tuple}:
        raise ValueError("a node whose neighbours are no list")
    entries = [entry for entries in value.values() for entry in entries]
    if not {*map(type, value), *map(type, entries)} <= {int}:
        raise ValueError("a node that is no integer")
    arrays = {"keys": list(value), "lengths": list(map(len, value.values())), "values": entries}
    return {name: np.array(numbers, np.int64) for name, numbers in arrays.items()}


def _matlab(path: Path) -> dict[str, Any]:
    import scipy.io
    import scipy.sparse

    found = {}
    with path.open("rb") as stream:
        matrices = scipy.io.loadmat(stream, variable_names=_MATRICES)
    for name in _MATRICES:
        matrix = matrices.get(name)
        if scipy.sparse.issparse(matrix):
            # What SciPy has read may point anywhere: nothing is converted before it is checked.
            found |= {f"{name}.{field}": getattr(matrix, field) for field in (*_CSR, "shape")}
            found[f"{name}.by_column"] = True
    return found


_READERS: dict[str, Callable[[Path], dict[str, Any]]] = {"pickle": _pickle, "matlab": _matlab}


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def main(reader: str, folder: Path) -> None:
    """Reads the files of a folder."""
    paths = sorted(folder.iterdir(), key=lambda path: int(path.name))
    size = sum(path.stat().st_size for path in paths)
    most = _ALWAYS_ALLOWED + _MEMORY_PER_BYTE * size
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE):
        _limit(kind, most)
    _limit(resource.RLIMIT_CPU, _SECONDS + size // _BYTES_PER_SECOND)
    for path in paths:
        arrays = _READERS[reader](path)
        # The name tells that the file is whole.
        partial = folder / "partial"
        with partial.open("wb") as stream:
            np.savez(stream, **arrays)
        partial.rename(folder / f"{path.name}.npz")


if __name__ == "__main__":
    try:
        main(sys.argv[1], Path(sys.argv[2]))
    except Exception as error:
        named = "" if type(error) is ValueError else f"{type(error).__name__}: "
        sys.exit(f"{named}{error}"[:500])
