"""A process of one library, started by `benchmarks.cpu.process`, which answers requests.

It imports neither jax nor jaxgraph unless that is the library: peers may be installed in another
environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cpu import resident
from benchmarks.cpu.inputs import Data
from benchmarks.cpu.tasks import Task

DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl."""

PACKAGES = ("jax", "jaxlib", "flax", "optax", "dgl", "torch_geometric", "torch", "scipy", "numpy")


@dataclass(frozen=True)
class Prepared:
    """A task that is ready to be timed.

    Attributes:
      results: computes the results that libraries are compared by, by name. Called once, before
        `run`; for training it makes the first steps.
      run: does the task once; returns when it is done and none of its outputs is held.
      path: the chosen variant of the library, for the report.
      compile_seconds: time of compilation, where the library compiles.
    """

    results: Callable[[], Mapping[str, np.ndarray]]
    run: Callable[[], object]
    path: str = ""
    compile_seconds: float | None = None


class Session:
    """The state of a worker between requests: a library, a graph and a task.

    Each method is a request. A library's module has a class `Library`: `load` takes a graph;
    `lay_out` makes the formats of the graph that a task needs, and raises NotImplementedError where
    the library has no such task; `prepare` makes inputs, compiles, and makes all choices.
    """

    _library: Any
    _prepared: Prepared

    def start(
        self, library: str, options: Mapping[str, Any], jaxgraph: str | None
    ) -> dict[str, str]:
        """Imports a library, jaxgraph from another folder if one is given; returns versions."""
        if jaxgraph is not None:
            sys.path.insert(0, jaxgraph)
        module = importlib.import_module(f"benchmarks.cpu.libraries.{library}_library")
        self._library = module.Library(**options)
        # Imported objects stay: garbage collections, one or more per task, ignore them.
        gc.collect()
        gc.freeze()
        versions = {}
        for name in PACKAGES:
            if name in sys.modules:
                with contextlib.suppress(PackageNotFoundError):
                    versions[name] = version(name)
        return versions

    def load(self, data: Data) -> None:
        """Loads a graph."""
        self._library.load(data)

    def prepare(self, task: Task) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Prepares a task; returns its results, and what one run of it takes.

        "memory": peak resident bytes above those with the graph alone, None where the system does
        not report them.
        """
        self._library.lay_out(task)
        resident.settle()
        loaded = resident.resident_bytes()
        self._prepared = self._library.prepare(task)
        results = dict(self._prepared.results())
        resident.settle()
        is_known = resident.reset_peak()
        (seconds,) = self.run(1, rehearse=False)
        return results, {
            "seconds": seconds,
            "path": self._prepared.path,
            "compile_seconds": self._prepared.compile_seconds,
            "memory": max(resident.peak_bytes() - loaded, 0) if is_known else None,
        }

    def run(self, repeats: int, rehearse: bool = True, clock: str = "perf_counter") -> list[float]:
        """Seconds of runs, after one that is not counted: caches hold other libraries' data.

        They are of a clock of `time`; "process_time" adds up all threads.
        """
        gc.disable()
        try:
            if rehearse:
                self._prepared.run()
            return [self._timed(clock) for _ in range(repeats)]
        finally:
            gc.enable()

    def release(self) -> None:
        """Forgets the task."""
        vars(self).pop("_prepared", None)
        gc.collect()

    def _timed(self, clock: str) -> float:
        now = getattr(time, clock)
        start = now()
        self._prepared.run()
        return now() - start


def serve(session: object, descriptor: int) -> None:
    """Answers requests on a connection, (method of a session, arguments), until it ends.

    An answer is ("done", value), ("refused", reason) where the library has no such task, or
    ("failed", reason): the worker continues with the next request.
    """
    if sys.platform == "linux":
        # A stopped process would not notice that its requests have ended.
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    connection = Connection(descriptor)
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = "done", getattr(session, name)(*arguments)
        except NotImplementedError as reason:
            answer = "refused", str(reason)
        except Exception as error:
            answer = "failed", f"{type(error).__name__}: {error}".partition("\n")[0]
        connection.send(answer)


def main(threads: int, memory_limit: int, descriptor: int) -> None:
    """Limits this process to some cores and bytes, and serves."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
        # If memory still runs out, a worker is killed, and no other process.
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_DATA, (memory_limit, memory_limit))
    serve(Session(), descriptor)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
