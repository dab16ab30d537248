"""The parent's side of a worker process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MEMORY_SHARE = 0.7
"""Share of the machine's memory for one worker."""

TIMEOUT = 1800.0
"""Seconds without an answer after which a worker is killed."""

_LEFT_OUT = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR", "PYTHONPATH", "GLIBC_TUNABLES")


class WorkerFailure(Exception):  # noqa: N818
    """A worker failed or died; the message says why."""


class WorkerRefusal(Exception):  # noqa: N818
    """The library has no such task; the message says why."""


@dataclass(frozen=True)
class Contestant:
    """A library that takes part.

    Attributes:
      name: name in the tables.
      library: its module in `benchmarks.cpu.libraries`, without "_library".
      options: options of the library's constructor.
      python: its interpreter.
      jaxgraph: a folder that holds another jaxgraph; None: this one.
    """

    name: str
    library: str
    options: Mapping[str, Any] = field(default_factory=dict)
    python: str = sys.executable
    jaxgraph: str | None = None


class Worker:
    """A process that answers requests; signals stop it between requests.

    A library's threads may spin for a while after their work. Stopped, they take no core from the
    library that is timed next, and no library needs a setting that it would not run with alone.

    Args:
      command: the command line; the file descriptor of its connection is added.
      variables: its environment.
      log: file of its output.
    """

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
        self._log = log
        self._pipe, theirs = Pipe()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                stdout=output,
                stderr=output,
                env=dict(variables),
                cwd=ROOT,
                pass_fds=(theirs.fileno(),),
            )
        theirs.close()

    def request(self, name: str, *arguments: Any, timeout: float = TIMEOUT) -> Any:
        """Resumes the worker, calls a method of its session and stops it again.

        Raises:
          WorkerRefusal: its library has no such task.
          WorkerFailure: it failed or died, or the time is over.
        """
        self._process.send_signal(signal.SIGCONT)
        try:
            self._pipe.send((name, arguments))
            if not self._pipe.poll(timeout):
                self.kill()
                raise WorkerFailure(f"no answer within {timeout:.0f} s")
            kind, value = self._pipe.recv()
        except (EOFError, OSError) as error:
            code = self._process.wait()
            last = self._log.read_text(errors="replace").strip().rpartition("\n")[2]
            raise WorkerFailure(f"the worker ended with {code}: {last[:200]}") from error
        self._process.send_signal(signal.SIGSTOP)
        if kind == "refused":
            raise WorkerRefusal(value)
        if kind == "failed":
            raise WorkerFailure(value)
        return value

    def kill(self) -> None:
        """Ends the process at once."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()


def start_worker(contestant: Contestant, threads: int, scratch: Path) -> Worker:
    """A worker for a library, with so many threads and cores, and a folder for its files."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    numbers = map(str, (threads, int(MEMORY_SHARE * memory)))
    variables = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    counts = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    variables |= dict.fromkeys(counts, str(threads)) | {
        "JAX_PLATFORMS": "cpu",
        "DGLBACKEND": "pytorch",
        "DGLDEFAULTDIR": str(scratch),
    }
    command = [contestant.python, "-m", "benchmarks.cpu.worker", *numbers]
    return Worker(command, variables, scratch / f"{contestant.name}.log")
