"""A pass over the parts as two machines in a row: loads, and the programs that read them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

_SWEEPS = 3
"""Times that all pairs are tried."""


@dataclasses.dataclass(frozen=True)
class Job:
    """A load, and the programs until the next load is taken.

    Attributes:
      load: seconds of the load.
      programs: seconds of the programs.
      sent: bytes that the load sends.
      is_visit: whether it brings rows of another part.
    """

    load: float
    programs: float
    sent: int = 0
    is_visit: bool = False


def makespan(jobs: Sequence[Job], ahead: float = math.inf) -> float:
    """The time of all jobs, each machine taking them in order.

    Args:
      jobs: the jobs.
      ahead: results of loads that may wait; one more is loaded before there is room.

    Returns:
      Seconds.
    """
    loaded, ended, starts = 0.0, 0.0, []
    for at, job in enumerate(jobs):
        if at > ahead:
            loaded = max(loaded, starts[at - int(ahead) - 1])
        loaded += job.load
        starts.append(max(loaded, ended))
        ended = starts[-1] + job.programs
    return ended


def by_johnson(jobs: Sequence[Job]) -> list[Job]:
    """The order that takes the least time where any number of results may wait.

    Args:
      jobs: in any order.

    Returns:
      First those with the shorter load, by load; then the others, by programs, longest first.

    References:
      Johnson (1954), Optimal two- and three-stage production schedules.
    """
    first = [job for job in jobs if job.load < job.programs]
    last = [job for job in jobs if job.load >= job.programs]
    by_load = sorted(first, key=lambda job: job.load)
    return by_load + sorted(last, key=lambda job: -job.programs)


def by_swaps(jobs: Sequence[Job], ahead: float = math.inf) -> list[Job]:
    """NeuGraph's heuristic: swaps two visits that one part gets, as long as that saves time.

    Args:
      jobs, ahead: as for `makespan`.

    Returns:
      The jobs, of which those that are no visits stay where they are.

    References:
      NeuGraph, section 3.2, figure 6.
    """
    found, least = list(jobs), makespan(jobs, ahead)
    groups = itertools.groupby(range(len(jobs)), lambda at: jobs[at].is_visit)
    visits = [list(places) for is_visit, places in groups if is_visit]
    pairs = [pair for places in visits for pair in itertools.combinations(places, 2)]
    for _ in range(_SWEEPS):
        before = least
        for one, other in pairs:
            found[one], found[other] = found[other], found[one]
            seconds = makespan(found, ahead)
            if seconds < least:
                least = seconds
            else:
                found[one], found[other] = found[other], found[one]
        if least == before:
            break
    return found


def bound(jobs: Sequence[Job]) -> float:
    """The time that no order goes below: that of the busier machine."""
    return max(sum(job.load for job in jobs), sum(job.programs for job in jobs))
