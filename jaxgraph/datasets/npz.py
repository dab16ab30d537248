"""Arrays from npy and npz files; headers do not decide how much memory is reserved."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxgraph.datasets.file_rows import check_size, read_header
from jaxgraph.datasets.files import AmbiguousFileError, BrokenFileError, reading
from jaxgraph.datasets.limits import check_expansion
from jaxgraph.datasets.untrusted import unpickled


def check_pairs(shape: tuple[int, ...], read: Callable[[], np.ndarray]) -> None:
    """Refuses an array that is no list of edges, or that may be two different ones."""
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
    """
    with reading(path, "an npz archive"), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        check_expansion(path, sum(member.file_size for member in members))
        names = [member.filename.removesuffix(".npy") for member in members]
        if len(set(names)) != len(names):
            raise ValueError("two members have the same name")
        return _Npz(path, dict(zip(names, members, strict=True)))


class _Npz(Mapping[str, Any]):
    def __init__(self, path: Path, members: dict[str, zipfile.ZipInfo]) -> None:
        self._path, self._members = path, members

    def __getitem__(self, name: str) -> Any:
        member = self._members[name]
        with reading(self._path, "an npz archive"), zipfile.ZipFile(self._path) as archive:
            with archive.open(member) as stream:
                shape, by_column, dtype = read_header(stream)
                # Read past the end: an archive compares its checksum only there.
                content = stream.read(member.file_size + 1)
            if dtype.hasobject:
                return unpickled(content, self._path)
            return _array(shape, by_column, dtype, content)

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


def _array(shape: tuple[int, ...], by_column: bool, dtype: np.dtype, content: bytes) -> np.ndarray:
    """A view of bytes of a file as an array, whose header is not believed."""
    check_size(shape, dtype, len(content))
    found = np.frombuffer(content, dtype).reshape(shape, order="F" if by_column else "C")
    # Compiled code expects 0 or 1 in a boolean.
    return found.view(np.uint8) != 0 if dtype.kind == "b" else found
