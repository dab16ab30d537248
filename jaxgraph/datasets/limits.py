"""How much memory a file may ask for: a few bytes can name a large size."""

from __future__ import annotations

import contextlib
import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import scipy.sparse as sp

__all__ = ["check_expansion", "dense", "largest_expansion", "opened_text"]

_EXPANSION = 200
"""Times its size that a compressed file may expand to. Data sets of the field have up to 100."""
_ALWAYS_EXPANDED = 1 << 27
_DENSE_EXPANSION = 1000
_ALWAYS_DENSE = 1 << 32


def largest_expansion(path: Path) -> int:
    """Returns how many bytes a compressed file may expand to.

    Args:
        path: the file.

    Returns:
        A number of bytes.
    """
    return max(_ALWAYS_EXPANDED, _EXPANSION * path.stat().st_size)


def check_expansion(path: Path, num_bytes: int) -> None:
    """Checks how many bytes a compressed file expands to.

    Args:
        path: the file.
        num_bytes: what it expands to, or says that it does.

    Raises:
        ValueError: they are more than any data set has.
    """
    if num_bytes > largest_expansion(path):
        raise ValueError(
            f"{path.stat().st_size} bytes expand to {num_bytes} or more; if you trust the file, "
            "save its content without compression"
        )


def dense(matrix: sp.csr_array, path: Path) -> np.ndarray:
    """Makes a dense array of a sparse matrix from a file.

    Args:
        matrix: [rows, columns].
        path: the file.

    Returns:
        float32 [rows, columns].

    Raises:
        ValueError: the array would be out of proportion to the file.
    """
    rows, columns = (int(size) for size in matrix.shape or ())
    most = max(_ALWAYS_DENSE, _DENSE_EXPANSION * path.stat().st_size)
    if 4 * rows * columns > most:
        raise ValueError(
            f"a sparse matrix of {rows} x {columns} with {matrix.nnz} entries takes "
            f"{4 * rows * columns} bytes when it is dense; expected at most {most}"
        )
    with np.errstate(over="ignore"):
        return matrix.astype(np.float32).toarray()


@contextlib.contextmanager
def opened_text(path: Path) -> Iterator[IO[str]]:
    """Opens a text file, compressed if its suffix is ``.gz``, and bounds what it expands to.

    Args:
        path: the file.

    Returns:
        A stream of text in UTF-8; reading more than ``largest_expansion`` raises a ValueError.
    """
    if path.suffix != ".gz":
        with path.open(encoding="utf-8") as stream:
            yield stream
        return
    with (
        gzip.open(path, "rb") as raw,
        io.TextIOWrapper(io.BufferedReader(_Bounded(raw, path)), encoding="utf-8") as stream,
    ):
        yield stream


class _Bounded(io.RawIOBase):
    def __init__(self, stream: gzip.GzipFile, path: Path) -> None:
        self._stream, self._path, self._done = stream, path, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore
        content = self._stream.read(len(buffer))
        self._done += len(content)
        check_expansion(self._path, self._done)
        buffer[: len(content)] = content
        return len(content)
