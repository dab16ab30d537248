"""Arrays from npy and npz files; headers do not decide how much memory is reserved."""

from __future__ import annotations

import math
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from jaxgraph.datasets.files import AmbiguousFileError, BrokenFileError, reading
from jaxgraph.datasets.limits import check_expansion
from jaxgraph.datasets.untrusted import unpickled

__all__ = ["check_pairs", "load_npy", "load_npz"]

_SUFFIX = ".npy"
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 1
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
    # Differs in the encoding of field names only, which no array here has.
    (3, 0): np.lib.format.read_array_header_2_0,
}


def load_npy(path: Path) -> np.ndarray:
    """Reads an npy file of numbers or texts.

    Args:
        path: the file.

    Returns:
        The array.

    Raises:
        ValueError: the file is broken, or holds objects.
    """
    with reading(path, "an npy file"), path.open("rb") as stream:
        value = _array(stream, path.stat().st_size, path)
        if not isinstance(value, np.ndarray) or value.dtype == object:
            raise ValueError("it holds objects; expected numbers")
        return value


def check_pairs(shape: tuple[int, ...], read: Callable[[], np.ndarray]) -> None:
    """Refuses an array that is no list of edges, or that may be two different ones.

    Args:
        shape: of the array.
        read: returns the array.

    Raises:
        AmbiguousFileError: both rows and columns may be edges.
        BrokenFileError: neither may be.
    """
    if len(shape) != 2 or 2 not in shape:
        raise BrokenFileError(f"has shape {list(shape)}; expected [num_edges, 2] or [2, num_edges]")
    other = "two edges with their weights" if shape == (2, 3) else "edges"
    if shape == (2, 3) or (shape == (2, 2) and (read() != read().T).any()):
        raise AmbiguousFileError(
            f"has shape {list(shape)}, so that rows may be {other}, or senders and receivers. "
            "np.savez(path, senders=..., receivers=...) writes an npz file that says it, with "
            "edge_weight=... if there are weights; three edges without weights have shape [3, 2]"
        )


def load_npz(path: Path) -> Mapping[str, Any]:
    """Opens an npz file; its object arrays may hold any data of ``load_pickles``.

    Members are read on access; the others may hold anything.

    Args:
        path: the file.

    Returns:
        Arrays by name; a zero-dimensional object array is replaced by the object it holds. Reading
        one raises a ValueError if it is broken, or if a pickle inside asks for any other type.

    Raises:
        ValueError: the file is broken or truncated, or its members are far larger than the file.
    """
    with reading(path, "an npz archive"), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        check_expansion(path, sum(member.file_size for member in members))
        names = [member.filename.removesuffix(_SUFFIX) for member in members]
        if len(set(names)) != len(names):
            raise ValueError("two members have the same name")
        return _Npz(path, dict(zip(names, members, strict=True)))


class _Npz(Mapping[str, Any]):
    def __init__(self, path: Path, members: dict[str, zipfile.ZipInfo]) -> None:
        self._path = path
        self._members = members

    def __getitem__(self, name: str) -> Any:
        member, path = self._members[name], self._path
        with reading(path, "an npz archive"):
            if member.compress_type not in _METHODS or member.flag_bits & _ENCRYPTED:
                raise ValueError(f"{name} is encrypted, or compressed by an unsupported method")
            with zipfile.ZipFile(path) as archive, archive.open(member) as stream:
                return _array(stream, member.file_size, path)

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


def _array(stream: IO[bytes], num_bytes: int, path: Path) -> Any:
    """Reads one array from a stream of so many bytes."""
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"an array in version {version} of the npy format")
    with warnings.catch_warnings():
        # numpy warns of sizes with an L, as Python 2 wrote them.
        warnings.simplefilter("ignore", UserWarning)
        shape, fortran, dtype = _HEADERS[version](stream)
    # Read past the end: an archive compares its checksum only there.
    content = stream.read(num_bytes + 1)
    if dtype.hasobject:
        return unpickled(content, path)
    return _checked(dtype, shape, fortran, content)


def _checked(dtype: np.dtype, shape: tuple[int, ...], fortran: bool, content: bytes) -> Any:
    """A view of bytes of a file as an array, whose header is not believed."""
    if dtype.names is not None or dtype.subdtype is not None or dtype.kind not in "biufSU":
        raise ValueError(f"an array of {dtype}; expected numbers")
    expected = math.prod(shape) * dtype.itemsize
    if not dtype.itemsize or min(shape, default=0) < 0 or expected != len(content):
        raise ValueError(
            f"an array of shape {list(shape)} and type {dtype} with {len(content)} bytes; expected "
            f"{expected}"
        )
    flat = np.frombuffer(content, np.uint8)
    # Compiled code expects 0 or 1 in a boolean.
    if dtype.kind == "b" and flat.size and flat.max() > 1:
        raise ValueError("an array of booleans with other values than 0 and 1")
    return flat.view(dtype).reshape(shape, order="F" if fortran else "C")
