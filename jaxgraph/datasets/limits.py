"""Limits of the memory that a file may demand: a few bytes can declare a large size."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import IO, cast

import numpy as np
import scipy.sparse as sp

from jaxgraph.byte_amounts import refuse_beyond_memory

_EXPANSION = 200
"""The largest ratio of expanded to compressed size. Data sets of the field have up to 100."""
_ALWAYS_EXPANDED = 1 << 27
_SPARSE_BELOW = 0.12
"""The share of non-zeros below which features stay sparse. At 10%, sparse features take half the
time of dense ones in an epoch of GCN 64 and 0.6 of their memory; at 15%, 0.7 and 0.9
(`benchmarks.sparse_features --shares 0.1 0.15`)."""
_GZIP = b"\x1f\x8b"
_BUFFER = 1 << 16


def largest_expansion(path: Path) -> int:
    """Returns the number of bytes that a compressed file may expand to."""
    return max(_ALWAYS_EXPANDED, _EXPANSION * path.stat().st_size)


def check_expansion(path: Path, num_bytes: int) -> None:
    """Checks the number of bytes that a compressed file expands to."""
    if num_bytes > largest_expansion(path):
        raise ValueError(
            f"{path.stat().st_size} bytes expand to {num_bytes} or more; if you trust the file, "
            "save its content without compression"
        )


def dense(matrix: sp.csr_array) -> np.ndarray:
    """A sparse matrix as an array of float32; ValueError where it is larger than memory."""
    rows, columns = (int(size) for size in matrix.shape or ())
    refuse_beyond_memory(f"a sparse matrix of {rows} x {columns} as an array", 4 * rows * columns)
    with np.errstate(over="ignore"):
        return matrix.astype(np.float32).toarray()


def features_of(matrix: sp.csr_array, path: Path) -> np.ndarray | sp.csr_array:
    """Converts a sparse matrix from a file to features, dense unless few entries are non-zero."""
    rows, columns = (int(size) for size in matrix.shape or ())
    if np.count_nonzero(matrix.data) >= _SPARSE_BELOW * rows * columns:
        return dense(matrix)
    # Each column has an entry in arrays of a device, and a row in the parameters of a model.
    most = largest_expansion(path)
    if 4 * columns > most:
        raise ValueError(
            f"a sparse matrix of {rows} x {columns} with {matrix.nnz} entries; expected at most "
            f"{most // 4} columns of a file of {path.stat().st_size} bytes"
        )
    return matrix


def opened(path: Path) -> IO[bytes]:
    """Opens a file, and decompresses it up to a limit if it is compressed by gzip."""
    with path.open("rb") as stream:
        packed = stream.read(len(_GZIP)) == _GZIP
    # A file that is named .gz but not compressed gets gzip's error.
    if packed or path.suffix == ".gz":
        return io.BufferedReader(_Bounded(cast(IO[bytes], gzip.open(path)), path), _BUFFER)
    return path.open("rb")


class _Bounded(io.RawIOBase):
    def __init__(self, stream: IO[bytes], path: Path) -> None:
        self._stream, self._path, self._done = stream, path, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore
        content = self._stream.read(len(buffer))
        self._done += len(content)
        check_expansion(self._path, self._done)
        buffer[: len(content)] = content
        return len(content)

    def close(self) -> None:
        self._stream.close()
        super().close()
