"""The limits of the machine, from the tasks that measure them, and the least time of work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.cpu.measure import Measurement
from benchmarks.cpu.tasks import Product, Triad
from benchmarks.cpu.work import Work

__all__ = ["Limits", "limits"]


@dataclass(frozen=True)
class Limits:
    """The measured limits of the machine.

    Attributes:
      bandwidth: bytes per second of the STREAM triad.
      rate: float32 operations per second of a matrix product.
    """

    bandwidth: float
    rate: float

    def seconds(self, work: Work) -> float:
        """The least time of the work without reuse of gathered rows."""
        return work.gathered_bytes / self.bandwidth + work.operations / self.rate

    def seconds_with_reuse(self, work: Work) -> float:
        """The least time of the work if every byte moves once."""
        return work.single_bytes / self.bandwidth + work.operations / self.rate


def limits(measurements: Iterable[Measurement]) -> Limits | None:
    """The best figures of any library, counted as in STREAM: the best run, three arrays moved.

    Args:
      measurements: of `Triad` and `Product` tasks; others are ignored.

    Returns:
      The limits; None where one of the two was not measured.
    """
    bandwidth = rate = 0.0
    for each in measurements:
        if not each.seconds:
            continue
        if isinstance(each.task, Triad):
            bandwidth = max(bandwidth, 3 * 4 * each.task.elements / min(each.seconds))
        elif isinstance(each.task, Product):
            rate = max(rate, 2 * each.task.size**3 / min(each.seconds))
    return Limits(bandwidth, rate) if bandwidth and rate else None
