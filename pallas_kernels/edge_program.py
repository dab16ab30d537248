"""Sums of a function of both ends of every edge, of numbers of the edge, and of parameters.

The function is traced with the numbers of a lane, so it must be element-wise: `neighbor_sum` with
arithmetic between the reads and the sum. Expected, not measured: the time of the reads, as there.
An H200 computes about 50 operations in the time in which its memory brings one number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.lanes import LANES, Lanes
from pallas_kernels.neighbor_sum import add_states
from pallas_kernels.pytrees import pytree
from pallas_kernels.reduction import Part, Reduction, Result, State, empty_state, reduce_rows
from pallas_kernels.rows import Item, Rows, fold_edges
from pallas_kernels.teams import Launch, Team, team_for

__all__ = ["Tables", "program_sums"]

Function = Callable[..., Sequence[jax.Array]]
"""`(own, others, numbers, parameters)`, lists of arrays of one shape, to the terms of the sums."""


@pytree
class Tables:
    """The arrays that the function reads; all of float32.

    Attributes:
      own: [rows, width] each, read at the row that is written.
      others: [neighbors' rows, width] each, read at the other end.
      numbers: [slots] each, a number per edge.
      parameters: [1, width] each.
      neighbors: int32 [edges], the row at the other end.
      slots: int32 [edges], the place of each edge's numbers; None: its own index.
    """

    own: list[jax.Array]
    others: list[jax.Array]
    numbers: list[jax.Array]
    parameters: list[jax.Array]
    neighbors: jax.Array
    slots: jax.Array | None

    def operands(self) -> list[jax.Array]:
        """All arrays, in the order of `_Read`."""
        slots = [] if self.slots is None else [self.slots]
        return [
            *(*self.own, *self.others, *self.numbers, *self.parameters),
            *(self.neighbors, *slots),
        ]


def program_sums(
    function: Function,
    tables: Tables,
    rows: Rows,
    before: Sequence[Result],
    *,
    fresh: bool = False,
    launch: Launch | None = None,
) -> list[jax.Array]:
    """y_i = before_i + sum_{e of row i} f(own_i, others_j, numbers_e, parameters) for each sum.

    Args:
      function: f, which returns one term for each sum.
      tables: what f reads.
      rows: the rows and their edges.
      before: float32 [rows, width] for each sum, overwritten at the rows in `rows`.
      fresh: whether `before` is 0 there, and need not be read; it may then be shapes and types of
        uninitialised arrays.
      launch: the launch configuration; None: the one for the chip of this process.

    Returns:
      float32 [rows, width] each.
    """
    launch = launch or Launch.here()
    width = before[0].shape[1]
    # Reads of one edge, and the terms that are made of them, take registers at the same time.
    at_once = max(1, len(tables.others)) + len(before)
    team = team_for(width, 4, tables=at_once, words=launch.words)
    counts = [len(part) for part in (tables.own, tables.others, tables.numbers, tables.parameters)]
    parts = tuple(Part(0.0) for _ in before)

    def fold(lanes: Lanes, team: Team, item: Item, references: Sequence[Any]) -> State:
        read = _Read(lanes, team, item, counts, references)
        return _fold(function, read, parts)

    reduction = Reduction("edge_program", parts, fold, add_states)
    return reduce_rows(
        reduction, [team], rows, tables.operands(), list(before), launch, fresh=fresh
    )


class _Read:
    """The reads of an item."""

    def __init__(
        self,
        lanes: Lanes,
        team: Team,
        item: Item,
        counts: Sequence[int],
        references: Sequence[Any],
    ) -> None:
        self.lanes, self.team, self.item = lanes, team, item
        ends = [sum(counts[: place + 1]) for place in range(len(counts))]
        self.own, self.others, self.numbers, self.parameters = (
            references[end - count : end] for end, count in zip(ends, counts, strict=True)
        )
        self.neighbors, *slots = references[ends[-1] :]
        self.slots = slots[0] if slots else None

    def columns(self, table: Any, row: jax.Array, mask: jax.Array) -> list[jax.Array]:
        """The numbers of a lane in a row of a table, by step."""
        return [
            self.lanes.read(table, row, column, mask=mask & inside, count=self.team.count)
            for column, inside in zip(self.item.columns, self.item.inside, strict=True)
        ]

    def number(self, table: Any, place: jax.Array, mask: jax.Array) -> jax.Array:
        """A number of the edge, once for every number of a lane."""
        return self.lanes.spread(self.lanes.read(table, place, mask=mask)[0], self.team.count)


def _fold(function: Function, read: _Read, parts: tuple[Part, ...]) -> State:
    lanes, team, item = read.lanes, read.team, read.item
    first = lanes.full((LANES,), 0, jnp.int32)
    own = [read.columns(table, item.row, item.valid) for table in read.own]
    parameters = [read.columns(table, first, item.valid) for table in read.parameters]

    def fetch(slot: jax.Array, mask: jax.Array) -> list[jax.Array]:
        some = [read.neighbors] if read.slots is None else [read.neighbors, read.slots]
        return [lanes.read(table, slot, mask=mask)[0] for table in some]

    def load(fetched: list[jax.Array], slot: jax.Array, mask: jax.Array) -> Any:
        place = slot if read.slots is None else fetched[1]
        others = [read.columns(table, fetched[0], mask) for table in read.others]
        return others, [read.number(table, place, mask) for table in read.numbers]

    def combine(state: State, fetched: Any, loaded: Any, slot: Any, mask: jax.Array) -> State:
        others, numbers = loaded
        exists = lanes.spread(jnp.where(mask, 1.0, 0.0), team.count) > 0.0
        terms: list[list[jax.Array]] = [[] for _ in parts]
        for step in range(team.steps):
            found = function(
                [each[step] for each in own],
                [each[step] for each in others],
                numbers,
                [each[step] for each in parameters],
            )
            # What the function makes of zeros, where there is no edge, need not be 0.
            for term, value in zip(terms, found, strict=True):
                term.append(jnp.where(exists, value, 0.0))
        return add_states(state, tuple(terms))

    return fold_edges(lanes, team, item, fetch, load, combine, empty_state(lanes, team, parts))
