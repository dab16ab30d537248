"""Runs of `jaxgraph launch`, as a user starts them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from typer.testing import CliRunner

from jaxgraph.cli.main import app
from tests.conftest import ROOT
from tests.launch.processes import started, together

PROGRAM = [sys.executable, "-P", "-m", "jaxgraph"]
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "jax"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    "COLUMNS": "100",
}
GRAPH = ["--dataset", "sbm", "--num-nodes", "120", "--num-classes", "3", "--num-features", "8"]
MODEL = ["--layers", "1", "--hidden", "4"]
QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "true"}
"""Compiles in a fraction of the time."""
LONG = "1000000"
"""Epochs of a run that only ends when it is made to."""
SECONDS = 300


def partitioned(folder: Path, parts: int, mode: str = "sar") -> str:
    """Writes parts of a small graph, and returns their folder."""
    path = str(folder / f"{mode}-{parts}")
    options = ["--parts", str(parts), "--partitioner", "hash", "--mode", mode, "--out", path]
    in_this_process("partition", *GRAPH, *options)
    return path


def in_this_process(*arguments: str) -> str:
    """Runs a command on the emulated devices of this process, and returns its output."""
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def launch(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Starts `jaxgraph launch`."""
    return started([*PROGRAM, "launch", *arguments], ENVIRONMENT | environment)


def succeeded(run: subprocess.Popen[str]) -> tuple[str, str]:
    """Waits for a run that must succeed, and returns its output and its errors."""
    with run:
        out, error = run.communicate(timeout=SECONDS)
    assert run.returncode == 0, out + error
    return out, error


def losses(path: Path) -> list[float]:
    """The loss of every epoch of a run."""
    return json.loads(path.read_text())["history"]["loss"]


@contextmanager
def launched(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A run of `jaxgraph launch` that does not outlive its test."""
    with together([[*PROGRAM, "launch", *arguments]], ENVIRONMENT | environment) as (run,):
        yield run


def wait_for(run: subprocess.Popen[str], log: Path, text: str) -> None:
    """Waits until the log of a process of a run holds a text."""
    until = time.monotonic() + SECONDS
    while not log.exists() or text not in log.read_text():
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < until, f"no {text!r} in {log}"
        time.sleep(0.05)


def children_of(pid: int) -> list[int]:
    """The processes that a process has started, in the order of their start."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
