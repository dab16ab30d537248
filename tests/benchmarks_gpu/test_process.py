"""Workers that die, stop or never start; the remaining tasks are done all the same."""

import sys
import time
from collections.abc import Sequence

import pytest

from benchmarks.gpu.process import run_tasks, start_worker, wait_for_graph

WORKER = """
import json, os, sys, time
print(json.dumps({"size": {}, "seconds": 0.0}), flush=True)
sys.stdin.readline() or sys.exit("nobody waits")
for task in map(int, sys.argv[2:]):
    print(json.dumps({"begin": task}), flush=True)
    if task == 1 and sys.argv[1] == "dies":
        sys.exit("the device is gone")
    if task == 1 and sys.argv[1] == "stops":
        time.sleep(60)
    print("something that a library says")
    print(json.dumps({"row": task}), flush=True)
"""


def run(how: str, seconds: float = 30.0, patience: float = 20.0) -> list[dict]:
    def command(tasks: Sequence[int]) -> list[str]:
        return [sys.executable, "-c", WORKER, how, *map(str, tasks)]

    return list(run_tasks(command, [0, 1, 2], time.monotonic() + seconds, patience))


def rows(lines: list[dict]) -> list[int]:
    return [line["row"] for line in lines if "row" in line]


def test_all_is_done_where_nothing_fails() -> None:
    lines = run("works")
    assert rows(lines) == [0, 1, 2]
    assert not any("failed" in line for line in lines)


@pytest.mark.parametrize(
    ("how", "patience", "reason"),
    [("dies", 20.0, "the device is gone"), ("stops", 1.0, "no answer")],
)
def test_only_the_task_at_hand_is_lost(how: str, patience: float, reason: str) -> None:
    lines = run(how, patience=patience)
    assert rows(lines) == [0, 2]
    (failed,) = (line for line in lines if "failed" in line)
    assert failed["failed"] == 1 and reason in failed["reason"]


def test_when_time_is_up_the_rest_is_named() -> None:
    lines = run("stops", seconds=1.0)
    assert rows(lines) == [0]
    assert [line["failed"] for line in lines if "failed" in line] == [1, 2]


def test_a_worker_that_never_starts_is_not_tried_again() -> None:
    def command(tasks: Sequence[int]) -> list[str]:
        return [sys.executable, "-c", "raise SystemExit('no such graph')"]

    lines = list(run_tasks(command, [0, 1], time.monotonic() + 30))
    assert [line["failed"] for line in lines] == [0, 1]
    assert "no such graph" in lines[0]["reason"]


def test_a_worker_waits_for_its_turn_and_ends_with_its_parent() -> None:
    command = [sys.executable, "-c", WORKER, "works"]
    worker, orphan = start_worker([*command, "0", "2"]), start_worker([*command, "0"])
    for each in (worker, orphan):
        wait_for_graph(each)
    lines = list(run_tasks(lambda _: [], [0, 2], time.monotonic() + 30, first=worker))
    assert rows(lines) == [0, 2]
    assert "nobody waits" in orphan.communicate("")[1]
