"""Sparse matrices from MATLAB 5 files.

SciPy's reader (1.17) crashes the interpreter on about one in 35 damaged files. This one reads
sparse matrices of numbers alone, and checks every size and index.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from jaxgraph.datasets.files import reading
from jaxgraph.datasets.limits import largest_expansion
from jaxgraph.datasets.sparse import compressed_rows

__all__ = ["load_sparse"]

_HEADER_BYTES = 128
_HDF5 = b"\x89HDF"
_MATRIX, _COMPRESSED = 14, 15
_SPARSE_CLASS = 5
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8"}
"""Types of numbers by the code of their tag."""
_MOST_OF_A_NAME = 4096
"""The leading bytes of a variable that hold its class, its shape and its name."""


def load_sparse(path: Path, names: Collection[str]) -> dict[str, sp.csr_array]:
    """Reads sparse matrices of a MATLAB 5 file (MATLAB's option -v6 or -v7).

    Args:
        path: the file.
        names: of the variables.

    Returns:
        The real parts of those of the variables that exist and are sparse, by name.

    Raises:
        ValueError: the file, or a matrix of those names, is broken.
    """
    with reading(path, "a MATLAB 5 file"):
        content = path.read_bytes()
        order = {b"IM": "<", b"MI": ">"}.get(content[126:_HEADER_BYTES])
        if content.startswith(_HDF5) or content.startswith(b"MATLAB 7.3"):
            raise ValueError("it is of MATLAB 7.3; save it with the option -v7")
        if order is None:
            raise ValueError("it does not begin as one")
        found: dict[str, sp.csr_array] = {}
        for start, whole in _variables(_Elements(content[_HEADER_BYTES:], order), path):
            name, shape, place = _header(_Elements(start, order))
            if name is not None and name in names:
                if name in found:
                    raise ValueError(f"it has two variables {name!r}")
                found[name] = _matrix(name, shape, _Elements(whole(), order), place)
        return found


@dataclasses.dataclass(frozen=True)
class _Elements:
    """Consecutive tagged elements in one byte order."""

    content: bytes
    order: str

    def at(self, place: int) -> tuple[int, bytes, int]:
        """Returns the code, the content and the end of the element at a position."""
        first, size = struct.unpack(f"{self.order}II", self._bytes(place, 8))
        # An element of up to 4 bytes has its size in the first word, and its content in the second.
        if first >> 16:
            if first >> 16 > 4:
                raise ValueError(f"a short element of {first >> 16} bytes")
            return first & 0xFFFF, self._bytes(place + 4, first >> 16), place + 8
        return first, self._bytes(place + 8, size), place + 8 + size

    def padded(self, stop: int) -> int:
        """Returns the start of the element after one that ends at ``stop``."""
        return -(-stop // 8) * 8

    def _bytes(self, place: int, size: int) -> bytes:
        if place + size > len(self.content):
            raise ValueError(f"it ends within an element of {size} bytes")
        return self.content[place : place + size]


def _variables(elements: _Elements, path: Path) -> Iterator[tuple[bytes, Callable[[], bytes]]]:
    """Yields the first bytes of each variable, and a function that returns all of them."""
    place, most = 0, largest_expansion(path)
    while place < len(elements.content):
        code, content, stop = elements.at(place)
        if code == _COMPRESSED:
            place = stop
            start = zlib.decompressobj().decompress(content, _MOST_OF_A_NAME)
            yield start[8:], partial(_decompressed, content, most, elements.order)
        elif code == _MATRIX:
            place = elements.padded(stop)
            yield content, partial(bytes, content)
        else:
            raise ValueError(f"an element of type {code}; expected a variable")


def _decompressed(content: bytes, most: int, order: str) -> bytes:
    stream = zlib.decompressobj()
    whole = stream.decompress(content, most)
    if not stream.eof:
        raise ValueError(f"a variable that does not end, or has more than {most} bytes")
    code, variable, _ = _Elements(whole, order).at(0)
    if code != _MATRIX:
        raise ValueError(f"an element of type {code}; expected a variable")
    return variable


def _header(elements: _Elements) -> tuple[str | None, tuple[int, ...], int]:
    """The name of a sparse matrix, its shape and the start of its arrays; None: another kind."""
    _, flags, stop = elements.at(0)
    if len(flags) != 8:
        raise ValueError("a variable without class")
    if struct.unpack(f"{elements.order}II", flags)[0] & 0xFF != _SPARSE_CLASS:
        return None, (), 0
    code, sizes, stop = elements.at(elements.padded(stop))
    shape = tuple(_numbers(code, sizes, elements.order).tolist())
    _, name, stop = elements.at(elements.padded(stop))
    return name.decode("latin1"), shape, elements.padded(stop)


def _matrix(name: str, shape: tuple[int, ...], elements: _Elements, place: int) -> sp.csr_array:
    """The sparse matrix from row indices, column pointers and values."""
    if len(shape) != 2:
        raise ValueError(f"{name!r} has {len(shape)} dimensions; expected 2")
    arrays = []
    for _ in range(3):
        code, content, stop = elements.at(place)
        arrays.append(_numbers(code, content, elements.order))
        place = elements.padded(stop)
    rows, pointers, values = arrays
    # The arrays may have room for more entries.
    count = int(pointers[-1]) if pointers.size else 0
    if not 0 <= count <= min(rows.size, values.size):
        raise ValueError(f"{name!r} has {count} entries and {rows.size} indices")
    return sp.csr_array(compressed_rows(values[:count], rows[:count], pointers, shape[::-1]).T)


def _numbers(code: int, content: bytes, order: str) -> np.ndarray:
    if code not in _NUMBERS:
        raise ValueError(f"an element of type {code}; expected numbers")
    dtype = np.dtype(order + _NUMBERS[code])
    if len(content) % dtype.itemsize:
        raise ValueError(f"an element of {len(content)} bytes of numbers of {dtype.itemsize}")
    return np.frombuffer(content, dtype)
