"""Runs that are really killed: the next one continues, and what was there before stays."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxgraph.external import Request, partition_file
from jaxgraph.layout.part_files import open_parts
from tests.external.folders import contents, cut

ROOT = Path(__file__).parents[2]
SLOW = pytest.mark.slow
pytestmark = pytest.mark.usefixtures("tiny_chunks")


def write_file(path: Path, *, names: bool, edges: int = 900) -> Path:
    ends = np.random.default_rng(1).integers(0, 120, (edges, 2))
    prefix = "n" if names else ""
    lines = [f"{prefix}{a},{prefix}{b}" for a, b in ends.tolist()]
    path.write_text("\n".join(["source,target", *lines]) + "\n")
    return path


def killed(source: Path, out: Path, after: int, number: int) -> list[str]:
    """Runs the worker until it has told so many lines, kills it, and returns what it told."""
    command = [sys.executable, "-m", "tests.external.worker", str(source), str(out)]
    told = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            told.append(line.strip())
            if len(told) == after:
                os.kill(process.pid, number)
                break
        told += [line.strip() for line in process.stdout]
    assert process.returncode in (-number, 0)
    return told


@pytest.mark.parametrize(
    ("names", "after"),
    [
        (False, 4),
        (True, 30),
        *(pytest.param(n, after, marks=SLOW) for n in (False, True) for after in range(2, 60, 6)),
    ],
)
def test_a_killed_run_continues_and_ends_with_the_same_parts(
    names: bool, after: int, tmp_path: Path
):
    source, out = write_file(tmp_path / "graph.csv", names=names), tmp_path / "parts"
    told = killed(source, out, after, random.Random(after).choice([signal.SIGKILL, signal.SIGTERM]))
    again: list[Any] = []
    found = cut(source, out, again).folder
    assert contents(found) == contents(cut(source, tmp_path / "whole").folder)
    assert not [path for path in out.iterdir() if path.name.startswith("work-")]
    # A step had ended where a later one has told of itself.
    ended = dict.fromkeys(line.split()[0] for line in told[:-1] if "write 3" not in told)
    repeated = {step for step, *_ in again} & {*list(ended)[:-1]}
    assert repeated <= {"number"}


def test_a_killed_run_leaves_the_parts_that_were_there(tmp_path: Path):
    old, new = write_file(tmp_path / "old.csv", names=True), tmp_path / "graph.csv"
    write_file(new, names=False, edges=700)
    out = tmp_path / "parts"
    before = contents(cut(old, out, num_parts=2).folder)
    told = killed(new, out, 20, signal.SIGKILL)
    assert "write 3" not in told
    assert contents(open_parts(out)) == before
    # Another request finishes, and deletes what the killed one had left.
    cut(old, out)
    assert sorted(path.name[:5] for path in out.iterdir()) == ["data-", "manif"]


def test_a_file_that_has_changed_is_read_anew(tmp_path: Path):
    source, out = write_file(tmp_path / "graph.csv", names=False), tmp_path / "parts"
    killed(source, out, 20, signal.SIGKILL)
    write_file(source, names=False, edges=800)
    found, whole = (cut(source, folder).folder for folder in (out, tmp_path / "whole"))
    assert found.graph.num_edges == 800 and contents(found) == contents(whole)


def test_two_runs_of_one_request_do_not_share_its_work(tmp_path: Path):
    source, out = write_file(tmp_path / "graph.csv", names=False), tmp_path / "parts"
    request = Request(source=source, num_parts=3)

    def start_another(step: str, done: int, total: int) -> None:
        if step == "split":
            with pytest.raises(ValueError, match="another process"):
                partition_file(request, out, memory_limit="16GB")

    partition_file(request, out, memory_limit="16GB", on_progress=start_another)
    assert open_parts(out).num_parts == 3
