"""The parent's side of a worker process: requests and replies, one JSON object a line."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.cpu.disturbance import is_disturbed, read

__all__ = ["MALLOC", "Worker", "WorkerFailure", "WorkerRefusal", "environment"]

ROOT = Path(__file__).resolve().parents[2]
_NEVER = 1 << 40
MALLOC: Mapping[str, str] = MappingProxyType(
    {
        "default": "",
        "hugepages": "glibc.malloc.hugetlb=1",
        "kept": f"glibc.malloc.trim_threshold={_NEVER}:glibc.malloc.mmap_threshold={_NEVER}",
    }
)
"""`GLIBC_TUNABLES` by the name of the setting.

By default freed memory may go back to Linux and be allocated again, page by page, in every run.
Whether it does depends on the rest of the heap, and differs between processes. "kept": it stays
with the process, and only computation takes time.
"""

_LEFT_OUT = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR", "PYTHONPATH", "MALLOC_ARENA_MAX")


class WorkerFailure(Exception):  # noqa: N818
    """A worker failed or died; the message says why."""


class WorkerRefusal(Exception):  # noqa: N818
    """The library has no such task; the message says why."""


def environment(threads: int, malloc: str, scratch: Path) -> dict[str, str]:
    """The environment that all workers share.

    Args:
      threads: threads of each worker.
      malloc: a name in `MALLOC`.
      scratch: a folder for files that libraries write.

    Returns:
      Variables for `Worker`.
    """
    variables = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    count = str(threads)
    return variables | {
        "GLIBC_TUNABLES": MALLOC[malloc],
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "JAX_PLATFORMS": "cpu",
        "DGLBACKEND": "pytorch",
        "DGLDEFAULTDIR": str(scratch),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


class Worker:
    """A process that answers requests; signals stop it between requests.

    A library's threads may spin for a while after their work. Stopped, they take no core from the
    library that is timed next, and no library needs a setting that it would not run with alone.

    Args:
      command: the command line.
      variables: its environment.
      log: file of its standard error.
    """

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                env=dict(variables),
                cwd=ROOT,
            )

    def request(self, command: str, timeout: float = 900, **arguments: Any) -> dict[str, Any]:
        """Resumes the worker, sends a request, waits for its reply and stops the worker again.

        Args:
          command: the command of the protocol.
          timeout: seconds after which the worker is killed.
          arguments: arguments of the command.

        Returns:
          The reply, with "disturbed": whether other processes used the cores in the meantime.

        Raises:
          WorkerRefusal: its library has no such task.
          WorkerFailure: it failed or died, or the time is over.
        """
        before = read(self._process.pid)
        self._send({"command": command, **arguments})
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], timeout)
        if not ready:
            self.kill()
            raise WorkerFailure(f"no answer within {timeout:.0f} s")
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            self._process.wait()
            raise WorkerFailure(self._last_words())
        after = read(self._process.pid)
        self._process.send_signal(signal.SIGSTOP)
        reply = json.loads(line)
        if "refused" in reply:
            raise WorkerRefusal(reply["refused"])
        if "failed" in reply:
            raise WorkerFailure(reply["failed"])
        return reply | {"disturbed": is_disturbed(before, after)}

    def kill(self) -> None:
        """Ends the process at once."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _send(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            raise WorkerFailure(self._last_words())
        try:
            self._process.send_signal(signal.SIGCONT)
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except OSError as error:
            self._process.wait()
            raise WorkerFailure(self._last_words()) from error

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        code = self._process.poll()
        cause = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit {code}"
        return f"the worker died ({cause}){': ' + lines[-1] if lines else ''}"
