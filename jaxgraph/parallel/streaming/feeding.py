"""Loads that run ahead of the programs that read them, and writes that run behind."""

from __future__ import annotations

import math
import mmap
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import jax
import numpy as np

Load = Callable[[], Any]
_DONE = object()


class Threads:
    """The threads of a streamed graph: one loads, one writes.

    They start before the first run: a thread's stack may find no room later, and the C library may
    give each new thread a heap of its own.
    """

    def __init__(self) -> None:
        self.loading, self.writing = (ThreadPoolExecutor(1) for _ in range(2))

    def start(self) -> None:
        """Starts both."""
        for each in (self.loading, self.writing):
            each.submit(int).result()


class Feed:
    """Results of loads, in order; a thread runs a few of them ahead.

    Args:
      loads: functions without arguments.
      ahead: how many results may wait.
      thread: runs one feed after another.
    """

    def __init__(self, loads: Iterable[Load], ahead: int, thread: ThreadPoolExecutor) -> None:
        self._results: queue.Queue[Any] = queue.Queue(maxsize=max(ahead, 1))
        self._stopped = threading.Event()
        self._loads, self._thread = loads, thread

    def _run(self, loads: Iterable[Load]) -> None:
        try:
            for load in loads:
                if not self._put((load(), None)):
                    return
        except BaseException as error:
            self._put((None, error))
            return
        self._put((_DONE, None))

    def _put(self, result: Any) -> bool:
        while not self._stopped.is_set():
            try:
                self._results.put(result, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def take(self) -> Any:
        """The next result."""
        value, error = self._results.get()
        if error is not None:
            raise error
        assert value is not _DONE, "more results are taken than loads were given"
        return value

    def __enter__(self) -> Feed:
        try:
            self._running = self._thread.submit(self._run, self._loads)
        except BaseException:  # Ctrl-C while it starts: nobody would end it.
            self._stopped.set()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        self._stopped.set()
        wait([self._running])


class Packing:
    """Buffers for rows on their way to a device, which are used again once they were read.

    A device on the host may read a buffer in place: it is free when the program that reads it has
    ended.

    Args:
      in_flight: how many programs may be unfinished.
    """

    def __init__(self, in_flight: int) -> None:
        self.in_flight = in_flight
        self._free: dict[Any, list[np.ndarray]] = {}
        self._running: deque[tuple[Any, list[np.ndarray]]] = deque()
        self._lock = threading.Lock()

    def rows(self, values: Any, rows: np.ndarray, room: int) -> np.ndarray:
        """[room, ...]: some rows, then any values."""
        values = np.asarray(values)
        shape, dtype = (room, *values.shape[1:]), values.dtype
        with self._lock:
            held = self._free.get((shape, dtype.str))
            found = held.pop() if held else None
        if found is None:
            found = _aligned(shape, dtype)
        if len(rows):
            np.take(values, rows, axis=0, out=found[: len(rows)], mode="clip")
        return found

    def read_by(self, token: jax.Array, buffers: list[np.ndarray]) -> None:
        """Says that a program reads buffers, and waits while too many programs run."""
        self._running.append((token, buffers))
        while len(self._running) > self.in_flight:
            self._finish_one()

    def _finish_one(self) -> None:
        token, buffers = self._running.popleft()
        jax.block_until_ready(token)
        with self._lock:
            for buffer in buffers:
                self._free.setdefault((buffer.shape, buffer.dtype.str), []).append(buffer)

    def finish(self) -> None:
        """Waits for all programs."""
        while self._running:
            self._finish_one()


class Writer:
    """Writes results of programs to the host in a thread, in order.

    Args:
      behind: how many writes may be unfinished.
      thread: runs one write after another.
    """

    def __init__(self, behind: int, thread: ThreadPoolExecutor) -> None:
        self._behind, self._thread = behind, thread
        self._pending: deque[Future[None]] = deque()

    def submit(self, write: Callable[[], None]) -> None:
        """Runs a write later; raises what an earlier one raised."""
        self._pending.append(self._thread.submit(write))
        while len(self._pending) > self._behind:
            self._pending.popleft().result()

    def finish(self) -> None:
        """Waits for all writes."""
        while self._pending:
            self._pending.popleft().result()

    def close(self) -> None:
        """Waits for the write that runs, and drops the others."""
        for write in self._pending:
            write.cancel()
        wait(self._pending)


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros on pages of their own, which a device of the host reads in place, instead of a copy.

    With 16 parts an epoch took 5.8 s of processor time instead of 6.7. The pages return to the
    system with the array; the C library may keep what it freed.
    """
    count = math.prod(shape)
    memory = mmap.mmap(-1, max(count * dtype.itemsize, 1))
    return np.frombuffer(memory, dtype, count).reshape(shape)
