"""The results of a run, and their circumstances."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.cpu.limits import Limits
from benchmarks.cpu.measure import Measurement
from benchmarks.cpu.tasks import to_json
from benchmarks.cpu.work import Size, Work, work

__all__ = ["Machine", "Record", "this_machine"]


@dataclass(frozen=True)
class Machine:
    """Where a run took place.

    Attributes:
      cpu: name of the processor.
      cores: cores that the process may use.
      memory_bytes: memory of the machine.
      system: the kernel.
    """

    cpu: str
    cores: int
    memory_bytes: int
    system: str


def this_machine() -> Machine:
    """The machine that this runs on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    knows = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if knows else os.cpu_count() or 1
    return Machine(_cpu_name(), cores, memory, platform.platform())


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


@dataclass
class Record:
    """The results of a run, with its machine and settings.

    Attributes:
      command: the command line as typed.
      machine: the machine.
      threads: threads of every library.
      malloc: the malloc setting of all.
      date: when it started.
      versions: what every contestant reported.
      absent: why a contestant did not take part.
      sizes: sizes of the graphs.
      limits: limits of the machine.
      peers: the comparison with peers.
      sar: the comparison of SAR on several emulated devices with one.
    """

    command: str
    machine: Machine
    threads: int
    malloc: str
    date: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, Size] = field(default_factory=dict)
    limits: Limits | None = None
    peers: list[Measurement] = field(default_factory=list)
    sar: list[Measurement] = field(default_factory=list)

    def work(self, measurement: Measurement) -> Work | None:
        """The work of a measurement's task on its graph."""
        return work(measurement.task, self.sizes[measurement.graph])

    def faults(self, own: Collection[str], optional: str) -> Iterator[str]:
        """The faults of a run: wrong results of anyone, and failures of our own contestants.

        Args:
          own: names of our contestants.
          optional: name of one more, which may be absent.

        Yields:
          One line for each.
        """
        for name in self.absent.keys() & set(own):
            yield f"{name} does not take part: {self.absent[name]}"
        for each in (*self.peers, *self.sar):
            is_ours = each.contestant in own or each.contestant == optional
            if each.is_wrong or (each.failure and is_ours):
                yield f"{each.contestant}, {each.graph}, {each.task.label}: {each.failure}"

    def write(self, path: Path) -> None:
        """Writes everything as JSON."""
        fields = {name: value for name, value in vars(self).items() if name not in _LISTS}
        lists = {name: [self._row(each) for each in getattr(self, name)] for name in _LISTS}
        path.write_text(json.dumps(fields | lists, default=dataclasses.asdict, indent=1))

    def _row(self, measurement: Measurement) -> dict[str, Any]:
        row = vars(measurement) | {
            "task": to_json(measurement.task),
            "work": self.work(measurement),
        }
        # JSON has no infinity.
        if measurement.is_wrong:
            row["error"] = str(measurement.error)
        return row


_LISTS = ("peers", "sar")
