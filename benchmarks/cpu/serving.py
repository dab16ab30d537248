"""The worker's side: answers requests, one JSON object per line, until told to stop."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from benchmarks.cpu import resident
from benchmarks.cpu.inputs import read_data
from benchmarks.cpu.libraries.interface import Library, Prepared
from benchmarks.cpu.tasks import from_json

__all__ = ["Answer", "Session", "answer_requests", "failure"]

Answer = Callable[[Mapping[str, Any]], dict[str, Any]]


class Session:
    """The state of a worker between requests: a library, a graph and a task.

    Every method but `answer` is a command of the protocol; its arguments are those of the request.

    Args:
      library: the library whose tasks are timed.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._prepared: Prepared | None = None

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answers a request.

        Args:
          request: {"command": name, ...arguments}.

        Returns:
          The result of the command, or {"refused": reason} where the library has no such task, or
          {"failed": error}.
        """
        arguments = dict(request)
        commands = {
            "greet": self.greet,
            "load": self.load,
            "prepare": self.prepare,
            "run": self.run,
            "release": self.release,
        }
        try:
            return commands[arguments.pop("command")](**arguments)
        except NotImplementedError as refusal:
            return {"refused": str(refusal)}
        except Exception as error:
            # The worker continues with the next task.
            return failure(error)

    def greet(self) -> dict[str, Any]:
        """The versions of the library."""
        return {"versions": dict(self._library.versions())}

    def load(self, path: str) -> dict[str, Any]:
        """Loads the graph of a file."""
        self.release()
        self._library.load(read_data(Path(path)))
        return {}

    def prepare(self, task: Mapping[str, Any], output: str) -> dict[str, Any]:
        """Prepares a task, writes its results to an .npz file, and measures one run.

        Returns:
          "seconds" of the run, "path" and "compile_seconds" of the task; resident bytes "loaded",
          with the graph alone, "before" the run, and the "peak" in it, None where the system does
          not report it.
        """
        self.release()
        wanted = from_json(task)
        self._library.lay_out(wanted)
        resident.settle()
        loaded = resident.resident_bytes()
        self._prepared = self._library.prepare(wanted)
        resident.settle()
        before = resident.resident_bytes()
        results: dict[str, Any] = dict(self._prepared.results())
        np.savez(output, **results)
        del results
        resident.settle()
        # The allocator may keep memory that a first run freed, for the next run.
        before = min(before, resident.resident_bytes())
        is_known = resident.reset_peak()
        (seconds,) = self.run(1, rehearse=False)["seconds"]
        return {
            "seconds": seconds,
            "path": self._prepared.path,
            "compile_seconds": self._prepared.compile_seconds,
            "loaded": loaded,
            "before": before,
            "peak": resident.peak_bytes() if is_known else None,
        }

    def run(self, repeats: int, rehearse: bool) -> dict[str, Any]:
        """Times the task; a rehearsal is not counted, as the caches hold other libraries' data.

        Returns:
          "seconds" of every counted run, and "spent" on all of them.
        """
        prepared = self._ready()
        gc.disable()
        try:
            rehearsal = _timed(prepared) if rehearse else 0.0
            seconds = [_timed(prepared) for _ in range(repeats)]
        finally:
            gc.enable()
        return {"seconds": seconds, "spent": rehearsal + sum(seconds)}

    def release(self) -> dict[str, Any]:
        """Forgets the task."""
        self._prepared = None
        gc.collect()
        return {}

    def _ready(self) -> Prepared:
        if self._prepared is None:
            raise ValueError("no task is prepared; send the command prepare first")
        return self._prepared


def failure(error: Exception) -> dict[str, Any]:
    """The reply for an error, in one line for the report."""
    first_line = next(iter(str(error).splitlines()), "")
    return {"failed": f"{type(error).__name__}: {first_line}"}


def _timed(prepared: Prepared) -> float:
    start = time.perf_counter()
    prepared.run()
    return time.perf_counter() - start


def answer_requests(answer: Answer, requests: IO[str], replies: IO[str]) -> None:
    """Answers every line of `requests` with a line of `replies`, to the end or "stop".

    Args:
      answer: like `Session.answer`.
      requests: JSON objects, one per line.
      replies: stream of the answers, one per line.
    """
    for line in requests:
        request = json.loads(line)
        if request["command"] == "stop":
            return
        replies.write(json.dumps(answer(request)) + "\n")
        replies.flush()
