"""Runs a task on workers in turns, and records time and memory."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.cpu.comparing import TOLERANCE, Expected, expected_of, relative_error
from benchmarks.cpu.crew import Crew
from benchmarks.cpu.inputs import Data
from benchmarks.cpu.plan import Pace
from benchmarks.cpu.process import Worker, WorkerFailure, WorkerRefusal
from benchmarks.cpu.reference import reference
from benchmarks.cpu.tasks import Task, to_json

__all__ = ["Measurement", "Memory", "measure_task", "repeats_per_round"]

MOST_REPEATS = 1000
PREPARE_TIMEOUT = 1800.0
PATIENCE = 2
"""Rounds that are tried per wanted round, where other processes disturb."""


@dataclass(frozen=True)
class Memory:
    """Resident bytes of a worker.

    Attributes:
      loaded: with the library and the formats of the graph.
      before: with the task's inputs and compiled programs too, before a run.
      peak: the most in a run; None where the system does not report it.
    """

    loaded: int
    before: int
    peak: int | None

    @property
    def above_loaded(self) -> int | None:
        """Bytes of the task: inputs, programs, temporaries and outputs."""
        return None if self.peak is None else max(self.peak - self.loaded, 0)

    @property
    def of_run(self) -> int | None:
        """Bytes of one run: temporaries and outputs."""
        return None if self.peak is None else max(self.peak - self.before, 0)


@dataclass
class Measurement:
    """Times, memory and error of one library for one task on one graph.

    Attributes:
      graph: name of the graph.
      task: the task.
      contestant: name of the contestant.
      seconds: seconds of one run, one number per round, the median of the round.
      disturbed: number of these rounds that other processes disturbed.
      error: of an op relative to its terms, against float64; else relative, against the first
        contestant that did the task, and None for that one.
      worst: the name of the array with that error.
      memory: None where the task failed before.
      path: the chosen variant of the library.
      compile_seconds: time of compilation, where the library compiles.
      failure: why there are no times, "" where there are.
    """

    graph: str
    task: Task
    contestant: str
    seconds: list[float] = field(default_factory=list)
    disturbed: int = 0
    error: float | None = None
    worst: str = ""
    memory: Memory | None = None
    path: str = ""
    compile_seconds: float | None = None
    failure: str = ""

    @property
    def is_wrong(self) -> bool:
        """True where the results differ from the expected ones by more than the tolerance."""
        return self.error is not None and not self.error <= TOLERANCE


def measure_task(
    crew: Crew,
    graph: str,
    task: Task,
    pace: Pace,
    data: Data | None = None,
    left_out: Collection[str] = (),
) -> list[Measurement]:
    """Gets results and memory of every worker, then times them in turns.

    Ops are compared with float64. For other tasks the others are compared with the last of the
    crew. A worker with wrong results is not timed.

    Args:
      crew: the workers, with the graph.
      graph: name of the graph.
      task: the task.
      pace: the rounds and seconds.
      data: the graph; None for tasks that need none.
      left_out: names of workers that are skipped.

    Returns:
      One measurement for each other worker that has the task, in the order of the crew.
    """
    names = [name for name in crew.workers if name not in left_out]
    found, firsts = _prepare_all(crew, names, graph, task, reference(task, data))
    _time_by_turns(crew, [each for each in found if not each.failure], firsts, pace)
    crew.release()
    return found


def _prepare_all(
    crew: Crew,
    names: Sequence[str],
    graph: str,
    task: Task,
    expected: Mapping[str, Expected] | None,
) -> tuple[list[Measurement], dict[str, _First]]:
    found: list[Measurement] = []
    firsts: dict[str, _First] = {}
    for name in reversed(names):
        measurement = Measurement(graph, task, name)
        output = crew.scratch / "results.npz"
        try:
            firsts[name] = _prepare(crew.workers[name], measurement, output)
        except WorkerRefusal:
            continue
        except WorkerFailure as reason:
            measurement.failure = str(reason)
        else:
            expected = _compare(measurement, output, expected)
        found.insert(0, measurement)
    return found, firsts


@dataclass(frozen=True)
class _First:
    """The run of a worker before the rounds, and whether others disturbed it."""

    seconds: float
    disturbed: bool


def _prepare(worker: Worker, measurement: Measurement, output: Path) -> _First:
    output.unlink(missing_ok=True)
    task = to_json(measurement.task)
    reply = worker.request("prepare", PREPARE_TIMEOUT, task=task, output=str(output))
    measurement.path = reply["path"]
    measurement.compile_seconds = reply["compile_seconds"]
    measurement.memory = Memory(reply["loaded"], reply["before"], reply["peak"])
    return _First(reply["seconds"], reply["disturbed"])


def _compare(
    measurement: Measurement, output: Path, expected: Mapping[str, Expected] | None
) -> Mapping[str, Expected]:
    """Records the error of the results; returns the results to compare the next with."""
    with np.load(output, allow_pickle=False) as file:
        results = {name: file[name] for name in file.files}
    if expected is None:
        return expected_of(results)
    measurement.error, measurement.worst = relative_error(results, expected)
    if measurement.is_wrong:
        measurement.failure = f"wrong: {measurement.worst} is off by {measurement.error:.1e}"
    return expected


def repeats_per_round(seconds: float, pace: Pace) -> int:
    """The number of times that a run of `seconds` is repeated in a round."""
    return min(max(round(pace.round_seconds / max(seconds, 1e-9)), 1), MOST_REPEATS)


@dataclass
class _Clock:
    """The rounds of one worker; its first run counts where there is no round."""

    measurement: Measurement
    first: _First
    calm: list[float] = field(default_factory=list)
    disturbed: list[float] = field(default_factory=list)
    spent: float = 0.0

    def is_over(self, pace: Pace) -> bool:
        """True where the worker failed, has done enough rounds, or has used up its time."""
        rounds = len(self.calm) + len(self.disturbed)
        is_late = self.first.seconds + self.spent >= pace.seconds and rounds >= pace.least
        return bool(self.measurement.failure) or is_late or len(self.calm) >= pace.rounds

    def run(self, worker: Worker, pace: Pace) -> None:
        """One round."""
        # A first run takes longer than the following ones, and does not tell how many fit.
        shortest = min([self.first.seconds, *self.calm, *self.disturbed])
        repeats = repeats_per_round(shortest, pace)
        rehearse = repeats > 1 or pace.rehearses
        try:
            reply = worker.request("run", repeats=repeats, rehearse=rehearse)
        except WorkerFailure as reason:
            self.measurement.failure = str(reason)
            return
        rounds = self.disturbed if reply["disturbed"] else self.calm
        rounds.append(statistics.median(reply["seconds"]))
        self.spent += reply["spent"]

    def finish(self, pace: Pace) -> None:
        """Records the rounds; disturbed ones only where too few were undisturbed."""
        kept = self.disturbed if len(self.calm) < max(pace.least, 1) else []
        self.measurement.seconds = self.calm + kept
        self.measurement.disturbed = len(kept)
        if not self.measurement.seconds:
            self.measurement.seconds = [self.first.seconds]
            self.measurement.disturbed = int(self.first.disturbed)


def _time_by_turns(
    crew: Crew, timed: Sequence[Measurement], firsts: Mapping[str, _First], pace: Pace
) -> None:
    clocks = [_Clock(each, firsts[each.contestant]) for each in timed]
    for _ in range(PATIENCE * pace.rounds):
        for clock in clocks:
            if not clock.is_over(pace):
                clock.run(crew.workers[clock.measurement.contestant], pace)
    for clock in clocks:
        clock.finish(pace)
