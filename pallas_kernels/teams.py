"""Teams of lanes that share the rows of a table, and the launch of a kernel.

A *team* is a power of two of neighbouring lanes, at most a warp, that reduces one head of one row:
each lane reads `count` consecutive numbers of it at a time, as many as 16 bytes hold where the
width allows, `steps` times. Neighbouring teams reduce the heads of a row. Narrow rows have small
teams, so that a warpgroup reduces several rows at once.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from pallas_kernels.chips import multiprocessors

__all__ = ["LANES", "RESIDENT", "Launch", "Team", "team_for", "teams_for"]

LANES, WARP, WIDEST_READ = 128, 32, 16

RESIDENT = 8
"""Warpgroups that each multiprocessor should hold at once."""

CLUSTER = 8
"""Blocks of a cluster: the most on every chip with clusters."""

CACHED, REUSE = 60 << 20, 64
"""Bytes of a table whose rows a chip with an L2 of 50 MB mostly finds there, and edges per row from
which on several passes pay. On an H100 a sum over Reddit's edges (490 per row) takes 0.069 ms per
column up to this size and 0.096 at twice it; over those of ogbn-arxiv (15) passes gain nothing."""

LINE = 128
"""Bytes that neighbouring lanes read together at best."""


@dataclasses.dataclass(frozen=True)
class Team:
    """The lanes that reduce one head of one row.

    Attributes:
      heads: heads of a row.
      width: numbers of a head.
      lanes: a power of two, at most 32.
      count: numbers that a lane reads at once; it divides `width`.
      steps: reads of a lane per head.
      ahead: edges whose rows are read at once.
      first: column of the tables at which the first head starts.
    """

    heads: int
    width: int
    lanes: int
    count: int
    steps: int
    ahead: int
    first: int = 0

    @property
    def teams(self) -> int:
        """Teams of a warpgroup."""
        return LANES // self.lanes


def _resident_blocks() -> int:
    return multiprocessors() * RESIDENT


@dataclasses.dataclass(frozen=True)
class Launch:
    """The launch configuration of a kernel.

    Attributes:
      programs: blocks of the grid; by default as many as the chip of this process holds.
      warpgroups: warpgroups of a block.
      cluster: blocks that wait for each other to join the pieces of rows; 1: a second kernel joins
        them.
      words: words of 4 bytes that a lane may have in flight.
      cached: bytes of those columns of a table that one pass over the rows reads.
      reuse: edges for each row of a table from which on there are several passes.
      interpret: settings of Pallas' interpreter; None: compiled.
    """

    programs: int = dataclasses.field(default_factory=_resident_blocks)
    warpgroups: int = 1
    cluster: int = CLUSTER
    words: int = 32
    cached: int = CACHED
    reuse: int = REUSE
    interpret: Any = None

    def __post_init__(self) -> None:
        assert self.programs % self.cluster == 0

    @staticmethod
    def here() -> Launch:
        """The launch configuration for the chip of this process."""
        return Launch()

    @property
    def workers(self) -> int:
        """Warpgroups of the grid."""
        return self.programs * self.warpgroups

    def without_clusters(self) -> Launch:
        """The same, with blocks that do not wait for each other."""
        return dataclasses.replace(self, cluster=1)


def team_for(
    width: int,
    itemsize: int,
    *,
    heads: int = 1,
    tables: int = 1,
    words: int = Launch.words,
    largest: int = WIDEST_READ,
) -> Team:
    """The team for rows of a width.

    Args:
      width: numbers of a head.
      itemsize: bytes of a number.
      heads: heads of a row.
      tables: tables that are read by edge, whose reads a lane has in flight together.
      words: as in `Launch`.
      largest: numbers that a lane may read at once.

    Returns:
      The team whose lanes read most at once, and among those the one with the fewest idle lanes.
    """
    count = math.gcd(width, WIDEST_READ // itemsize, largest)
    vectors = width // count
    lanes = min((1 << power for power in range(6)), key=lambda each: _cost(vectors, each))
    steps = -(-vectors // lanes)
    per_edge = -(-count * itemsize // 4) * steps * tables
    ahead = max(1, min(8, words // per_edge))
    return Team(heads=heads, width=width, lanes=lanes, count=count, steps=steps, ahead=ahead)


def teams_for(
    edges: int, rows: int, width: int, itemsize: int, launch: Launch, *, tables: int = 1
) -> list[Team]:
    """The teams for passes over some columns after the others, each of which the cache holds.

    Args:
      edges: how many read the tables.
      rows: of the tables.
      width: their columns, of one head.
      itemsize: bytes of a number.
      launch: how kernels are started.
      tables: how many there are.

    Returns:
      A team for each pass; one for all columns where the cache holds them, or could only hold less
      than a line of each row, or where few edges read a row.
    """
    line = LINE // itemsize
    tile = launch.cached // (rows * itemsize * tables * line) * line
    if not 0 < tile < width or edges < launch.reuse * rows:
        return [team_for(width, itemsize, tables=tables, words=launch.words)]
    return [
        dataclasses.replace(
            team_for(
                min(tile, width - first),
                itemsize,
                tables=tables,
                words=launch.words,
                largest=math.gcd(width, WIDEST_READ // itemsize),
            ),
            first=first,
        )
        for first in range(0, width, tile)
    ]


def _cost(vectors: int, lanes: int) -> tuple[float, int]:
    """Reads of a team per head, idle lanes counted, and some more where a lane reads often."""
    steps = -(-vectors // lanes)
    return lanes * steps / vectors + (0.25 if lanes < WARP else 0.0) * (steps - 1), -lanes
