"""Sums over the neighbors of every row: a sparse matrix times a dense one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from pallas_kernels.lanes import Lanes
from pallas_kernels.reduction import Part, Reduction, State, empty_state, reduce_rows
from pallas_kernels.rows import Item, Rows, fold_edges
from pallas_kernels.teams import Launch, Team, team_for

__all__ = ["SUM", "add_states", "fold_neighbors", "neighbor_sum"]

SUM = (Part(0.0),)
"""The state of a sum."""


def neighbor_sum(
    x: jax.Array,
    rows: Rows,
    neighbors: jax.Array,
    before: jax.Array,
    *,
    weights: jax.Array | None = None,
    slots: jax.Array | None = None,
    fresh: bool = False,
    launch: Launch | None = None,
) -> jax.Array:
    """y_i = before_i + sum_{e of row i} w_e x_{neighbor of e}.

    Args:
      x: [neighbors' rows, heads * width], float32, bfloat16 or float16.
      rows: the rows and their edges.
      neighbors: int32 [edges], the row of `x` that each edge brings.
      before: float32 [rows, heads * width], written over where a row has edges.
      weights: [slots, heads], of any of these types; None: 1.
      slots: int32 [edges], the row of `weights` of each edge; None: its own place.
      fresh: whether `before` is 0 where a row has edges, and need not be read.
      launch: how the kernel is started; None: for Hopper.

    Returns:
      float32 [rows, heads * width]; the same bits on every run.
    """
    heads = 1 if weights is None else weights.shape[1]
    launch = launch or Launch()
    team = team_for(x.shape[1] // heads, x.dtype.itemsize, heads=heads, words=launch.words)
    arrays = [x, neighbors]
    if weights is not None:
        arrays += [weights] if slots is None else [weights, slots]
    reduction = Reduction("neighbor_sum", SUM, fold_neighbors, add_states)
    return reduce_rows(reduction, team, rows, arrays, [before], launch, fresh=fresh)[0]


def add_states(left: State, right: State) -> State:
    """The state of a sum after the edges of both."""
    return ([a + b for a, b in zip(left[0], right[0], strict=True)],)


def fold_neighbors(lanes: Lanes, team: Team, item: Item, references: Sequence[Any]) -> State:
    """The sum of an item's edges, of references to x, neighbors and maybe weights and slots."""
    x, neighbors, weights, slots = (*references, None, None)[:4]

    def fetch(slot: jax.Array, mask: jax.Array) -> list[jax.Array]:
        found = [lanes.read(neighbors, slot, mask=mask)[0]]
        return found if slots is None else [*found, lanes.read(slots, slot, mask=mask)[0]]

    def load(fetched: list[jax.Array], slot: jax.Array, mask: jax.Array) -> Any:
        rows = [
            lanes.read(x, fetched[0], column, mask=mask & inside, count=team.count)
            for column, inside in zip(item.columns, item.inside, strict=True)
        ]
        if weights is None:
            return rows, None
        place = slot if slots is None else fetched[1]
        return rows, lanes.read(weights, place, item.head, mask=mask)[0]

    def combine(state: State, fetched: Any, loaded: Any, slot: Any, mask: Any) -> State:
        rows, weight = loaded
        if weight is not None:
            rows = [values * lanes.spread(weight, team.count) for values in rows]
        return add_states(state, (rows,))

    return fold_edges(lanes, team, item, fetch, load, combine, empty_state(lanes, team, SUM))
