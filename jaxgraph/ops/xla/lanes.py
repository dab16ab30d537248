"""The layout of all edges of a graph on one device, in lanes (`jaxgraph.ops.xla.whole_graph`)."""

from __future__ import annotations

import itertools

import jax

from pallas_kernels.pytrees import pytree

__all__ = ["Join", "LaneTable", "Lanes", "RunTable"]


@pytree
class LaneTable:
    """Edges of a set of rows: lane k holds edge k of every row.

    Attributes:
      rows: int32 [rows], the number of each row; for a row without edges that of another row.
      starts, lengths: int32 [rows], the first slot and the number of edges of each row, at most the
        number of lanes.
      neighbors: int32 [rows, lanes], the row at the other end of each edge; lanes after the last
        edge of a row repeat it.
    """

    rows: jax.Array
    starts: jax.Array
    lengths: jax.Array
    neighbors: jax.Array


@pytree
class RunTable:
    """Runs of a set of rows, with as many lanes as runs are joined at a time.

    Attributes:
      runs: int32 [lanes, rows]; lanes after the last run of a row repeat it.
      lengths: int32 [rows], the number of runs of each; 0 for padding, which comes last.
    """

    runs: jax.Array
    lengths: jax.Array


@pytree
class Join:
    """Runs to merge, so that values of runs become values of the rows to which they belong.

    Attributes:
      rows: the first runs of every row; rows with further runs come first.
      runs: the further runs, joined row by row to runs of runs, which the next join adds to these
        rows. Empty in the last join.
    """

    rows: RunTable
    runs: RunTable


@pytree
class Lanes:
    """One direction of all edges of a graph.

    Attributes:
      rows: the first edges of every row: the first level.
      runs: the further edges, in runs: level by level the next run of every row that has one; after
        the last level all other runs, by row.
      further: for each level int32 [rows], where each row continues: a row of the next level, or,
        for the last level, a row to which runs are joined; -1: nowhere.
      joins: from the runs after the last level to their rows; empty without such runs.
    """

    rows: LaneTable
    runs: LaneTable
    further: tuple[jax.Array, ...]
    joins: tuple[Join, ...]

    def levels(self) -> tuple[list[slice], slice]:
        """Slices of the runs: those of each level after the first, and those that are joined."""
        bounds = list(itertools.accumulate((len(each) for each in self.further[1:]), initial=0))
        levels = [slice(*pair) for pair in itertools.pairwise(bounds)]
        return levels, slice(bounds[-1], len(self.runs.rows))
