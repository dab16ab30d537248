"""The loop that all kernels share: over rows, and over several edges of a row at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.lanes import Lanes
from pallas_kernels.pytrees import pytree
from pallas_kernels.teams import Launch, Team

__all__ = [
    "OPERANDS",
    "Item",
    "RowList",
    "Rows",
    "Span",
    "Workers",
    "all_workers",
    "fold_batches",
    "fold_edges",
    "num_batches",
    "visit_entries",
    "visit_rows",
]

Pytree = Any


@pytree
class RowList:
    """Some rows and their edges.

    Attributes:
      rows, starts, lengths: int32 [rows], each row, its first edge and its number of edges; -1:
        none.
      bounds: int32 [3], the first entry in use, the one after the last, and the largest length
        where the lengths do not descend; 0 where they do.
    """

    rows: jax.Array
    starts: jax.Array
    lengths: jax.Array
    bounds: jax.Array

    def operands(self) -> tuple[jax.Array, ...]:
        """The arrays, in the order of the references of `visit_rows`."""
        return self.bounds, self.rows, self.starts, self.lengths


OPERANDS = 4
"""The number of operands of a `RowList`."""


@pytree
class Rows:
    """All rows of one group that have edges, and possibly those that have none.

    Attributes:
      whole: the rows that are reduced at once, by descending length; with the rows without edges
        where an uninitialised result must be written everywhere.
      pieces, joined: parts of the cut rows; these rows, with their first piece and their number of
        pieces. Entry e of `pieces` has partial result e - bounds[0]. None: no row is cut.
      partials: the most partial results.
      spread: whether a row has more pieces than one cluster can reduce in time, so that all blocks
        share them, and a second kernel joins them.
    """

    whole: RowList
    pieces: RowList | None = None
    joined: RowList | None = None
    partials: int = dataclasses.field(default=0, metadata={"static": True})
    spread: bool = dataclasses.field(default=False, metadata={"static": True})


@dataclasses.dataclass(frozen=True)
class Item:
    """One turn of a warpgroup: a head of a row for each team; arrays are int32 [lanes].

    Attributes:
      entry: index in the list, counted from the first entry in use.
      row, start, length: those of the entry.
      head: the head of the row.
      valid: bool [lanes], whether the entry exists.
      longest: int32, the largest length.
      columns: for each read of a lane, its first column in a row of all heads.
      within: the same in a row of one head.
      inside: bool [lanes] for each read of a lane, whether it is inside the head.
      lane: index of the lane in the team.
      worker: int32, index of the warpgroup in the grid.
    """

    entry: jax.Array
    row: jax.Array
    start: jax.Array
    length: jax.Array
    head: jax.Array
    valid: jax.Array
    longest: jax.Array
    columns: Sequence[jax.Array]
    within: Sequence[jax.Array]
    inside: Sequence[jax.Array]
    lane: jax.Array
    worker: jax.Array

    @property
    def has_edges(self) -> jax.Array:
        """bool [lanes], whether there are edges; rows without edges may hold NaN."""
        return self.valid & (self.length > 0)


@dataclasses.dataclass(frozen=True)
class Span:
    """Some entries of a list.

    Attributes:
      first: the first of them, counted from the first entry in use.
      count: number of entries.
      step: distance between them.
    """

    first: Any
    count: Any
    step: int = 1


@dataclasses.dataclass(frozen=True)
class Workers:
    """Warpgroups that share entries.

    Attributes:
      own: index of the running warpgroup among them.
      count: number of warpgroups.
      of_grid: index of the running warpgroup in the grid.
    """

    own: jax.Array
    count: int
    of_grid: jax.Array


def all_workers(launch: Launch) -> Workers:
    """The warpgroups of the grid."""
    block = lax.axis_index("program")
    if launch.cluster > 1:
        block = block * launch.cluster + lax.axis_index("member")
    own = block * launch.warpgroups + lax.axis_index("warpgroup")
    return Workers(own, launch.workers, own)


def visit_rows(
    lanes: Lanes,
    team: Team,
    launch: Launch,
    references: Sequence[Any],
    visit: Callable[[Item], None],
) -> None:
    """Lets the teams of all warpgroups reduce every head of every entry of a list.

    Args:
      lanes, team, launch: those of the kernel.
      references: references of `RowList.operands()`.
      visit: reduces an item.
    """
    bounds = references[0]
    span = Span(0, bounds[1] - bounds[0])
    visit_entries(lanes, team, all_workers(launch), references, span, visit)


def num_batches(team: Team, count: jax.Array) -> jax.Array:
    """The number of turns in which one warpgroup alone reduces `count` entries."""
    return lax.div(count * team.heads + (team.teams - 1), jnp.int32(team.teams))


def visit_entries(
    lanes: Lanes,
    team: Team,
    workers: Workers,
    references: Sequence[Any],
    span: Span,
    visit: Callable[[Item], None],
) -> None:
    """Lets the teams of some warpgroups reduce every head of some entries of a list.

    Args:
      lanes, team: those of the kernel.
      workers: the warpgroups.
      references: references of `RowList.operands()`.
      span: the entries.
      visit: reduces an item.
    """
    bounds, rows, starts, lengths = references
    ids = lanes.ids()
    own, lane = ids // team.lanes, ids % team.lanes
    first, given = bounds[0] + span.first, bounds[2]
    pairs = span.count * team.heads
    inner = [(lane + step * team.lanes) * team.count for step in range(team.steps)]

    def one(turn: jax.Array, carry: jax.Array) -> jax.Array:
        begin = (workers.own + turn * workers.count) * team.teams
        descending = lengths[first + lax.div(begin, jnp.int32(team.heads)) * span.step]
        pair = begin + own
        valid = pair < pairs
        entry, head = pair // team.heads * span.step, pair % team.heads
        place = first + entry
        row = lanes.read(rows, place, mask=valid)[0]
        visit(
            Item(
                entry=span.first + entry,
                row=row,
                start=lanes.read(starts, place, mask=valid)[0],
                length=lanes.read(lengths, place, mask=valid)[0],
                head=head,
                valid=valid & (row >= 0),
                longest=lax.max(descending, given),
                columns=[team.first + head * team.width + column for column in inner],
                within=inner,
                inside=[column < team.width for column in inner],
                lane=lane,
                worker=workers.of_grid,
            )
        )
        return carry

    behind = workers.count - 1
    batches = num_batches(team, span.count) - workers.own
    turns = lax.div(batches + behind, jnp.int32(workers.count))
    lax.fori_loop(0, turns, one, jnp.int32(0))


def fold_edges(
    lanes: Lanes,
    team: Team,
    item: Item,
    fetch: Callable[[jax.Array, jax.Array], Pytree],
    load: Callable[[Pytree, jax.Array, jax.Array], Pytree],
    combine: Callable[[Pytree, Pytree, Pytree, jax.Array, jax.Array], Pytree],
    state: Pytree,
) -> Pytree:
    """Folds the edges of an item into a state, in their order, `team.ahead` at a time.

    Reads of `fetch`, such as an edge's neighbor, are in flight while earlier edges are loaded. All
    reads of `load` for `team.ahead` edges are in flight before the first edge is combined.

    Args:
      lanes, team, item: those of the edges.
      fetch: `(slots, mask)`: reads of each team's next edge that `load` needs.
      load: `(fetched, slots, mask)`: reads of the edge.
      combine: `(state, fetched, loaded, slots, mask)`: the next state.
      state: pytree of arrays made by `lanes.full`: a carry must not start from what was read.

    Returns:
      The last state.
    """

    def combine_all(state: Pytree, edges: Sequence[tuple]) -> Pytree:
        for edge in edges:
            state = combine(state, *edge)
        return state

    return fold_batches(lanes, team, item, fetch, load, combine_all, state)


def fold_batches(
    lanes: Lanes,
    team: Team,
    item: Item,
    fetch: Callable[[jax.Array, jax.Array], Pytree],
    load: Callable[[Pytree, jax.Array, jax.Array], Pytree],
    combine: Callable[[Pytree, Sequence[tuple[Pytree, Pytree, jax.Array, jax.Array]]], Pytree],
    state: Pytree,
) -> Pytree:
    """Folds the edges of an item into a state, `team.ahead` of them together.

    Args:
      lanes, team, item, fetch, load, state: as for `fold_edges`.
      combine: `(state, edges)`, with `(fetched, loaded, slots, mask)` for each: the next state.

    Returns:
      The last state.
    """

    def slots_from(done: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
        return [
            (item.start + (done + each), done + each < item.length) for each in range(team.ahead)
        ]

    def step(turn: jax.Array, carry: Pytree) -> Pytree:
        fetched, state = carry
        done = turn * team.ahead
        coming = [fetch(*edge) for edge in slots_from(done + team.ahead)]
        edges = slots_from(done)
        loaded = [load(each, *edge) for each, edge in zip(fetched, edges, strict=True)]
        known = zip(fetched, loaded, edges, strict=True)
        return coming, combine(state, [(each, values, *edge) for each, values, edge in known])

    turns = lax.div(item.longest + (team.ahead - 1), jnp.int32(team.ahead))
    first = [fetch(*edge) for edge in slots_from(jnp.int32(0))]
    return lax.fori_loop(0, turns, step, (first, state))[1]
