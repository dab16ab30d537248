"""Arrays of parts on the host, in memory or in files."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np

_PAGE = mmap.ALLOCATIONGRANULARITY


class MemoryStore:
    """Arrays by key and part in memory; those of one key have one shape and type."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[Hashable, int], np.ndarray] = {}
        self._lock = threading.Lock()

    def put(self, key: Hashable, part: int, values: np.ndarray) -> None:
        """Holds an array, in place of an earlier one."""
        self._arrays[key, part] = values

    def get(self, key: Hashable, part: int) -> np.ndarray:
        """The array, not to be written to."""
        return self._arrays[key, part]

    def _writable(self, key: Hashable, part: int) -> np.ndarray:
        """The array, to be written to."""
        held = self._arrays[key, part]
        if not held.flags.writeable:  # It belongs to a JAX array.
            held = self._arrays[key, part] = held.copy()
        return held

    def add(
        self, key: Hashable, part: int, rows: np.ndarray | None, values: np.ndarray, like: Any
    ) -> None:
        """Adds the first of some values to rows of an array, each listed once; None: to all.

        An array that is not held is zero, of the shape and type of `like`.
        """
        if rows is None and not self.has(key, part):
            self.put(key, part, values)
            return
        if not self.has(key, part):
            self.put(key, part, np.zeros(like.shape, like.dtype))
        with self._lock:
            held = self._writable(key, part)
            if rows is None:
                held += values
            else:
                held[rows] += values[: len(rows)]

    def has(self, key: Hashable, part: int) -> bool:
        """True where an array is held."""
        return (key, part) in self._arrays

    def drop(self, key: Hashable, part: int) -> None:
        """Forgets an array, if it is held; it can still be read until `recycle`."""
        self._arrays.pop((key, part), None)

    def recycle(self) -> None:
        """Lets the room of arrays that were dropped be used again."""

    def empty(self) -> MemoryStore:
        """A new store of this kind."""
        return MemoryStore()

    def close(self) -> None:
        """Forgets everything."""
        self._arrays.clear()


class _File:
    """A file without a name, which ends with the process: rooms of one size, one for each part."""

    def __init__(self, folder: Path, stride: int) -> None:
        self.stride = stride
        self.file: Any = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115, it outlives this call
        self._roomy: set[int] = set()
        weakref.finalize(self, self.file.close)

    def write(self, part: int, values: np.ndarray) -> None:
        flat: Any = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        view, at = memoryview(flat), 0
        if part not in self._roomy:
            # A full disk is an error here, and would end the process at a map.
            os.posix_fallocate(self.file.fileno(), part * self.stride, self.stride)
            self._roomy.add(part)
        while at < len(view):
            at += os.pwrite(self.file.fileno(), view[at:], part * self.stride + at)

    def mapped(self, part: int, *, writable: bool = False) -> mmap.mmap:
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        held = mmap.mmap(self.file.fileno(), self.stride, access=access, offset=part * self.stride)
        with contextlib.suppress(OSError):
            held.madvise(mmap.MADV_WILLNEED)
        return held


@dataclasses.dataclass(frozen=True, eq=False)
class _Arrays:
    """The arrays of one key, in a file.

    Attributes:
      file: the file.
      shape, dtype: of each array.
      parts: those that are held.
    """

    file: _File
    shape: tuple[int, ...]
    dtype: np.dtype
    parts: set[int] = dataclasses.field(default_factory=set)

    def array(self, part: int, *, writable: bool = False) -> np.ndarray:
        count = math.prod(self.shape)
        held = self.file.mapped(part, writable=writable)
        return np.frombuffer(held, self.dtype, count).reshape(self.shape)


class FileStore(MemoryStore):
    """A store in files of a folder, which have no names: nothing is left when the process ends.

    Args:
      folder: where the files are.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._held: dict[Hashable, _Arrays] = {}
        self._dropped: list[_File] = []
        # To end a file takes longer than to write to it: those of one size take turns.
        self._free: dict[int, list[_File]] = {}
        self._lock = threading.Lock()

    def put(self, key: Hashable, part: int, values: np.ndarray) -> None:
        """See `MemoryStore.put`."""
        values = np.asarray(values)
        with self._lock:
            held = self._held.get(key)
            if held is None:
                held = _Arrays(self._file(values.nbytes), values.shape, values.dtype)
                self._held[key] = held
        try:
            held.file.write(part, values)
        except OSError as error:
            raise OSError(
                error.errno,
                f"{os.strerror(error.errno or 0)}: {self.folder} has no room for "
                f"{held.file.stride:,} bytes more of a streamed graph; free some, or name another "
                "folder",
            ) from error
        held.parts.add(part)

    def _file(self, size: int) -> _File:
        stride = max(-(-size // _PAGE), 1) * _PAGE
        free = self._free.get(stride)
        return free.pop() if free else _File(self.folder, stride)

    def get(self, key: Hashable, part: int) -> np.ndarray:
        """See `MemoryStore.get`."""
        return self._held[key].array(part)

    def _writable(self, key: Hashable, part: int) -> np.ndarray:
        return self._held[key].array(part, writable=True)

    def has(self, key: Hashable, part: int) -> bool:
        """See `MemoryStore.has`."""
        return key in self._held and part in self._held[key].parts

    def drop(self, key: Hashable, part: int) -> None:
        """See `MemoryStore.drop`."""
        with self._lock:
            held = self._held.get(key)
            if held is not None:
                held.parts.discard(part)
                if not held.parts:
                    self._dropped.append(self._held.pop(key).file)

    def recycle(self) -> None:
        """See `MemoryStore.recycle`."""
        with self._lock:
            for file in self._dropped:
                self._free.setdefault(file.stride, []).append(file)
            self._dropped.clear()

    def empty(self) -> FileStore:
        """See `MemoryStore.empty`; files of this store serve the other."""
        other = FileStore(self.folder)
        other._free = self._free
        return other

    def close(self) -> None:
        """See `MemoryStore.close`."""
        self._dropped += [held.file for held in self._held.values()]
        self._held.clear()
        self.recycle()
