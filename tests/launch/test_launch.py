"""`jaxgraph launch -- train`: real processes on one mesh, killed, stopped and interrupted."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.launch.processes import ended_within
from tests.launch.runs import (
    GRAPH,
    LONG,
    MODEL,
    QUICK,
    SECONDS,
    children_of,
    launch,
    launched,
    losses,
    partitioned,
    succeeded,
    wait_for,
)
from tests.tolerance import assert_close

STEP_TIMEOUT = 15.0
NODES = 120


def curve(folder: Path, processes: int, *options: str) -> list[float]:
    """The losses of a run of so many processes."""
    path = folder / f"{processes}.json"
    command = ["train", *options, *MODEL, "--epochs", "12", "--json", str(path)]
    succeeded(launch("-n", str(processes), "--", *command))
    return losses(path)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["domain", "sar", "p3"])
def test_the_losses_are_those_of_one_process(mode: str, tmp_path: Path):
    parts = {count: partitioned(tmp_path, count, mode) for count in (2, 4)}
    one = curve(tmp_path, 1, "--partition", parts[4])
    for count in (2, 4):
        found = curve(tmp_path, count, "--partition", parts[4])
        assert_close(found, one, reduction_length=NODES)
    on_two_devices = curve(tmp_path, 1, "--partition", parts[2])
    assert_close(on_two_devices, one, reduction_length=NODES)


@pytest.mark.slow
def test_a_graph_that_every_process_reads_gives_the_same_losses(tmp_path: Path):
    options = [*GRAPH, "--parts", "4", "--partitioner", "metis", "--mode", "auto"]
    found = curve(tmp_path, 2, *options)
    assert_close(found, curve(tmp_path, 1, *options), reduction_length=NODES)


@pytest.mark.slow
def test_only_the_first_prints_and_each_has_a_log(tmp_path: Path):
    out = tmp_path / "out.csv"
    command = ["train", "--partition", partitioned(tmp_path, 4), *MODEL, "--epochs", "12"]
    further = ["--process-log", str(tmp_path / "logs"), "--predictions", str(out)]
    shown, _ = succeeded(launch("-n", "2", "--", *command, *further, **QUICK))
    assert all(line.startswith("[0] ") for line in shown.splitlines())
    assert "median epoch time" in shown
    assert len(out.read_text().splitlines()) == 1 + NODES
    for index in range(2):
        log = (tmp_path / "logs" / f"process-{index}.log").read_text()
        places = [line.rpartition(": ")[2] for line in log.splitlines() if "heartbeat: " in line]
        epochs = [f"epoch {epoch}" for epoch in range(1, 13)]
        before = ["join", "read", "place", "compile", "meet"]
        assert places == [*before, *epochs, "evaluate", "end"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "seconds", "status", "message"),
    [
        (signal.SIGKILL, 10.0, 137, "process 1 was ended by SIGKILL in epoch"),
        (signal.SIGSTOP, STEP_TIMEOUT * 1.2, 124, "process 1 is stuck in epoch"),
    ],
)
def test_a_lost_process_ends_the_run_in_time(
    number: int, seconds: float, status: int, message: str, tmp_path: Path
):
    command = ["train", "--partition", partitioned(tmp_path, 2), *MODEL, "--epochs", LONG]
    further = ["--process-log", str(tmp_path / "logs")]
    options = ["-n", "2", "--step-timeout", str(STEP_TIMEOUT)]
    with launched(*options, "--", *command, *further, **QUICK) as run:
        wait_for(run, tmp_path / "logs" / "process-1.log", "epoch 3")
        processes = children_of(run.pid)
        os.kill(processes[1], number)
        began = time.monotonic()
        _, error = run.communicate(timeout=60)
        assert time.monotonic() - began < seconds
    assert run.returncode == status and message in error, error
    assert "process 0 is stuck" not in error and ended_within(processes, 0)


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
def test_a_killed_process_is_started_again_and_goes_on_from_the_checkpoint(
    index: int, tmp_path: Path
):
    command = ["train", "--partition", partitioned(tmp_path, 2), *MODEL, "--epochs", "300"]
    command += ["--dropout", "0.5"]
    whole, found = tmp_path / "whole.json", tmp_path / "found.json"
    succeeded(launch("-n", "2", "--", *command, "--json", str(whole), **QUICK))
    further = ["--checkpoint", str(tmp_path / "saved"), "--checkpoint-every", "5"]
    further += ["--json", str(found), "--process-log", str(tmp_path / "logs")]
    with launched("-n", "2", "--restarts", "1", "--", *command, *further, **QUICK) as run:
        wait_for(run, tmp_path / "logs" / "process-1.log", "epoch 20\n")
        os.kill(children_of(run.pid)[index], signal.SIGKILL)
        out, error = run.communicate(timeout=SECONDS)
    assert run.returncode == 0 and "starting all again, 1 of 1" in error, out + error
    assert losses(found) == losses(whole)
    places = (tmp_path / "logs" / "process-0.log").read_text()
    assert places.count("heartbeat: epoch 300\n") == 1 and places.count(": compile\n") == 2


@pytest.mark.slow
def test_ctrl_c_ends_all_after_the_same_epoch_and_the_results_are_kept(tmp_path: Path):
    path = tmp_path / "run.json"
    command = ["train", "--partition", partitioned(tmp_path, 2), *MODEL, "--epochs", LONG]
    further = ["--process-log", str(tmp_path / "logs"), "--json", str(path)]
    with launched("-n", "2", "--restarts", "2", "--", *command, *further, **QUICK) as run:
        wait_for(run, tmp_path / "logs" / "process-1.log", "epoch 3")
        processes = children_of(run.pid)
        run.send_signal(signal.SIGINT)
        out, error = run.communicate(timeout=60)
    assert run.returncode == 130 and "ended by Ctrl-C" in error, out + error
    assert "interrupted before" in out and ended_within(processes, 0)
    logs = [(tmp_path / "logs" / f"process-{index}.log").read_text() for index in range(2)]
    # The epoch that was about to begin when all agreed to stop.
    last = [log.rpartition("epoch ")[2].split()[0] for log in logs]
    assert last == [str(len(losses(path)) + 1)] * 2 and json.loads(path.read_text())["interrupted"]


@pytest.mark.slow
def test_a_mistake_is_reported_and_not_tried_again():
    command = ["train", *GRAPH, *MODEL, "--parts", "3"]
    with launched("-n", "2", "--restarts", "2", "--", *command) as run:
        _, error = run.communicate(timeout=120)
    assert run.returncode == 2 and "again" not in error
    assert "Error: --parts: got 3 for 2 processes" in error and "Traceback" not in error
