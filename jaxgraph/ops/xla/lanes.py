"""The edges of all rows of a graph on one device, in lanes (see `jaxgraph.ops.xla.whole_graph`)."""

from __future__ import annotations

import itertools

import jax

from pallas_kernels.pytrees import pytree

__all__ = ["Join", "LaneTable", "Lanes", "RunTable"]


@pytree
class LaneTable:
    """A few edges of each of some rows: lane k holds edge k of every row.

    Attributes:
      rows: int32 [rows], what each is called at its end of the edges; where there is no edge,
        another row that has one.
      starts, lengths: int32 [rows], the slot of the first edge, and the edges, at most as many as
        there are lanes.
      neighbors: int32 [rows, lanes], the row at the other end of each edge; after the last edge of
        a row that edge again.
    """

    rows: jax.Array
    starts: jax.Array
    lengths: jax.Array
    neighbors: jax.Array


@pytree
class RunTable:
    """A few runs of each of some rows, as many lanes as are joined at a time.

    Attributes:
      runs: int32 [lanes, rows]; after the last run of a row that run again.
      lengths: int32 [rows], how many there are; 0 for padding, which comes last.
    """

    runs: jax.Array
    lengths: jax.Array


@pytree
class Join:
    """Runs to merge, so that values of runs become values of the rows to which they belong.

    Attributes:
      rows: the first runs of every row; rows of more runs come first.
      runs: the further runs of the rows that have more, joined row by row to runs of runs, of which
        the next join makes what is missing from these rows. No rows in the last join.
    """

    rows: RunTable
    runs: RunTable


@pytree
class Lanes:
    """One direction of all edges of a graph.

    Attributes:
      rows: the first edges of every row: the first level.
      runs: the further edges of rows that have more, a run of edges each: level by level the next
        run of every row that has one; after the last level all others, by row.
      further: for each level int32 [rows], where each row goes on: a row of the next level, or, of
        the last one, one of the rows that runs are joined to; -1: nowhere.
      joins: from the runs after the last level to the rows that they are of; none where there are
        none.
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
