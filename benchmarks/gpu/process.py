"""Workers seen from outside: lines with a time limit, and a new worker if one dies."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

__all__ = ["PATIENCE", "run_tasks", "start_worker", "wait_for_graph"]

PATIENCE = 150.0
"""Seconds without a line after which a worker is given up."""

_VARIABLES = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_CPP_MIN_LOG_LEVEL": "2"}
"""Leave memory for torch."""


def start_worker(command: Sequence[str]) -> subprocess.Popen[str]:
    """Starts a worker, which places its graph and waits for its turn."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | _VARIABLES,
    )


def wait_for_graph(worker: subprocess.Popen[str]) -> dict[str, Any]:
    """The first object of a worker, written once it has placed its graph; empty if it has ended."""
    assert worker.stdout is not None
    return next((json.loads(line) for line in worker.stdout if line.startswith("{")), {})


def run_tasks(
    command: Callable[[Sequence[int]], Sequence[str]],
    tasks: Sequence[int],
    deadline: float,
    patience: float = PATIENCE,
    first: subprocess.Popen[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Runs tasks on workers; one that dies or stops is replaced, without the task that it ran.

    Args:
      command: makes the command that starts a worker for some tasks.
      tasks: all of them.
      deadline: time of `time.monotonic` after which nothing is awaited.
      patience: like `PATIENCE`.
      first: a waiting worker for all tasks; None: one is started.

    Yields:
      The objects of the workers, and {"failed": task, "reason": ...} for a task that was not done.
    """
    left = list(tasks)
    while left:
        current: int | None = None
        reason = ""
        worker, first = first or start_worker(command(left)), None
        for line in _lines(worker, deadline, patience):
            if "reason" in line:
                reason = line["reason"]
                break
            if "begin" in line:
                left = left[left.index(line["begin"]) + 1 :]
                current = line["begin"]
            yield line
        if not reason:
            return
        if current is not None:
            yield {"failed": current, "reason": reason}
        if current is None or time.monotonic() >= deadline:
            # It did not reach its first task, and would not the next time.
            yield from ({"failed": task, "reason": reason} for task in left)
            return


def _lines(
    process: subprocess.Popen[str], deadline: float, patience: float
) -> Iterator[dict[str, Any]]:
    """The objects of a process, and {"reason": ...} where it did not end well."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as turn:
        turn.write("\n")
    found: queue.Queue[str | None] = queue.Queue()
    errors: list[str] = []
    readers = [
        threading.Thread(target=_read, args=(process.stdout, found.put), daemon=True),
        threading.Thread(target=_read, args=(process.stderr, errors.append), daemon=True),
    ]
    for reader in readers:
        reader.start()
    try:
        while True:
            wait = min(patience, deadline - time.monotonic())
            try:
                line = found.get(timeout=max(wait, 0))
            except queue.Empty:
                is_over = time.monotonic() >= deadline
                yield {"reason": "time is up" if is_over else f"no answer in {patience:.0f} s"}
                return
            if line is None:
                break
            # Libraries print to standard output as well.
            if line.startswith("{"):
                yield json.loads(line)
        if process.wait():
            readers[1].join()
            said = next((text.strip() for text in reversed(errors) if text and text.strip()), "")
            yield {"reason": f"the worker ended with {process.returncode}: {said[:200]}"}
    finally:
        process.kill()
        process.wait()
        for reader in readers:
            reader.join()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _read(stream: Any, put: Callable[[str | None], None]) -> None:
    for line in stream:
        put(line)
    put(None)
