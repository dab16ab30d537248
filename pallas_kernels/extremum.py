"""Maxima and minima over the neighbors of every row, and the gradient of the winners.

Expected: forward an edge reads a row of x and 4 bytes of index, and a row writes two numbers per
column; backward an edge reads two numbers per column of its receiver (the winner and the gradient).
The state is twice that of a sum.
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
from pallas_kernels.teams import Launch, Team, teams_for

__all__ = ["neighbor_extremum", "winner_gradient"]


def neighbor_extremum(
    x: jax.Array,
    rows: Rows,
    neighbors: jax.Array,
    before: tuple[Result, Result],
    *,
    maximum: bool,
    fresh: bool = False,
    launch: Launch | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The largest (or smallest) x_{neighbor of e} of every row, and how many equal it.

    NaN is larger and smaller than any number, and equal to NaN.

    Args:
      x: [neighbors' rows, width], float32, bfloat16 or float16.
      rows: the rows and their edges.
      neighbors: int32 [edges], the row of `x` of each edge.
      before: the state to continue from, best and count, float32 [rows, width] each; the state of
        no edges is -inf (inf) and 0. It is overwritten at the rows in `rows`.
      maximum: whether the largest wins, or the smallest.
      fresh: whether `before` is the state of no edges there, and need not be read; it may then be
        shapes and types of uninitialised arrays.
      launch: the launch configuration; None: the one for the chip of this process.

    Returns:
      The state after the edges.
    """
    launch = launch or Launch.here()
    teams = teams_for(neighbors.size, x.shape[0], x.shape[1], x.dtype.itemsize, launch, tables=2)
    parts = (Part(-math.inf if maximum else math.inf), Part(0.0))
    merge = _merging(maximum)

    def fold(lanes: Lanes, team: Team, item: Item, references: Sequence[Any]) -> State:
        return _fold(lanes, team, item, references, parts, merge)

    reduction = Reduction("neighbor_extremum", parts, fold, merge)
    best, count = reduce_rows(
        reduction, teams, rows, [x, neighbors], list(before), launch, fresh=fresh
    )
    return best, count


def _merging(maximum: bool) -> Callable[[State, State], State]:
    def merge(left: State, right: State) -> State:
        merged = [_merge_two(maximum, *each) for each in zip(*left, *right, strict=True)]
        best, count = zip(*merged, strict=True)
        return list(best), list(count)

    return merge


def _merge_two(
    maximum: bool,
    left: jax.Array,
    left_count: jax.Array,
    right: jax.Array,
    right_count: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    # A GPU's instruction for the maximum returns the number where one of the two is NaN.
    takes_right, takes_left = _beats(maximum, right, left), _beats(maximum, left, right)
    count = jnp.where(takes_right, 0.0, left_count) + jnp.where(takes_left, 0.0, right_count)
    return jnp.where(takes_right, right, left), count


def _beats(maximum: bool, left: jax.Array, right: jax.Array) -> jax.Array:
    better = left > right if maximum else left < right
    return better | ((left != left) & (right == right))


def _fold(
    lanes: Lanes,
    team: Team,
    item: Item,
    references: Sequence[Any],
    parts: tuple[Part, ...],
    merge: Callable[[State, State], State],
) -> State:
    x, neighbors = references

    def fetch(slot: jax.Array, mask: jax.Array) -> list[jax.Array]:
        return [lanes.read(neighbors, slot, mask=mask)[0]]

    def load(fetched: list[jax.Array], slot: jax.Array, mask: jax.Array) -> Any:
        return [
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

    def combine(state: State, fetched: Any, loaded: Any, slot: Any, mask: jax.Array) -> State:
        counts = lanes.spread(jnp.where(mask, 1.0, 0.0), team.count)
        return merge(state, (loaded, [counts] * len(loaded)))

    return fold_edges(lanes, team, item, fetch, load, combine, empty_state(lanes, team, parts))


def winner_gradient(
    x: jax.Array,
    rows: Rows,
    neighbors: jax.Array,
    adjoint: tuple[jax.Array, jax.Array],
    before: Result,
    *,
    fresh: bool = False,
    launch: Launch | None = None,
) -> jax.Array:
    """dx_j = before_j + sum_{e: j -> i} g_i where x_j = y_i, or both are NaN.

    Args:
      x: [rows, width], float32, bfloat16 or float16.
      rows: the rows, which are senders, and their edges.
      neighbors: int32 [edges], the receiver of each edge.
      adjoint: [receivers, width] each: y_i, of any of these types, and g, float32.
      before: float32 [rows, width], overwritten at the rows in `rows`.
      fresh: whether `before` is 0 there, and need not be read; it may then be the shape and type of
        an uninitialised array.
      launch: the launch configuration; None: the one for the chip of this process.

    Returns:
      float32 [rows, width].
    """
    launch = launch or Launch.here()
    receivers, width = adjoint[0].shape
    teams = teams_for(neighbors.size, receivers, width, 4, launch, tables=len(adjoint))
    reduction = Reduction("winner_gradient", SUM, _fold_gradient, add_states)
    arrays = [x, neighbors, *adjoint]
    return reduce_rows(reduction, teams, rows, arrays, [before], launch, fresh=fresh)[0]


def _fold_gradient(lanes: Lanes, team: Team, item: Item, references: Sequence[Any]) -> State:
    x, neighbors, *adjoint = references
    places = list(zip(item.columns, item.inside, strict=True))
    own = [
        lanes.read(x, item.row, column, mask=item.valid & inside, count=team.count)
        for column, inside in places
    ]

    def fetch(slot: jax.Array, mask: jax.Array) -> list[jax.Array]:
        return [lanes.read(neighbors, slot, mask=mask)[0]]

    def load(fetched: list[jax.Array], slot: jax.Array, mask: jax.Array) -> Any:
        return [
            [
                lanes.read(table, fetched[0], column, mask=mask & inside, count=team.count)
                for column, inside in places
            ]
            for table in adjoint
        ]

    def combine(state: State, fetched: Any, loaded: Any, slot: Any, mask: Any) -> State:
        shares = [
            jnp.where(_equal(*pair), share, 0.0) for *pair, share in zip(own, *loaded, strict=True)
        ]
        return add_states(state, (shares,))

    return fold_edges(lanes, team, item, fetch, load, combine, empty_state(lanes, team, SUM))


def _equal(left: jax.Array, right: jax.Array) -> jax.Array:
    return (left == right) | ((left != left) & (right != right))
