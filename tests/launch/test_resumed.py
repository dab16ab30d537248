"""A process is killed, the launcher starts all again, and the run resumes from its checkpoint."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.launch.runs import MODEL, QUICK, children_of, launch, losses, partitioned, succeeded

EVERY = 50


@pytest.mark.full
@pytest.mark.parametrize("index", [0, 1])
def test_a_restarted_run_ends_as_one_without_a_death(index: int, tmp_path: Path):
    parts = partitioned(tmp_path, 2)
    train = ["train", "--partition", parts, *MODEL, "--dropout", "0.5", "--epochs", "1000"]

    def command(name: str) -> list[str]:
        saved = ["--checkpoint", str(tmp_path / name), "--checkpoint-every", str(EVERY)]
        return [*train, *saved, "--resume", "--json", str(tmp_path / f"{name}.json")]

    succeeded(launch("-n", "2", "--", *command("whole"), **QUICK))
    with launch("-n", "2", "--restarts", "1", "--", *command("killed"), **QUICK) as run:
        until = time.monotonic() + 300
        while not (tmp_path / "killed" / f"epoch-{EVERY:08d}").exists():
            assert run.poll() is None and time.monotonic() < until
            time.sleep(0.01)
        os.kill(children_of(run.pid)[index], signal.SIGKILL)
        _, error = succeeded(run)
    assert "starting all again, 1 of 1" in error
    assert losses(tmp_path / "killed.json") == losses(tmp_path / "whole.json")
    assert json.loads((tmp_path / "killed.json").read_text())["resumed"] >= EVERY
