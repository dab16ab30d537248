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
        self._arrays: dict[tuple[Hashable, int], Any] = {}
        self._lock = threading.Lock()

    def put(self, key: Hashable, part: int, values: Any) -> None:
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
    """A file without a name, which ends with the process, of rooms of one size.

    To end a file takes longer than to write to it: rooms that are free are used again.
    """

    def __init__(self, folder: Path, stride: int) -> None:
        self._file: Any = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115, it outlives this call
        self._stride, self._rooms, self.free = stride, 0, list[int]()
        weakref.finalize(self, self._file.close)

    def room(self) -> int:
        """The number of a room that is free."""
        if not self.free:
            # A full disk is an error here, and would end the process at a map.
            os.posix_fallocate(self._file.fileno(), self._rooms * self._stride, self._stride)
            self.free.append(self._rooms)
            self._rooms += 1
        return self.free.pop()

    def write(self, room: int, values: np.ndarray) -> None:
        flat: Any = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        view, at = memoryview(flat), 0
        while at < len(view):
            at += os.pwrite(self._file.fileno(), view[at:], room * self._stride + at)

    def mapped(self, room: int, *, writable: bool) -> mmap.mmap:
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        at, size = room * self._stride, self._stride
        held = mmap.mmap(self._file.fileno(), size, access=access, offset=at)
        with contextlib.suppress(OSError):
            held.madvise(mmap.MADV_WILLNEED)
        return held


@dataclasses.dataclass(frozen=True, eq=False)
class _Array:
    """An array in a room of a file."""

    file: _File
    room: int
    shape: tuple[int, ...]
    dtype: np.dtype

    def read(self, *, writable: bool = False) -> np.ndarray:
        held = self.file.mapped(self.room, writable=writable)
        return np.frombuffer(held, self.dtype, math.prod(self.shape)).reshape(self.shape)


class FileStore(MemoryStore):
    """A store in files of a folder, which have no names: nothing is left when the process ends.

    Args:
      folder: where the files are.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__()
        self.folder = Path(folder)
        self._files: dict[int, _File] = {}
        self._dropped: list[_Array] = []

    def put(self, key: Hashable, part: int, values: np.ndarray) -> None:
        """See `MemoryStore.put`."""
        values = np.asarray(values)
        stride = max(-(-values.nbytes // _PAGE), 1) * _PAGE
        try:
            with self._lock:
                held = self._arrays.get((key, part)) or self._new(stride, values)
            held.file.write(held.room, values)
        except OSError as error:
            raise OSError(
                error.errno,
                f"{os.strerror(error.errno or 0)}: {self.folder} has no room for {stride:,} bytes "
                "more of a streamed graph; free some, or name another folder",
            ) from error
        self._arrays[key, part] = held

    def _new(self, stride: int, values: np.ndarray) -> _Array:
        if stride not in self._files:
            self._files[stride] = _File(self.folder, stride)
        file = self._files[stride]
        return _Array(file, file.room(), values.shape, values.dtype)

    def get(self, key: Hashable, part: int) -> np.ndarray:
        """See `MemoryStore.get`."""
        return self._arrays[key, part].read()

    def _writable(self, key: Hashable, part: int) -> np.ndarray:
        return self._arrays[key, part].read(writable=True)

    def drop(self, key: Hashable, part: int) -> None:
        """See `MemoryStore.drop`."""
        held = self._arrays.pop((key, part), None)
        if held is not None:
            self._dropped.append(held)

    def recycle(self) -> None:
        """See `MemoryStore.recycle`."""
        with self._lock:
            while self._dropped:
                held = self._dropped.pop()
                held.file.free.append(held.room)

    def empty(self) -> FileStore:
        """See `MemoryStore.empty`; files of this store serve the other."""
        other = FileStore(self.folder)
        other._files, other._lock = self._files, self._lock
        return other

    def close(self) -> None:
        """See `MemoryStore.close`."""
        self._dropped += self._arrays.values()
        self._arrays.clear()
        self.recycle()
