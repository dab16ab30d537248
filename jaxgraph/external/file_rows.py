"""Rows of a binary file, read by number: memory holds the rows of one call; nothing is mapped."""

from __future__ import annotations

import dataclasses
import math
import warnings
from pathlib import Path

import numpy as np

from jaxgraph.datasets.files import BrokenFileError, reading

__all__ = ["FileRows", "npy_rows"]

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


@dataclasses.dataclass(frozen=True)
class FileRows:
    """An array in a file, in C order.

    Attributes:
      path: the file.
      dtype: of the array.
      shape: of the array.
      offset: bytes of the file before it.
    """

    path: Path
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int = 0

    def __len__(self) -> int:
        return self.shape[0]

    def read(self, first: int, stop: int) -> np.ndarray:
        """Reads the rows from `first` to before `stop`, or to the end."""
        count = max(min(stop, len(self)) - first, 0)
        size = math.prod(self.shape[1:])
        start = self.offset + first * size * self.dtype.itemsize
        found = np.fromfile(self.path, self.dtype, count * size, offset=start)
        if found.size != count * size:
            raise BrokenFileError(f"{self.path}: ends before row {first + count}; fetch it again")
        return found.reshape(count, *self.shape[1:])


def npy_rows(path: Path) -> tuple[FileRows, bool]:
    """Reads the header of an npy file.

    Args:
      path: the file.

    Returns:
      Its rows, and whether they are stored in Fortran's order.

    Raises:
      ValueError: the file is missing, broken, holds objects, or is shorter than it says.
    """
    with reading(path, "an npy file"), path.open("rb") as stream:
        version = np.lib.format.read_magic(stream)
        if version not in _HEADERS:
            raise ValueError(f"version {version} of the npy format")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            shape, fortran, dtype = _HEADERS[version](stream)
        if dtype.hasobject:
            raise ValueError("it holds objects; expected numbers or texts")
        if not shape:
            raise ValueError("it holds a single value; expected an array")
        rows = FileRows(path, dtype, shape, stream.tell())
        expected = rows.offset + math.prod(shape) * dtype.itemsize
        if path.stat().st_size < expected:
            raise ValueError(f"it has {path.stat().st_size} bytes; expected {expected}")
    return rows, fortran
