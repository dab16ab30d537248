"""Maxima and minima over the neighbors of every row, and the gradient to those that won.

Expected: forward an edge reads a row of x, 4 bytes of index and 4 of its neighbor's identity, and a
row writes three numbers per column; backward an edge reads three numbers per column of its receiver
(the value that won, the gradient, the identity). Under way: 4 to 6 reads of 16 bytes at 128
columns, 30 of 8 bytes at 602, 49 to 131 kB per multiprocessor; the state is three times that of a
sum, and so are the registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.lanes import Lanes
from pallas_kernels.neighbor_sum import SUM, add_states
from pallas_kernels.reduction import Part, Reduction, Result, State, empty_state, reduce_rows
from pallas_kernels.rows import Item, Rows, fold_edges
from pallas_kernels.teams import Launch, Team, team_for

__all__ = ["neighbor_extremum", "winner_gradient"]

REPETITION = 0x9E3779B1 - (1 << 32)
"""What tells equal edges apart: an edge's identity is its sender's id plus so much of this."""


def neighbor_extremum(
    x: jax.Array,
    rows: Rows,
    neighbors: jax.Array,
    ids: jax.Array,
    before: tuple[Result, Result, Result],
    *,
    maximum: bool,
    repetition: jax.Array | None = None,
    fresh: bool = False,
    launch: Launch | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The largest (or smallest) x_{neighbor of e} of every row, how many are equal to it, and who.

    Args:
      x: [neighbors' rows, width], float32, bfloat16 or float16.
      rows: the rows and their edges.
      neighbors: int32 [edges], the row of `x` that each edge brings.
      ids: int32 [neighbors' rows], what identifies each.
      before: the state to continue from, best and count float32, identity uint32, [rows, width]
        each; of no edges it is -inf (inf), 0, 0. Written over where a row is in `rows`.
      maximum: whether the largest wins, or the smallest.
      repetition: int32 [edges], which of several equal edges each one is; None: no equal edges.
      fresh: whether `before` is that of no edges there, and need not be read; it may then be shapes
        and types, and starts as anything.
      launch: how the kernel is started; None: for the chip of this process.

    Returns:
      The state after the edges; `identity` is that of the first of the winners.
    """
    launch = launch or Launch()
    team = team_for(x.shape[1], x.dtype.itemsize, tables=2, words=launch.words)
    parts = (Part(-math.inf if maximum else math.inf), Part(0.0), Part(0, jnp.int32))
    merge = _merging(maximum)

    def fold(lanes: Lanes, team: Team, item: Item, references: Sequence[Any]) -> State:
        return _fold(lanes, team, item, references, parts, merge)

    arrays = [x, neighbors, ids] if repetition is None else [x, neighbors, ids, repetition]
    reduction = Reduction("neighbor_extremum", parts, fold, merge)
    best, count, identity = reduce_rows(
        reduction, team, rows, arrays, list(before), launch, fresh=fresh
    )
    return best, count, identity


def _merging(maximum: bool) -> Callable[[State, State], State]:
    pick = jnp.maximum if maximum else jnp.minimum

    def merge(left: State, right: State) -> State:
        merged = [_merge_two(pick, *each) for each in zip(*left, *right, strict=True)]
        best, count, identity = zip(*merged, strict=True)
        return list(best), list(count), list(identity)

    return merge


def _merge_two(
    pick: Callable[[jax.Array, jax.Array], jax.Array],
    left: jax.Array,
    left_count: jax.Array,
    left_identity: jax.Array,
    right: jax.Array,
    right_count: jax.Array,
    right_identity: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    best = pick(left, right)
    in_left = (left == best) & (left_count > 0)
    count = jnp.where(in_left, left_count, 0.0) + jnp.where(right == best, right_count, 0.0)
    return best, count, jnp.where(in_left, left_identity, right_identity)


def _fold(
    lanes: Lanes,
    team: Team,
    item: Item,
    references: Sequence[Any],
    parts: tuple[Part, ...],
    merge: Callable[[State, State], State],
) -> State:
    x, neighbors, ids, repetition = (*references, None)[:4]

    def fetch(slot: jax.Array, mask: jax.Array) -> list[jax.Array]:
        found = [lanes.read(neighbors, slot, mask=mask)[0]]
        if repetition is not None:
            found.append(lanes.read(repetition, slot, mask=mask)[0])
        return found

    def load(fetched: list[jax.Array], slot: jax.Array, mask: jax.Array) -> Any:
        values = [
            lanes.read(
                x,
                fetched[0],
                column,
                mask=mask & inside,
                count=team.count,
                otherwise=parts[0].empty,
            )
            for column, inside in zip(item.columns, item.inside, strict=True)
        ]
        return values, lanes.read(ids, fetched[0], mask=mask)[0]

    def combine(state: State, fetched: Any, loaded: Any, slot: Any, mask: jax.Array) -> State:
        values, identity = loaded
        if repetition is not None:
            identity = identity + fetched[1] * REPETITION
        counts = lanes.spread(jnp.where(mask, 1.0, 0.0), team.count)
        steps = len(values)
        message = (values, [counts] * steps, [lanes.spread(identity, team.count)] * steps)
        return merge(state, message)

    return fold_edges(lanes, team, item, fetch, load, combine, empty_state(lanes, team, parts))


def winner_gradient(
    x: jax.Array,
    rows: Rows,
    neighbors: jax.Array,
    ids: jax.Array,
    adjoint: tuple[jax.Array, jax.Array, jax.Array],
    before: Result,
    *,
    repetition: jax.Array | None = None,
    slots: jax.Array | None = None,
    fresh: bool = False,
    launch: Launch | None = None,
) -> jax.Array:
    """dx_j = before_j + sum_{e: j -> i} g_i where x_j won at i.

    Args:
      x: [rows, width], float32, bfloat16 or float16.
      rows: the rows, which are senders, and their edges.
      neighbors: int32 [edges], the receiver of each edge.
      ids: int32 [rows], what identifies each.
      adjoint: [receivers, width] each: what x_j must be equal to, of any of these types, NaN where
        only the identity tells; g, float32; and the identity of a winner, uint32.
      before: float32 [rows, width], written over where a row is in `rows`.
      repetition: int32 [slots], which of several equal edges each one is; None: no equal edges.
      slots: int32 [edges], the slot of each edge; needed with `repetition`.
      fresh: whether `before` is 0 there, and need not be read; it may then be a shape and a type,
        and starts as anything.
      launch: how the kernel is started; None: for the chip of this process.

    Returns:
      float32 [rows, width].
    """
    launch = launch or Launch()
    team = team_for(x.shape[1], 4, tables=len(adjoint), words=launch.words)
    arrays = [x, neighbors, ids, *adjoint]
    if repetition is not None and slots is not None:
        arrays += [repetition, slots]
    reduction = Reduction("winner_gradient", SUM, _fold_gradient, add_states)
    return reduce_rows(reduction, team, rows, arrays, [before], launch, fresh=fresh)[0]


def _fold_gradient(lanes: Lanes, team: Team, item: Item, references: Sequence[Any]) -> State:
    x, neighbors, ids, *adjoint = references[:6]
    repetition, slots = (*references[6:], None, None)[:2]
    places = list(zip(item.columns, item.inside, strict=True))
    own = [
        lanes.read(x, item.row, column, mask=item.valid & inside, count=team.count)
        for column, inside in places
    ]
    own_id = lanes.read(ids, item.row, mask=item.valid)[0]

    def fetch(slot: jax.Array, mask: jax.Array) -> list[jax.Array]:
        found = [lanes.read(neighbors, slot, mask=mask)[0]]
        return found if slots is None else [*found, lanes.read(slots, slot, mask=mask)[0]]

    def load(fetched: list[jax.Array], slot: jax.Array, mask: jax.Array) -> Any:
        found = [
            [
                lanes.read(table, fetched[0], column, mask=mask & inside, count=team.count)
                for column, inside in places
            ]
            for table in adjoint
        ]
        if repetition is None:
            return found, None
        return found, lanes.read(repetition, fetched[1], mask=mask)[0]

    def combine(state: State, fetched: Any, loaded: Any, slot: Any, mask: Any) -> State:
        (equal, gradient, winner), times = loaded
        edge = own_id if times is None else own_id + times * REPETITION
        identity = lanes.spread(edge, team.count)
        shares = [
            jnp.where((winner[step] == identity) | (own[step] == equal[step]), gradient[step], 0.0)
            for step in range(team.steps)
        ]
        return add_states(state, (shares,))

    return fold_edges(lanes, team, item, fetch, load, combine, empty_state(lanes, team, SUM))
