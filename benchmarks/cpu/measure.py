"""Runs a task on workers in turns, and records time and memory."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from benchmarks.cpu.comparing import TOLERANCE, relative_error
from benchmarks.cpu.process import Worker, WorkerFailure, WorkerRefusal
from benchmarks.cpu.tasks import Task

MOST_REPEATS = 1000


@dataclass(frozen=True)
class Pace:
    """The rounds and seconds for which a task is measured.

    Attributes:
      rounds: rounds of all libraries in turn.
      seconds: seconds of one library, after which it has no further round.
      round_seconds: a shorter run is repeated to about this in every round.
    """

    rounds: int
    seconds: float
    round_seconds: float = 0.1


@dataclass
class Measurement:
    """Times, memory and error of one library for one task on one graph.

    Attributes:
      graph, contestant: names.
      task: the task.
      seconds: seconds of one run, one number per round, the median of the round.
      ratio: its median over that of the first contestant that did the task.
      error: relative, against the first contestant that did the task; None for that one.
      memory: peak resident bytes above the loaded graph, where the system reports them.
      path: the chosen variant of the library.
      compile_seconds: time of compilation, where the library compiles.
      failure: why there are no times, "" where there are.
    """

    graph: str
    task: Task
    contestant: str
    seconds: list[float] = field(default_factory=list)
    ratio: float | None = None
    error: float | None = None
    memory: int | None = None
    path: str = ""
    compile_seconds: float | None = None
    failure: str = ""

    @property
    def median(self) -> float | None:
        """Median seconds of its rounds."""
        return statistics.median(self.seconds) if self.seconds and not self.failure else None


def measure_task(
    workers: Mapping[str, Worker],
    graph: str,
    task: Task,
    pace: Pace,
    left_out: Collection[str] = (),
) -> list[Measurement]:
    """Compares the results of all workers that have a task, then times them in turns.

    A worker whose results are not those of the first is not timed.
    """
    found: list[Measurement] = []
    firsts: dict[str, float] = {}
    expected: Mapping[str, np.ndarray] | None = None
    for name in workers:
        if name in left_out:
            continue
        row = Measurement(graph, task, name)
        try:
            results, taken = workers[name].request("prepare", task)
        except WorkerRefusal:
            continue
        except WorkerFailure as reason:
            row.failure = str(reason)
        else:
            firsts[name] = taken["seconds"]
            row.path, row.memory = taken["path"], taken["memory"]
            row.compile_seconds = taken["compile_seconds"]
            if expected is None:
                expected = results
            else:
                row.error = relative_error(results, expected)
                if row.error > TOLERANCE:
                    row.failure = f"wrong: off by {row.error:.1e}"
        found.append(row)
    for _ in range(pace.rounds):
        for row in found:
            if not row.failure and sum(row.seconds) < pace.seconds:
                _round(workers[row.contestant], row, firsts[row.contestant], pace)
    for worker in workers.values():
        try:
            worker.request("release")
        except WorkerFailure:
            continue  # its failure is in a row
    return found


def _round(worker: Worker, row: Measurement, first: float, pace: Pace) -> None:
    """One round; the first run alone where that takes all the time."""
    if first > pace.seconds:
        row.seconds.append(first)
        return
    shortest = min([first, *row.seconds])
    repeats = min(max(round(pace.round_seconds / max(shortest, 1e-9)), 1), MOST_REPEATS)
    try:
        row.seconds.append(statistics.median(worker.request("run", repeats)))
    except WorkerFailure as reason:
        row.failure = str(reason)
