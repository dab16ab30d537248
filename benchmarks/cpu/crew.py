"""The workers that take part in a comparison."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cpu.plan import Contestant
from benchmarks.cpu.process import Worker, WorkerFailure

__all__ = ["Crew", "Settings"]


@dataclass(frozen=True)
class Settings:
    """The settings with which all workers are started.

    Attributes:
      peer_python: interpreter of the peers.
      threads: threads of every worker.
      variables: environment of every worker.
      memory_limit: most bytes that a worker may allocate, or None.
      scratch: folder for graphs, results and logs.
    """

    peer_python: str
    threads: int
    variables: Mapping[str, str]
    memory_limit: int | None
    scratch: Path

    def command(self, contestant: Contestant) -> list[str]:
        """The command line of a worker."""
        limit = [] if self.memory_limit is None else ["--memory-limit", str(self.memory_limit)]
        return [
            self.peer_python if contestant.is_peer else sys.executable,
            "-m",
            "benchmarks.cpu.worker",
            contestant.library,
            "--threads",
            str(self.threads),
            "--options",
            json.dumps(dict(contestant.options)),
            *limit,
        ]


class Crew:
    """One worker per contestant; those that cannot take part are listed with the reason.

    Attributes:
      workers: by name, in the order of the contestants.
      versions: what each reports.
      absent: why a contestant has no worker.
      scratch: folder for exchanged files.

    Args:
      contestants: the contestants.
      settings: how workers are started.
    """

    def __init__(self, contestants: Sequence[Contestant], settings: Settings) -> None:
        self._settings = settings
        self._contestants = {each.name: each for each in contestants}
        self._graph: Path | None = None
        self.scratch = settings.scratch
        self.workers: dict[str, Worker] = {}
        self.versions: dict[str, dict[str, str]] = {}
        self.absent: dict[str, str] = {}
        # All start before the first is awaited: importing takes seconds.
        for name in self._contestants:
            self.workers[name] = self._start(name)
        for name in self._contestants:
            self._greet(name)

    def _start(self, name: str) -> Worker:
        log = self.scratch / f"{name.replace(',', '').replace(' ', '-')}.log"
        command = self._settings.command(self._contestants[name])
        return Worker(command, self._settings.variables, log)

    def _greet(self, name: str) -> None:
        try:
            self.versions[name] = self.workers[name].request("greet")["versions"]
        except WorkerFailure as reason:
            self.drop(name, str(reason))

    def drop(self, name: str, reason: str) -> None:
        """Ends a worker that cannot take part any more."""
        self.absent[name] = reason
        self.versions.pop(name, None)
        self.workers.pop(name).kill()

    def load(self, graph: Path) -> None:
        """Gives all workers the graph of a file."""
        self._graph = graph
        # Loading is not timed, so formats are made in parallel.
        with ThreadPoolExecutor(self._settings.threads) as pool:
            list(pool.map(self._load, list(self.workers)))

    def _load(self, name: str) -> None:
        try:
            self.workers[name].request("load", path=str(self._graph))
        except WorkerFailure as reason:
            self.drop(name, str(reason))

    def release(self) -> None:
        """Lets every worker forget its task; one that died in it starts again."""
        for name in list(self.workers):
            try:
                self.workers[name].request("release")
            except WorkerFailure:
                self.workers[name].kill()
                self.workers[name] = self._start(name)
                self._greet(name)
                if name in self.workers and self._graph is not None:
                    self._load(name)

    def close(self) -> None:
        """Ends all workers."""
        for worker in self.workers.values():
            worker.kill()
