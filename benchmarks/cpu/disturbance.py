"""Detection of other processes on the cores while a worker was at work (Linux)."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Reading", "is_disturbed", "others_seconds", "read"]

SHARE, SLACK = 0.15, 0.03
"""Core seconds of others that are ignored: a share of the time, and the resolution of ticks."""

IDLE, IOWAIT, GUEST = 3, 4, 8
USER_TIME, SYSTEM_TIME = 11, 12


@dataclass(frozen=True)
class Reading:
    """The kernel's statistics at a moment, in seconds.

    Attributes:
      wall: seconds of the clock.
      machine: seconds of work of all cores.
      process: seconds of work of all cores for one process.
    """

    wall: float
    machine: float
    process: float


def read(process: int) -> Reading | None:
    """The current statistics of a process and the machine; None where the system has none."""
    try:
        machine = Path("/proc/stat").read_text()
        own = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    return Reading(time.perf_counter(), machine_ticks(machine) / ticks, process_ticks(own) / ticks)


def machine_ticks(text: str) -> int:
    """Ticks in which a core worked, from the text of /proc/stat."""
    spent = [int(ticks) for ticks in text.splitlines()[0].split()[1:]]
    # Ticks of guests are included in those of the user.
    return sum(spent[:GUEST]) - spent[IDLE] - spent[IOWAIT]


def process_ticks(text: str) -> int:
    """Ticks in which a core worked for a process, from the text of /proc/PID/stat."""
    # The name in brackets may contain blanks.
    fields = text.rpartition(")")[2].split()
    return int(fields[USER_TIME]) + int(fields[SYSTEM_TIME])


def others_seconds(before: Reading, after: Reading) -> float:
    """Core seconds that others used between two readings."""
    return max(after.machine - before.machine - (after.process - before.process), 0.0)


def is_disturbed(before: Reading | None, after: Reading | None) -> bool:
    """True where others used too much of the cores to trust a time between the readings."""
    if before is None or after is None:
        return False
    return others_seconds(before, after) > SHARE * (after.wall - before.wall) + SLACK
