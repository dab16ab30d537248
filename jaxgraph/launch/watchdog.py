"""Judges from the signs of life of processes which of them are stuck."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxgraph.launch.heartbeat import COUNTED, PHASES, SECONDS_BETWEEN_SIGNS

_SILENT_SECONDS = 4 * SECONDS_BETWEEN_SIGNS
"""A process that lives gives signs more often, even on a machine that is busy."""


@dataclass(frozen=True)
class Standing:
    """Where a process stands, and since when.

    Args:
        name: The number of the process in the run, as text.
        phase: Its phase, one of `heartbeat.PHASES`.
        epoch: The number of its epoch, or 0.
        silent: Seconds since its last sign of life.
        standing: Seconds since it got to this place.
    """

    name: str
    phase: str
    epoch: int
    silent: float
    standing: float

    def is_silent(self, timeout: float) -> bool:
        """True where it has missed several signs; `timeout` is that of `stuck`."""
        return self.silent >= min(_SILENT_SECONDS, timeout / 2)


def place_text(phase: str, epoch: int) -> str:
    """Names a place for people.

    >>> place_text("epoch", 3), place_text("compile", 0)
    ('epoch 3', "phase 'compile'")
    """
    return f"epoch {epoch}" if phase == "epoch" else f"phase {phase!r}"


def stuck(standings: Sequence[Standing], timeout: float) -> str | None:
    """Says which processes are stuck, and where.

    A process is late if it gave no sign for `timeout` seconds, or has stood in an epoch, or in the
    evaluation after the last one, for as long. If one is late, others may be late because they wait
    for a third. The silent ones are at fault; where all give signs, those that are furthest behind.
    """
    late = [
        each
        for each in standings
        if each.silent >= timeout or (each.phase in COUNTED and each.standing >= timeout)
    ]
    if not late:
        return None
    silent = [each for each in standings if each.is_silent(timeout)]
    if silent:
        return "; ".join(
            f"process {each.name} is stuck in {place_text(each.phase, each.epoch)}: it has given "
            f"no sign of life for {each.silent:.0f} s"
            for each in silent
        )
    first = min(map(_progress, standings))
    behind = [each for each in standings if _progress(each) == first]
    if len(behind) < len(standings):
        return "; ".join(
            f"process {each.name} is stuck in {place_text(each.phase, each.epoch)}, where it has "
            f"been for {each.standing:.0f} s, and the others wait for it"
            for each in behind
        )
    names = ", ".join(each.name for each in standings)
    place = place_text(standings[0].phase, standings[0].epoch)
    return (
        f"process {names}: no progress in {place} for {max(e.standing for e in late):.0f} s; it "
        "gives signs of life, so it may wait for a process of another host"
    )


def _progress(standing: Standing) -> tuple[int, int]:
    phase = PHASES.index(standing.phase)
    return phase, standing.epoch
