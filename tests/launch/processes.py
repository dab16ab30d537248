"""Small supervised processes for tests, and a check that none of them is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import ROOT

MEMBER = """
import os, signal, sys, time
from pathlib import Path
from jaxgraph.launch.heartbeat import Heartbeat
heartbeat = Heartbeat(int(sys.argv[-1]))
folder = Path(sys.argv[1])
def note(name, text=""):
    unfinished = folder / f"unfinished {os.getpid()}"
    unfinished.write_text(text or str(os.getpid()))
    unfinished.rename(folder / name)
"""
"""The start of a supervised program: its heartbeat, a folder for its notes, and its arguments."""

SUPERVISOR = """
import sys
from jaxgraph.launch.child import Command
from jaxgraph.launch.supervisor import supervise
def write(line, is_error):
    print(line, file=sys.stderr if is_error else sys.stdout, flush=True)
def commands(start):
    return [
        Command(str(index), [sys.executable, "-c", program, FOLDER, str(start)])
        for index, program in enumerate(PROGRAMS)
    ]
sys.exit(supervise(commands, write, **OPTIONS))
"""


def supervised(folder: Path, *programs: str, **options: float) -> subprocess.Popen[str]:
    """Starts a supervisor of programs, each after `MEMBER`, in a process of its own."""
    programs = tuple(MEMBER + program for program in programs)
    options = {"step_timeout": 60} | options
    values = f"FOLDER, PROGRAMS, OPTIONS = {str(folder)!r}, {programs!r}, {options!r}\n"
    return started([sys.executable, "-c", values + SUPERVISOR])


def started(
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    stderr: int = subprocess.PIPE,
) -> subprocess.Popen[str]:
    """Starts a program whose children can import the library."""
    return subprocess.Popen(
        arguments,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | dict(environment or {}),
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


@contextmanager
def together(
    commands: Sequence[Sequence[str]], environment: Mapping[str, str], stderr: int = subprocess.PIPE
) -> Iterator[list[subprocess.Popen[str]]]:
    """Programs that do not outlive their test."""
    runs = [started(command, environment, stderr) for command in commands]
    try:
        yield runs
    finally:
        for run in runs:
            run.kill()
            run.communicate()


def pid_in(note: Path, seconds: float = 60) -> int:
    """Waits for a process to write its number."""
    until = time.monotonic() + seconds
    while not note.exists():
        assert time.monotonic() < until, f"nothing wrote {note.name}"
        time.sleep(0.02)
    return int(note.read_text())


def is_alive(pid: int) -> bool:
    """Whether the process runs, or is stopped; one that nobody has waited for has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def ended_within(pids: Sequence[int], seconds: float) -> bool:
    """Whether all processes end within so many seconds."""
    until = time.monotonic() + seconds
    while any(map(is_alive, pids)):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True
