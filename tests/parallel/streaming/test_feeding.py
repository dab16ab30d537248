"""Loads that run ahead, writes that run behind, and the buffers between them."""

import mmap
import threading
from typing import Any

import jax
import numpy as np
import pytest

from jaxgraph.parallel.streaming.feeding import Feed, Packing, Threads, Writer


@pytest.mark.parametrize("dtype", [np.float32, np.int8])
@pytest.mark.parametrize("room", [0, 2, 5])
def test_buffers_are_pages_of_their_own(dtype: Any, room: int) -> None:
    """Memory of the C library would stay with the process."""
    packing, values = Packing(1), np.arange(12, dtype=dtype).reshape(4, 3)
    found = packing.rows(values, np.array([3, 1])[:room], room)
    expected = np.array([[9, 10, 11], [3, 4, 5]], dtype)[:room]
    np.testing.assert_array_equal(found[:2], expected)
    assert found.shape == (room, 3) and found.dtype == dtype and not found[2:].any()
    owner: Any = found
    while isinstance(owner, np.ndarray):
        owner = owner.base
    assert isinstance(owner.obj if isinstance(owner, memoryview) else owner, mmap.mmap)


def test_a_buffer_is_used_again_after_its_program() -> None:
    packing, values = Packing(0), np.ones((4, 3), np.float32)
    first = packing.rows(values, np.array([0]), 2)
    assert packing.rows(values, np.array([0]), 2) is not first
    packing.read_by(jax.numpy.zeros(()), [first])
    assert packing.rows(values, np.array([0]), 2) is first


def test_runs_start_no_thread() -> None:
    threads = Threads()
    threads.start()
    before, used, written = threading.active_count(), set(), []

    def load() -> int:
        used.add(threading.get_ident())
        return threading.active_count()

    for _ in range(3):
        writer = Writer(2, threads.writing)
        with Feed([load] * 4, 1, threads.loading) as feed:
            for _ in range(3):
                assert feed.take() == before
                writer.submit(lambda: written.append(threading.get_ident()))
        writer.finish()
        writer.close()
    assert len(used) == 1 and len(set(written)) == 1 and len(written) == 9


def test_a_feed_that_is_left_early_ends() -> None:
    threads = Threads()
    with Feed([lambda: 1] * 9, 1, threads.loading) as feed:
        assert feed.take() == 1
    with Feed([lambda: 1 // 0], 1, threads.loading) as feed, pytest.raises(ZeroDivisionError):
        feed.take()


def test_writes_of_a_run_that_failed_are_dropped() -> None:
    threads, release, written = Threads(), threading.Event(), []
    writer = Writer(9, threads.writing)
    writer.submit(lambda: written.append(release.wait(10)))
    for _ in range(4):
        writer.submit(lambda: written.append(False))
    threading.Timer(0.05, release.set).start()
    writer.close()
    assert written == [True]
