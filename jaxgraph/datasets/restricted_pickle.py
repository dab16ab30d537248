"""Pickles of data, read without calling the functions that they name.

A pickle is a program that may call any function by name. Data sets need few names: those of numpy
arrays, CSR matrices and dictionaries of lists. All others are refused without a look-up. The
objects of these few are made here, from checked arguments (see ``pickle_machine``).
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from jaxgraph.datasets.files import BrokenFileError, reading
from jaxgraph.datasets.pickle_machine import ForbiddenNameError, Machine, Name, Unbuilt
from jaxgraph.datasets.sparse import compressed_rows

__all__ = ["checked_array", "load_pickle", "unpickled"]

_DTYPE = re.compile(r"[|<>=]?(b1|i[1248]|u[1248]|f[248]|O[48]?|[SU][1-9][0-9]{0,5})")
_MOST_DIMENSIONS = 32
_DEEPEST = 32
"""Levels of lists and dictionaries in each other."""
_MOST_VISITS = 4
"""Objects per byte that a file may have, each counted at every visit."""


def load_pickle(path: Path) -> Any:
    """Reads a pickle of numpy arrays, CSR matrices, lists and dictionaries.

    Args:
        path: the file.

    Returns:
        The object; a ``defaultdict`` comes as a dictionary, a CSR or CSC matrix as a ``csr_array``.

    Raises:
        ValueError: the pickle asks for any other type, or is broken or truncated.
    """
    with reading(path, "a pickle"):
        return unpickled(path.read_bytes(), path)


def unpickled(content: bytes, path: Path) -> Any:
    """Runs a pickle that a file holds.

    Args:
        content: the pickle.
        path: the file, for the message.

    Returns:
        The object; for a zero-dimensional object array, its element.

    Raises:
        ValueError: as ``load_pickle``.
    """
    try:
        value = Machine(content, _NAMES).run()
    except ForbiddenNameError as error:
        raise BrokenFileError(f"{path}: {error}") from error
    _check_data(value, _MOST_VISITS * len(content) + 1000)
    if isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype == object:
        value = value.item()
    return value


def checked_array(dtype: np.dtype, shape: Any, fortran: bool, content: bytes) -> np.ndarray:
    """Makes an array from the bytes of a file.

    Args:
        dtype: of its elements.
        shape: of the array.
        fortran: whether the first axis is the fastest.
        content: the bytes of the array.

    Returns:
        A read-only view of the bytes.

    Raises:
        ValueError: the elements are no plain numbers or texts, or there are more or fewer bytes.
    """
    if dtype.names is not None or dtype.subdtype is not None or dtype.kind not in "biufSU":
        raise ValueError(f"an array of {dtype}; expected numbers")
    count = _count(shape)
    if not dtype.itemsize or count * dtype.itemsize != len(content):
        raise ValueError(
            f"an array of shape {list(shape)} and type {dtype} with {len(content)} bytes; expected "
            f"{count * dtype.itemsize}"
        )
    flat = np.frombuffer(content, np.uint8)
    # Compiled code expects 0 or 1 in a boolean.
    if dtype.kind == "b" and flat.size and flat.max() > 1:
        raise ValueError("an array of booleans with other values than 0 and 1")
    return flat.view(dtype).reshape(shape, order="F" if fortran else "C")


def _count(shape: Any) -> int:
    if type(shape) is not tuple or len(shape) > _MOST_DIMENSIONS:
        raise ValueError("an array whose shape is no tuple of sizes")
    if any(type(size) is not int or not 0 <= size < 2**62 for size in shape):
        raise ValueError("an array whose shape is no tuple of sizes")
    return math.prod(shape)


def _bytes_of(machine: Machine, value: Any) -> bytes:
    """Returns the bytes of an array; Python 2 pickled them as text of one character per byte."""
    if type(value) is str:
        machine.spend(len(value))
        return value.encode("latin1")
    if type(value) is not bytes:
        raise ValueError(f"the bytes of an array are a {type(value).__name__}")
    return value


class _Dtype(Unbuilt):
    """Gets its byte order from BUILD. A type of numbers has no other state."""

    def __init__(self, code: Any) -> None:
        super().__init__()
        if type(code) is not str or not _DTYPE.fullmatch(code):
            raise ValueError("an array of a type that data does not use; expected numbers")
        self._dtype = np.dtype(object if "O" in code else code)

    def built(self, machine: Machine, state: Any) -> np.dtype:
        if type(state) is not tuple or len(state) not in (8, 9):
            raise ValueError("a type whose state is not that of a type")
        order, *compound = state[1:5]
        if any(part is not None for part in compound) or (len(state) == 9 and state[8]):
            raise ValueError("an array of compound elements")
        if type(order) is not str or order not in ("<", ">", "=", "|"):
            raise ValueError("a type without byte order")
        return self._dtype if order == "|" else self._dtype.newbyteorder(order)


class _Array(Unbuilt):
    def built(self, machine: Machine, state: Any) -> np.ndarray:
        if type(state) is not tuple or len(state) not in (4, 5):
            raise ValueError("an array whose state is not that of an array")
        shape, dtype, fortran, content = state[-4:]
        if not isinstance(dtype, np.dtype) or type(fortran) not in (bool, int):
            raise ValueError("an array whose state is not that of an array")
        if dtype.kind != "O":
            return checked_array(dtype, shape, bool(fortran), _bytes_of(machine, content))
        count = _count(shape)
        if type(content) is not list or len(content) != count:
            raise ValueError(f"an array of {count} objects from a {type(content).__name__}")
        machine.spend(8 * count)
        array = np.empty(count, object)
        for position, value in enumerate(content):
            array[position] = value
        return array.reshape(shape, order="F" if fortran else "C")


class _Compressed(Unbuilt):
    """A matrix of compressed rows, or of compressed columns."""

    columns = False

    def built(self, machine: Machine, state: Any) -> sp.csr_array:
        # Classes with slots have a state of two parts.
        if type(state) is tuple and len(state) == 2 and not state[1]:
            state = state[0]
        if type(state) is not dict or not {"data", "indices", "indptr", "_shape"} <= state.keys():
            raise ValueError("a CSR matrix whose state lacks its arrays")
        arrays = [state[name] for name in ("data", "indices", "indptr")]
        machine.spend(sum(x.nbytes for x in arrays if isinstance(x, np.ndarray)))
        shape = state["_shape"]
        data, indices, indptr = arrays
        if not self.columns:
            return compressed_rows(data, indices, indptr, shape)
        if type(shape) is not tuple or len(shape) != 2:
            raise ValueError("a CSC matrix whose shape is not two integers")
        return sp.csr_array(compressed_rows(data, indices, indptr, shape[::-1]).T)


class _CompressedColumns(_Compressed):
    columns = True


def _reconstructed_array(machine: Machine, kind: Any, shape: Any, code: Any) -> _Array:
    if kind is not _NAMES["numpy", "ndarray"]:
        raise ValueError("an array of a class that is not one of arrays")
    return _Array()


def _array_of_buffer(machine: Machine, content: Any, dtype: Any, shape: Any, order: Any) -> Any:
    if not isinstance(dtype, np.dtype):
        raise ValueError("an array without type")
    return checked_array(
        dtype, shape, type(order) is str and order == "F", _bytes_of(machine, content)
    )


def _scalar(machine: Machine, dtype: Any, content: Any) -> Any:
    if not isinstance(dtype, np.dtype):
        raise ValueError("a number without type")
    return checked_array(dtype, (), False, _bytes_of(machine, content)).item()


def _reconstructed(machine: Machine, kind: Any, base: Any, state: Any) -> Unbuilt:
    if not isinstance(kind, Name) or kind.new is None or state is not None:
        raise ValueError("it makes an object of a class that is not one of data")
    return kind.new()


def _encoded(machine: Machine, text: Any, encoding: Any = "latin1") -> bytes:
    if (type(text), type(encoding)) != (str, str) or encoding not in ("latin1", "latin-1"):
        raise ValueError("bytes that are no text of one character per byte")
    return _bytes_of(machine, text)


def _bytes(machine: Machine, content: Any = b"", encoding: Any = "latin1") -> bytes:
    return content if type(content) is bytes else _encoded(machine, content, encoding)


def _dictionary(machine: Machine, factory: Any = None) -> dict[Any, Any]:
    if factory is not None and factory is not _NAMES["builtins", "list"]:
        raise ValueError("a dictionary of anything but lists")
    return {}


def _names() -> dict[tuple[str, str], Name]:
    ndarray, plain_list, plain_object = Name(), Name(lambda machine: []), Name()
    reconstruct, of_buffer, scalar = map(Name, (_reconstructed_array, _array_of_buffer, _scalar))
    rows, columns = Name(new=_Compressed), Name(new=_CompressedColumns)
    names = {
        ("numpy", "dtype"): Name(lambda machine, code, *_: _Dtype(code)),
        ("numpy", "ndarray"): ndarray,
        ("collections", "defaultdict"): Name(_dictionary),
        ("collections", "OrderedDict"): Name(_dictionary),
        ("_codecs", "encode"): Name(_encoded),
    }
    for numpy_core in ("numpy.core", "numpy._core"):
        names |= {
            (f"{numpy_core}.multiarray", "_reconstruct"): reconstruct,
            (f"{numpy_core}.multiarray", "scalar"): scalar,
            (f"{numpy_core}.numeric", "_frombuffer"): of_buffer,
        }
    for form, name in (("csr", rows), ("csc", columns)):
        for module in (f"scipy.sparse.{form}", f"scipy.sparse._{form}"):
            names |= {(module, f"{form}_{kind}"): name for kind in ("matrix", "array")}
    # Python 2, and Python 3 for protocols that Python 2 reads, have older names for the same.
    for builtins in ("__builtin__", "builtins"):
        names |= {
            (builtins, "list"): plain_list,
            (builtins, "object"): plain_object,
            (builtins, "bytes"): Name(_bytes),
            (builtins, "bytearray"): Name(_bytes),
        }
    for registry in ("copy_reg", "copyreg"):
        names[registry, "_reconstructor"] = Name(_reconstructed)
    return names


_NAMES = _names()
_LEAVES = frozenset({type(None), bool, int, float, str, bytes, sp.csr_array})


def _check_data(value: Any, most: int) -> None:
    """Refuses objects that are no data, contain themselves, or are huge once copied."""
    level, depth = [value], 0
    while level:
        below: list[Any] = []
        for some in level:
            if isinstance(some, list | tuple):
                contained = some
            elif isinstance(some, dict):
                contained = some.values()
            elif isinstance(some, np.ndarray):
                contained = some.ravel() if some.dtype == object else ()
            elif type(some) in _LEAVES:
                continue
            else:
                raise ValueError(f"a {type(some).__name__}, which is no data")
            most -= len(contained)
            if most < 0 or depth > _DEEPEST:
                raise ValueError("lists that hold each other too often or too deeply")
            # Most lists hold only numbers: skip them.
            if not set(map(type, contained)) <= _LEAVES:
                below.extend(contained)
        level, depth = below, depth + 1
