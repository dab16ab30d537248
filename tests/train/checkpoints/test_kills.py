"""Real processes, really killed: a resumed run ends with the bits of one that was not."""

import json
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.launch.processes import together
from tests.ports import free_port
from tests.train.checkpoints.run import EPOCHS, EVERY, PROCESSES

TIMEOUT_SECONDS = 240
SIGNALS = (signal.SIGKILL, signal.SIGTERM)
COMMAND = (sys.executable, "-P", "-c", "from jaxgraph.cli.entry import main; main()")
GRAPH = shlex.split("--dataset sbm --num-nodes 200 --num-classes 4 --num-features 8 --degree 8")
TRAIN = shlex.split("--layers 2 --hidden 8 --lr 0.05 --dropout 0.1 --seed 3 --epochs 600")
TRAIN_EVERY = 100


ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
}


def started(commands: Sequence[Sequence[str]]) -> Any:
    """Processes that are killed at the end, whatever happens."""
    return together(commands, ENVIRONMENT, subprocess.STDOUT)


def wait_until(ready: Callable[[], Any], processes: Sequence[subprocess.Popen[str]]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not ready():
        ended = [each for each in processes if each.poll() is not None]
        assert not ended, ended[0].communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.005)


# ------------------------------------------------------------------ the command


def command(folder: Path, result: Path) -> list[str]:
    saved = ["--checkpoint", str(folder), "--checkpoint-every", str(TRAIN_EVERY), "--resume"]
    return [*COMMAND, "train", *GRAPH, *TRAIN, *saved, "--json", str(result)]


def newest(folder: Path) -> int:
    """The epoch of the newest checkpoint; 0 if there is none."""
    names = [each.name for each in folder.glob("epoch-*")] if folder.is_dir() else []
    return max((int(name.removeprefix("epoch-")) for name in names), default=0)


def finished(folder: Path, result: Path) -> dict[str, Any]:
    """Runs the command to its end; returns what it wrote."""
    with started([command(folder, result)]) as (process,):
        output = process.communicate(timeout=TIMEOUT_SECONDS)[0]
        assert process.returncode == 0, output
    return json.loads(result.read_text())


@dataclass(frozen=True)
class Reference:
    history: dict[str, Any]
    evaluation: dict[str, Any]
    state: bytes
    seconds: float


def state_of(folder: Path) -> bytes:
    """Every array of the newest checkpoint."""
    data = (folder / f"epoch-{newest(folder):08d}").read_bytes()
    return data.partition(b"\n")[2].rpartition(b"\n")[0]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    folder = tmp_path_factory.mktemp("reference")
    begun = time.monotonic()
    found = finished(folder / "run", folder / "run.json")
    seconds = time.monotonic() - begun
    return Reference(found["history"], found["evaluation"], state_of(folder / "run"), seconds)


def assert_as(reference: Reference, found: dict[str, Any], folder: Path) -> None:
    for name in ("loss", "val_loss", "metrics", "best_epoch"):
        assert found["history"][name] == reference.history[name], name
    assert found["evaluation"] == reference.evaluation
    assert state_of(folder) == reference.state


@pytest.mark.law(7)
def test_a_command_that_is_killed_resumes(reference: Reference, tmp_path: Path) -> None:
    """By SIGTERM, which saves the epoch, then by SIGKILL."""
    folder, result = tmp_path / "run", tmp_path / "run.json"
    chance = random.Random(0)
    with started([command(folder, result)]) as (process,):
        wait_until(lambda: newest(folder) >= TRAIN_EVERY, [process])
        time.sleep(chance.uniform(0, 0.3))
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=TIMEOUT_SECONDS)[0]
        assert process.returncode == 143, output
    written = json.loads(result.read_text())
    saved = newest(folder)
    assert len(written["history"]["loss"]) == saved and written["interrupted"]
    with started([command(folder, result)]) as (process,):
        wait_until(lambda: newest(folder) > saved + TRAIN_EVERY, [process])
        time.sleep(chance.uniform(0, 0.1))
        process.kill()
        process.wait()
    saved = newest(folder)
    found = finished(folder, result)
    assert found["resumed"] == saved
    assert_as(reference, found, folder)


@pytest.mark.law(7)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_a_command_killed_at_any_moment_resumes(
    seed: int, reference: Reference, tmp_path: Path
) -> None:
    folder, result = tmp_path / "run", tmp_path / "run.json"
    chance = random.Random(seed)
    with started([command(folder, result)]) as (process,):
        time.sleep(chance.uniform(0, reference.seconds))
        process.send_signal(SIGNALS[seed % 2])
        process.communicate(timeout=TIMEOUT_SECONDS)
    assert_as(reference, finished(folder, result), folder)


# ------------------------------------------------------------------ two processes


def pair(
    folder: Path, results: Sequence[Path], faults: bool = False, kind: str = "plain"
) -> list[list[str]]:
    command = [sys.executable, "-m", "tests.train.checkpoints.run", str(folder)]
    rest = [str(free_port()), str(int(faults)), kind]
    return [[*command, str(result), str(rank), *rest] for rank, result in enumerate(results)]


def results_in(folder: Path, name: str) -> list[Path]:
    return [folder / f"{name}-{rank}" for rank in range(PROCESSES)]


def last_epoch(result: Path) -> int:
    """The last epoch that a process has reported."""
    lines = result.read_text().splitlines() if result.exists() else []
    return max((int(line) for line in lines if line.isdigit()), default=0)


def whole_run(
    folder: Path, results: Sequence[Path], faults: bool = False, kind: str = "plain"
) -> list[dict[str, Any]]:
    with started(pair(folder, results, faults, kind)) as processes:
        outputs = [process.communicate(timeout=TIMEOUT_SECONDS)[0] for process in processes]
        for process, output in zip(processes, outputs, strict=True):
            assert process.returncode == 0, output
    return [json.loads(result.read_text().splitlines()[-1]) for result in results]


@dataclass(frozen=True)
class PairReference:
    found: list[dict[str, Any]]
    seconds: float


@pytest.fixture(scope="module")
def of_pair(tmp_path_factory: pytest.TempPathFactory) -> PairReference:
    """What both processes report of mistakes, and of a run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("pair")
    begun = time.monotonic()
    found = whole_run(folder / "run", results_in(folder, "result"), faults=True)
    return PairReference(found, time.monotonic() - begun)


def assert_as_pair(expected: PairReference, found: Sequence[dict[str, Any]]) -> None:
    for one in found:
        assert one["loss"] == expected.found[0]["loss"]
        assert one["state"] == expected.found[0]["state"]


@pytest.mark.slow
def test_a_callback_that_one_process_has_ends_all(of_pair: PairReference) -> None:
    first, last = (each["faults"] for each in of_pair.found)
    assert last == {
        "mistake": "LookupError: a mistake of the callback",
        "unwritable": "OSError: no space left",
        "interrupted": "interrupted after 1, by None",
        "enough": "2 epochs",
    }
    assert first == {
        "mistake": "RuntimeError: process 1 has ended the run: LookupError: a mistake of the "
        "callback",
        "unwritable": "OSError: process 1 has ended the run: OSError: no space left",
        "interrupted": "interrupted after 1, by 2",
        "enough": "2 epochs",
    }


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_two_processes_resume_after_one_got_a_signal(
    number: int, of_pair: PairReference, tmp_path: Path
) -> None:
    """SIGTERM saves the same epoch of both; SIGKILL loses what follows a checkpoint."""
    folder, results = tmp_path / "run", results_in(tmp_path, "killed")
    with started(pair(folder, results)) as processes:
        wait_until(lambda: last_epoch(results[0]) >= EVERY + 1, processes)
        time.sleep(random.Random(1).uniform(0, 0.2))
        processes[1].send_signal(number)
        if number == signal.SIGTERM:
            outputs = [process.communicate(timeout=TIMEOUT_SECONDS)[0] for process in processes]
            assert [process.returncode for process in processes] == [143, 143], outputs
    seen = last_epoch(results[0])
    least = seen // EVERY * EVERY - EVERY
    if number == signal.SIGTERM:
        reports = [json.loads(result.read_text().splitlines()[-1]) for result in results]
        assert [len(report["loss"]) for report in reports] == [seen, seen] and seen < EPOCHS
        least = seen
    found = whole_run(folder, results_in(tmp_path, "resumed"))
    assert found[0]["resumed"] == found[1]["resumed"] >= least
    assert_as_pair(of_pair, found)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_two_processes_killed_at_any_moment_resume(
    seed: int, of_pair: PairReference, tmp_path: Path
) -> None:
    folder, chance, results = tmp_path / "run", random.Random(seed), results_in(tmp_path, "killed")
    with started(pair(folder, results)) as processes:
        time.sleep(chance.uniform(0, of_pair.seconds))
        processes[chance.randrange(PROCESSES)].send_signal(SIGNALS[seed % 2])
        time.sleep(1)  # The other one may be killed at any moment of its end, too.
    seen = last_epoch(results[0])
    found = whole_run(folder, results_in(tmp_path, "resumed"))
    assert found[0]["resumed"] >= seen // EVERY * EVERY - EVERY
    assert_as_pair(of_pair, found)


@pytest.mark.law(7)
@pytest.mark.slow
def test_two_processes_resume_a_run_on_several_sets(tmp_path: Path) -> None:
    expected = whole_run(tmp_path / "whole", results_in(tmp_path, "whole"), kind="typed")
    folder, results = tmp_path / "run", results_in(tmp_path, "killed")
    with started(pair(folder, results, kind="typed")) as processes:
        wait_until(lambda: last_epoch(results[0]) >= EVERY + 1, processes)
        processes[1].kill()
        processes[1].wait()
    found = whole_run(folder, results_in(tmp_path, "resumed"), kind="typed")
    assert EPOCHS > found[0]["resumed"] >= EVERY
    for one in found:
        assert (one["loss"], one["state"]) == (expected[0]["loss"], expected[0]["state"])
