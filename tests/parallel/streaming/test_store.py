"""Arrays of parts in memory and in files."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import numpy as np
import pytest

from jaxgraph.parallel.streaming.store import FileStore, MemoryStore


@pytest.fixture(params=["memory", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryStore:
    return MemoryStore() if request.param == "memory" else FileStore(tmp_path)


def rows(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_arrays_come_back(store: MemoryStore) -> None:
    for part in range(3):
        store.put("x", part, rows(part, 1000, 3))
    store.put("x", 1, rows(7, 1000, 3))
    store.put("empty", 0, rows(0, 0, 3))
    store.put("number", 0, np.asarray(5, np.int32))
    for part, seed in enumerate((0, 7, 2)):
        np.testing.assert_array_equal(store.get("x", part), rows(seed, 1000, 3))
    assert store.get("empty", 0).shape == (0, 3)
    assert store.get("number", 0) == 5 and store.get("number", 0).dtype == np.int32


def test_rows_are_added_to(store: MemoryStore) -> None:
    held, few = rows(0, 50, 2), np.array([3, 40, 7])
    frozen = held.copy()
    frozen.flags.writeable = False  # as an array of JAX is
    store.put("x", 0, frozen)
    store.add("x", 0, few, rows(1, 3, 2), held)
    store.add("x", 0, None, held, held)
    expected = 2 * held
    expected[few] += rows(1, 3, 2)
    np.testing.assert_allclose(store.get("x", 0), expected, rtol=1e-6)


def test_an_array_that_was_dropped_is_read_until_its_room_is_used_again(store: MemoryStore) -> None:
    store.put("x", 0, rows(0, 50, 2))
    read = store.get("x", 0)
    store.drop("x", 0)
    assert not store.has("x", 0)
    store.put("y", 0, rows(1, 50, 2))
    np.testing.assert_array_equal(read, rows(0, 50, 2))


def open_files(folder: Path) -> int:
    """Files of a folder that this process holds open, with names or without."""
    links = Path("/proc/self/fd").iterdir()
    return sum(folder in link.readlink().parents for link in links if link.is_symlink())


def test_files_have_no_names_and_take_turns(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    for key in range(20):
        store.put(key, 0, rows(key, 50, 2))
        store.drop(key, 0)
        store.recycle()
    assert open_files(tmp_path) == 1
    assert not list(tmp_path.iterdir())
    del store
    gc.collect()
    assert not open_files(tmp_path)


def test_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = FileStore(tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="has no room for 4,096 bytes more") as caught:
        store.put("x", 0, rows(0, 5))
    assert caught.value.errno == errno.ENOSPC
    assert not store.has("x", 0)
