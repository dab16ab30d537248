"""Contestants of a task: compared with each other, then timed in turns."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.cpu.comparing import TOLERANCE, relative_error
from benchmarks.cpu.tasks import SpMM
from benchmarks.gpu.contestant import OURS, Contestant, jaxgraph_contestant
from benchmarks.gpu.graphs import Placed
from benchmarks.gpu.plan import Layer, Task
from benchmarks.gpu.programs import draw, program

MOST_COMPILED = 10_000_000
"""Most edges of a graph on which PyG's layers are compiled too."""

Maker = Callable[[], Contestant]


@dataclass(frozen=True)
class Pace:
    """The rounds and seconds for which contestants are measured.

    Attributes:
      rounds: rounds of all in turn.
      round_seconds: a shorter run is repeated to about this in every round.
      patience: seconds of a first run after which its contestant is not timed any more.
      spread_bytes: least bytes of all input sets together, so that no cache holds them.
    """

    rounds: int = 7
    round_seconds: float = 0.03
    patience: float = 2.0
    spread_bytes: int = 1 << 28


REHEARSAL = Pace(rounds=2, round_seconds=1e-3, spread_bytes=1)


@dataclass
class Row:
    """Times, error and memory of one contestant for one task.

    Attributes:
      task, contestant: names.
      seconds: seconds of one run, one mean per round.
      error: relative, against jaxgraph; against the reference for a check.
      memory: bytes on the device with the graph and the arrays; None where unknown.
      failure: why there are no times, "" where there are.
    """

    task: str
    contestant: str
    seconds: list[float] = field(default_factory=list)
    error: float | None = None
    memory: int | None = None
    failure: str = ""

    @property
    def median(self) -> float | None:
        """Median seconds of its rounds."""
        return statistics.median(self.seconds) if self.seconds else None


def contestants(task: Task, placed: Placed, implementation: str) -> dict[str, Maker]:
    """The contestants of a task by name, jaxgraph first; those not installed fail when made."""
    found: dict[str, Maker] = {OURS: lambda: jaxgraph_contestant(task, placed, implementation)}
    if isinstance(task, SpMM):
        found |= _products(task, placed)
    elif isinstance(task, Layer):
        ways = ["edge index"] if task.kind == "gat" else ["edge index", "CSR"]
        # Compilation takes longer than all the rest, and saves no memory.
        ways += ["compiled"] if placed.num_edges < MOST_COMPILED else []
        found |= {f"PyG {way}": _pyg(task, placed, way) for way in ways}
    return found


def _products(task: SpMM, placed: Placed) -> dict[str, Maker]:
    from benchmarks.gpu.cusparse import ALGORITHMS, cusparse_contestant

    def sparse(algorithm: int) -> Maker:
        return lambda: cusparse_contestant(task, placed, algorithm)

    def torch() -> Contestant:
        from benchmarks.gpu.pyg import torch_contestant

        return torch_contestant(task, placed)

    return {name: sparse(algorithm) for name, algorithm in ALGORITHMS.items()} | {"torch": torch}


def _pyg(task: Layer, placed: Placed, way: str) -> Maker:
    def make() -> Contestant:
        from benchmarks.gpu.pyg import pyg_contestant

        return pyg_contestant(task, placed, way)

    return make


def measure(task: Task, placed: Placed, implementation: str, pace: Pace) -> Iterator[Row]:
    """Runs a task once with all contestants, compares, and times in turns those that agree."""
    shapes = program(task, placed, implementation)[1]
    copies = _copies(shapes, pace.spread_bytes)
    ready: dict[str, tuple[Row, Contestant, int]] = {}
    expected: Mapping[str, np.ndarray] | None = None
    for name, make in contestants(task, placed, implementation).items():
        row = Row(task.label, name)
        try:
            contestant, first, numbers = _first_run(make, row, draw(shapes, 0))
        except Exception as error:
            row.failure = reason(error)
            yield row
            continue
        if expected is None:
            expected = numbers
        else:
            row.error = relative_error(numbers, expected)
        if row.error is not None and not row.error <= TOLERANCE:
            row.failure = f"wrong result: off by {row.error:.1e}"
            yield row
        elif first > pace.patience:
            row.seconds.append(first)
            yield row
        else:
            repeats = max(1, min(200, round(pace.round_seconds / first)))
            ready[name] = row, contestant, repeats
    _time_by_turns(ready, shapes, copies, pace)
    yield from (row for row, _, _ in ready.values())


def _copies(shapes: Sequence[tuple[int, ...]], spread_bytes: int) -> int:
    """The number of input sets, used in turns so that no cache holds them; at most 8."""
    size = 4 * sum(math.prod(shape) for shape in shapes)
    return max(1, min(8, math.ceil(spread_bytes / max(size, 1))))


def _first_run(
    make: Maker, row: Row, arrays: Sequence[Any]
) -> tuple[Contestant, float, Mapping[str, np.ndarray]]:
    """Prepares a contestant; returns the time of a second run, since the first may compile."""
    contestant = make()
    taken = contestant.take(arrays)
    output = contestant.call(taken)
    contestant.wait(output)
    numbers = contestant.numbers(output)
    start = time.perf_counter()
    contestant.wait(contestant.call(taken))
    seconds = time.perf_counter() - start
    row.memory = contestant.memory(taken)
    return contestant, seconds, numbers


def _time_by_turns(
    ready: Mapping[str, tuple[Row, Contestant, int]],
    shapes: Sequence[tuple[int, ...]],
    copies: int,
    pace: Pace,
) -> None:
    order = list(ready.values())
    for turn in range(pace.rounds):
        sets = [draw(shapes, 1 + turn * copies + copy) for copy in range(copies)]
        first = turn % max(len(order), 1)
        for row, contestant, repeats in order[first:] + order[:first]:
            if row.failure:
                continue
            try:
                row.seconds.append(_round(contestant, sets, repeats))
            except Exception as error:
                row.failure = reason(error)


def _round(contestant: Contestant, sets: Sequence[Sequence[Any]], repeats: int) -> float:
    """Seconds of a run, the mean of several on several sets of inputs."""
    taken = [contestant.take(arrays) for arrays in sets]
    contestant.wait(contestant.call(taken[0]))
    start = time.perf_counter()
    output = None
    for run in range(repeats):
        output = contestant.call(taken[run % len(taken)])
    contestant.wait(output)
    return (time.perf_counter() - start) / repeats


def reason(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}".partition("\n")[0][:200]
