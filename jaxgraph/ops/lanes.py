"""The edges of all rows of a graph on one device, in lanes (see `jaxgraph.ops.whole_graph`)."""

from __future__ import annotations

import dataclasses

import jax

__all__ = ["Join", "LaneTable", "Lanes", "RunTable"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LaneTable:
    """A few edges of each of some rows: lane k holds edge k of every row.

    Attributes:
      rows: int32 [rows], what each is called at its end of the edges; where there is no edge,
        another row that has one.
      starts, lengths: int32 [rows], the slot of the first edge, and the edges, at most as many as
        there are lanes.
      neighbors: int32 [rows, lanes], the row at the other end of each edge; behind the last edge of
        a row that edge again.
    """

    rows: jax.Array
    starts: jax.Array
    lengths: jax.Array
    neighbors: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RunTable:
    """A few runs of each of some rows, as many lanes as are joined at a time.

    Attributes:
      runs: int32 [lanes, rows]; behind the last run of a row that run again.
      lengths: int32 [rows], how many there are; 0 for padding, which comes last.
    """

    runs: jax.Array
    lengths: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Join:
    """How what is known of runs becomes what is known of the rows that they are of.

    Attributes:
      rows: the first runs of every row; rows of more runs come first.
      runs: the further runs of the rows that have more, joined row by row to runs of runs, of which
        the next join makes what is missing from these rows. No rows in the last join.
    """

    rows: RunTable
    runs: RunTable


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Lanes:
    """One direction of all edges of a graph.

    Attributes:
      rows: the first edges of every row.
      runs: the further edges of rows that have more of them than there are lanes, the "heavy" ones,
        a run of edges each, by row.
      heavy: int32 [rows], which heavy row each row is, or -1.
      joins: from the runs to the heavy rows; none where no row is heavy.
    """

    rows: LaneTable
    runs: LaneTable
    heavy: jax.Array
    joins: tuple[Join, ...]
