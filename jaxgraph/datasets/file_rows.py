"""Rows of a binary file, read by number: memory holds the rows of one call; nothing is mapped."""

from __future__ import annotations

import dataclasses
import math
import warnings
from pathlib import Path
from typing import IO

import numpy as np

from jaxgraph.datasets.files import BrokenFileError, reading

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
    # Differs in the encoding of field names only, which no array here has.
    (3, 0): np.lib.format.read_array_header_2_0,
}


@dataclasses.dataclass(frozen=True)
class FileRows:
    """An array in a file.

    Attributes:
      path: the file.
      dtype: of the array.
      shape: of the array.
      offset: bytes of the file before it.
      by_column: whether it is in Fortran's order, in which rows cannot be read.
    """

    path: Path
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int = 0
    by_column: bool = False

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Reads some consecutive rows."""
        first, stop, _ = rows.indices(self.shape[0])
        count = max(stop - first, 0)
        if not count:
            return np.empty((0, *self.shape[1:]), self.dtype)
        size = math.prod(self.shape[1:])
        start = self.offset + first * size * self.dtype.itemsize
        found = np.fromfile(self.path, self.dtype, count * size, offset=start)
        if found.size != count * size:
            raise BrokenFileError(f"{self.path}: ends before row {first + count}; fetch it again")
        return found.reshape(count, *self.shape[1:])


def read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """The shape of an array in the npy format, whether it is by column, and its type."""
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of the npy format")
    with warnings.catch_warnings():
        # NumPy warns of sizes with an L, as Python 2 wrote them.
        warnings.simplefilter("ignore", UserWarning)
        return _HEADERS[version](stream)


def check_size(shape: tuple[int, ...], dtype: np.dtype, num_bytes: int) -> None:
    """Raises ValueError where bytes are not those of an array of numbers or texts."""
    if dtype.kind not in "biufSU":
        raise ValueError(f"an array of {dtype}; expected numbers")
    expected = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or not dtype.itemsize or expected != num_bytes:
        raise ValueError(f"an array {list(shape)} of {dtype} in {num_bytes} bytes")


def npy_rows(path: Path) -> FileRows:
    """Reads the header of an npy file."""
    with reading(path, "an npy file"), path.open("rb") as stream:
        shape, fortran, dtype = read_header(stream)
        if not shape:
            raise ValueError("it holds a single value; expected an array")
        by_column = fortran and sum(size > 1 for size in shape) > 1
        check_size(shape, dtype, path.stat().st_size - stream.tell())
        return FileRows(path, dtype, shape, stream.tell(), by_column)
