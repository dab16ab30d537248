from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from benchmarks.cpu.crew import Crew
from benchmarks.cpu.inputs import Data, node_features
from benchmarks.cpu.measure import Measurement, Memory, measure_task, repeats_per_round
from benchmarks.cpu.plan import Pace
from benchmarks.cpu.process import WorkerFailure, WorkerRefusal
from benchmarks.cpu.tasks import Epoch, SpMM, Task
from tests.benchmarks_cpu.graphs import adjacency, tiny

PACE = Pace(rounds=7, least=2, seconds=10.0, round_seconds=1.0)
EPOCH = Epoch("gcn")


class Scripted:
    """A worker that gives scripted answers, and records who was asked."""

    def __init__(
        self,
        name: str,
        log: list,
        seconds: float = 1.0,
        y: Any = 1.0,
        disturbed: int = 0,
        first: float | None = None,
    ) -> None:
        self.name, self.log, self.seconds, self.y = name, log, seconds, y
        self.disturbed, self.first = disturbed, seconds if first is None else first
        self.repeats: list[int] = []
        self.rehearsed: list[bool] = []
        self.runs = 0

    def request(self, command: str, timeout: float = 0, **arguments: Any) -> dict[str, Any]:
        self.log.append((self.name, command))
        if command == "prepare":
            if isinstance(self.y, Exception):
                raise self.y
            np.savez(arguments["output"], y=np.broadcast_to(self.y, (30, 4)))
            reply = {"seconds": self.first, "path": "way", "compile_seconds": None}
            disturbed = {"disturbed": self.disturbed > 0}
            return reply | disturbed | {"loaded": 10, "before": 15, "peak": 40}
        if command == "run":
            self.runs += 1
            self.repeats.append(arguments["repeats"])
            self.rehearsed.append(arguments["rehearse"])
            if self.seconds < 0:
                raise WorkerFailure("it died")
            is_disturbed = self.runs <= self.disturbed
            seconds = [99.0 if is_disturbed else self.seconds] * arguments["repeats"]
            spent = sum(seconds) + arguments["rehearse"] * self.seconds
            return {"seconds": seconds, "spent": spent, "disturbed": is_disturbed}
        raise AssertionError(command)


class Scene:
    """A crew of scripted workers."""

    def __init__(self, scratch: Path, workers: Sequence[Scripted]) -> None:
        self.scratch = scratch
        self.workers = {worker.name: worker for worker in workers}
        self.released = 0

    def release(self) -> None:
        self.released += 1


def measured(
    tmp_path: Path,
    *workers: Scripted,
    pace: Pace = PACE,
    task: Task = EPOCH,
    data: Data | None = None,
    left_out: Collection[str] = (),
) -> list[Measurement]:
    scene = Scene(tmp_path, workers)
    found = measure_task(cast(Crew, scene), "graph", task, pace, data, left_out)
    assert scene.released == 1
    return found


def test_workers_take_turns(tmp_path: Path):
    log: list = []
    found = measured(tmp_path, Scripted("a", log), Scripted("b", log), Scripted("c", log))
    runs = [name for name, command in log if command == "run"]
    assert runs == ["a", "b", "c"] * 7
    assert [each.contestant for each in found] == ["a", "b", "c"]
    assert found[0].seconds == [1.0] * 7
    assert found[0].memory == Memory(10, 15, 40)


def test_who_differs_from_the_last_is_not_timed(tmp_path: Path):
    log: list = []
    found = measured(tmp_path, Scripted("a", log, y=1.01), Scripted("b", log), Scripted("c", log))
    assert found[0].is_wrong and "y is off by 1.0e-02" in found[0].failure
    assert ("a", "run") not in log
    assert found[1].error == 0 and found[2].error is None and not found[2].is_wrong


@pytest.mark.parametrize("error", [0.0, 1e-2])
def test_ops_are_compared_with_float64_and_not_with_each_other(tmp_path: Path, error: float):
    data = tiny()
    x = node_features(data.num_nodes, 4)
    right, wrong = adjacency(data) @ x, 1.01 * adjacency(data) @ x
    workers = [Scripted(name, [], y=y) for name, y in (("a", right * (1 + error)), ("b", wrong))]
    found = measured(tmp_path, *workers, task=SpMM(4), data=data)
    assert [each.is_wrong for each in found] == [error > 0, True]
    # Relative to the terms, and to those of all rows.
    assert found[1].error is not None and 1e-3 < found[1].error < 1e-2
    assert workers[1].runs == 0


def test_who_lacks_the_task_is_left_out(tmp_path: Path):
    log: list = []
    refusing = Scripted("b", log, y=WorkerRefusal("no such task"))
    found = measured(tmp_path, Scripted("a", log), refusing)
    assert [each.contestant for each in found] == ["a"]


def test_who_sits_out_is_not_asked(tmp_path: Path):
    log: list = []
    found = measured(tmp_path, Scripted("a", log), Scripted("b", log), left_out={"b"})
    assert [each.contestant for each in found] == ["a"]
    assert {name for name, _ in log} == {"a"}


def test_who_fails_is_named_and_the_others_go_on(tmp_path: Path):
    log: list = []
    failing = Scripted("b", log, y=WorkerFailure("no room"))
    found = measured(tmp_path, Scripted("a", log), failing, Scripted("c", log, seconds=-1))
    assert [each.failure for each in found] == ["", "no room", "it died"]
    assert len(found[0].seconds) == 7


def test_a_slow_one_stops_when_its_time_is_over(tmp_path: Path):
    slow, quick = Scripted("slow", [], seconds=4.0), Scripted("quick", [])
    measured(tmp_path, slow, quick)
    # The first run and 2 rounds of 4 s pass 10 s.
    assert (slow.runs, quick.runs) == (2, 7)


def test_runs_that_do_not_count_take_time_as_well(tmp_path: Path):
    slow = Scripted("slow", [], seconds=4.0)
    measured(tmp_path, slow, pace=Pace(rounds=7, least=0, seconds=10.0, rehearses=True))
    assert slow.runs == 1


def test_at_least_so_many_rounds(tmp_path: Path):
    slow = Scripted("slow", [], seconds=100.0)
    measured(tmp_path, slow)
    assert slow.runs == PACE.least


def test_disturbed_rounds_are_made_up_for(tmp_path: Path):
    pace = Pace(rounds=4, least=3, seconds=1000.0)
    worker = Scripted("a", [], seconds=5.0, disturbed=2)
    (found,) = measured(tmp_path, worker, pace=pace)
    assert (found.seconds, found.disturbed, worker.runs) == ([5.0] * 4, 0, 6)


def test_where_all_is_disturbed_that_is_said(tmp_path: Path):
    pace = Pace(rounds=4, least=3, seconds=1000.0)
    worker = Scripted("a", [], seconds=5.0, disturbed=6)
    (found,) = measured(tmp_path, worker, pace=pace)
    assert (found.disturbed, worker.runs) == (6, 8)
    assert sorted(found.seconds) == [5.0, 5.0] + [99.0] * 6


def test_disturbed_rounds_are_better_than_none(tmp_path: Path):
    worker = Scripted("a", [], disturbed=9)
    (found,) = measured(tmp_path, worker, pace=Pace(rounds=2, least=0, seconds=1000.0))
    assert (found.seconds, found.disturbed) == ([99.0] * 4, 4)


def test_a_first_run_will_do_where_no_round_has_to_be(tmp_path: Path):
    pace = Pace(rounds=5, least=0, seconds=10.0)
    slow = Scripted("slow", [], seconds=100.0)
    disturbed = Scripted("disturbed", [], seconds=100.0, disturbed=1)
    found = measured(tmp_path, slow, disturbed, pace=pace)
    assert slow.runs == 0 and [each.seconds for each in found] == [[100.0], [100.0]]
    assert [each.disturbed for each in found] == [0, 1]


@pytest.mark.parametrize(("seconds", "repeats"), [(5.0, 1), (0.1, 10), (1e-6, 1000), (0.0, 1000)])
def test_short_runs_are_repeated(seconds: float, repeats: int):
    assert repeats_per_round(seconds, PACE) == repeats


def test_a_slow_first_run_does_not_shorten_the_rounds(tmp_path: Path):
    worker = Scripted("a", [], seconds=0.1, first=0.5)
    measured(tmp_path, worker)
    assert worker.repeats == [2] + [10] * 6


@pytest.mark.parametrize(("seconds", "rehearses"), [(0.1, False), (5.0, False), (5.0, True)])
def test_repeated_runs_and_some_that_are_not_are_rehearsed(
    tmp_path: Path, seconds: float, rehearses: bool
):
    worker = Scripted("a", [], seconds=seconds)
    measured(tmp_path, worker, pace=Pace(2, 2, 100.0, 1.0, rehearses))
    assert worker.rehearsed == [seconds < 1.0 or rehearses] * 2


def test_memory_of_a_run_and_of_a_task():
    memory = Memory(loaded=100, before=120, peak=200)
    assert (memory.above_loaded, memory.of_run) == (100, 80)
    assert Memory(100, 120, None).of_run is None
