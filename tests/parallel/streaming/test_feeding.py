"""Loads that run ahead, writes that run behind, and the buffers between them."""

import threading

import pytest

from jaxgraph.parallel.streaming.feeding import Feed, Threads, Writer


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
