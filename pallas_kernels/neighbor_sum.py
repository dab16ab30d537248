"""Sums and means over the neighbors of every row: a sparse matrix times a dense one.

Expected: an edge reads a row of x, 4 bytes of index and its weights (4 bytes per head, and 4 for
its index in the transpose). A row of the result is written once and, except for a mean that is
continued, not read. Arithmetic takes less time than these bytes, so the number of reads that a lane
has in flight counts: 8 of 16 bytes at 16, 100, 128 and 256 columns, 24 of 4 bytes at 41, 10 of 8
bytes at 602. With 3 to 8 resident warpgroups these are 34 to 123 kB per multiprocessor, where 29
sustain 4.8 TB/s at 0.8 microseconds: the bound is the memory, or the L2 cache where it holds the
rows. 602 columns are not padded to 604 for reads of 16 bytes: the lanes of a warp read 256
consecutive bytes already, and rows of 2,416 bytes touch as many sectors as rows of 2,408.
Where the table exceeds the L2 cache and some of its columns fit, one pass sums these and the next
pass the next (`teams_for`): an H100 sums 128 columns over Reddit's edges in 8.2 ms, in one pass in
12.3.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.lanes import Lanes
from pallas_kernels.pytrees import pytree
from pallas_kernels.reduction import (
    Part,
    Reduction,
    Result,
    State,
    empty_state,
    reduce_rows,
)
from pallas_kernels.rows import Item, Rows, fold_edges
from pallas_kernels.teams import Launch, Team, team_for, teams_for

__all__ = [
    "SUM",
    "Neighbors",
    "add_states",
    "fold_neighbors",
    "neighbor_mean",
    "neighbor_sum",
]

SUM = (Part(0.0),)
"""The state of a sum."""

MEAN = (Part(0.0), Part(0.0, per_head=True))
"""The state of a mean: a sum, and the number of its terms."""


@pytree
class Neighbors:
    """The rows and weights that edges contribute to the sum of their row.

    Attributes:
      x: [neighbors' rows, heads * width], float32, bfloat16 or float16.
      neighbors: int32 [edges], the row of `x` of each edge; None: its own index, where `x` has a
        row per edge.
      weights: [slots, heads], of any of these types; None: 1.
      slots: int32 [edges], the row of `weights` of each edge; None: its own index.
      scale: float32 [neighbors' rows], the factor of each row of `x`; None: 1.
    """

    x: jax.Array
    neighbors: jax.Array | None
    weights: jax.Array | None = None
    slots: jax.Array | None = None
    scale: jax.Array | None = None

    @property
    def heads(self) -> int:
        """The number of weights per edge."""
        return 1 if self.weights is None else self.weights.shape[1]

    def operands(self) -> dict[str, jax.Array]:
        """The arrays, by the names of their references in `fold_neighbors`."""
        fields = ("x", "neighbors", "weights", "slots", "scale")
        named = {name: getattr(self, name) for name in fields}
        return {name: array for name, array in named.items() if array is not None}

    def teams(self, launch: Launch) -> list[Team]:
        """The teams for the rows, one for each pass over some of the columns."""
        (rows, columns), size, heads = self.x.shape, self.x.dtype.itemsize, self.heads
        if heads > 1 or self.neighbors is None:
            return [team_for(columns // heads, size, heads=heads, words=launch.words)]
        return teams_for(self.neighbors.size, rows, columns, size, launch)


def neighbor_sum(
    edges: Neighbors,
    rows: Rows,
    before: Result,
    *,
    fresh: bool = False,
    launch: Launch | None = None,
) -> jax.Array:
    """y_i = before_i + sum_{e of row i} w_e s_j x_j, with j the neighbor of e.

    Args:
      edges: the rows and weights of the edges.
      rows: the rows and their edges.
      before: float32 [rows, heads * width], overwritten at the rows in `rows`.
      fresh: whether `before` is 0 there, and need not be read; it may then be the shape and type of
        an uninitialised array.
      launch: the launch configuration; None: the one for the chip of this process.

    Returns:
      float32 [rows, heads * width]; the same bits on every run.
    """
    launch, operands = launch or Launch.here(), edges.operands()
    fold = partial(fold_neighbors, tuple(operands))
    reduction = Reduction("neighbor_sum", SUM, fold, add_states)
    arrays = list(operands.values())
    teams = edges.teams(launch)
    return reduce_rows(reduction, teams, rows, arrays, [before], launch, fresh=fresh)[0]


def neighbor_mean(
    edges: Neighbors,
    rows: Rows,
    results: tuple[Result, Result],
    before: tuple[jax.Array, jax.Array] | None = None,
    *,
    launch: Launch | None = None,
) -> tuple[jax.Array, jax.Array]:
    """y_i = (before_i + sum_{e of row i} w_e s_j x_j) / n_i, divided in the same kernel.

    n_i is the number of edges of the row, plus that in `before`, and at least 1.

    Args:
      edges: the rows and weights of the edges.
      rows: the rows and their edges.
      results: the arrays for y, [rows, heads * width], of any type of `Neighbors.x`, and 1 / n,
        float32 [rows, heads], as in `reduce_rows`.
      before: a sum, float32 [rows, heads * width], and the number of its terms, float32 [rows,
        heads]; None: no terms.
      launch: the launch configuration; None: the one for the chip of this process.

    Returns:
      y and 1 / n.
    """
    launch, operands = launch or Launch.here(), edges.operands()
    fold = partial(fold_neighbors, tuple(operands))

    def fold_both(lanes: Lanes, team: Team, item: Item, references: Sequence[Any]) -> State:
        count = item.length.astype(jnp.float32)
        return *fold(lanes, team, item, references), [lanes.spread(count, 1)]

    lanes = Lanes(launch.interpret is not None)

    def divide(state: State) -> State:
        (count,) = lanes.split(state[1][0])
        count = jnp.maximum(count, 1.0)
        means = [each / lanes.spread(count, each.shape[0]) for each in state[0]]
        return means, [lanes.spread(1.0 / count, 1)]

    reduction = Reduction("neighbor_mean", MEAN, fold_both, add_states, divide)
    y, inverse = reduce_rows(
        reduction,
        edges.teams(launch),
        rows,
        list(operands.values()),
        results,
        launch,
        before=before or (),
        fresh=before is None,
    )
    return y, inverse


def add_states(left: State, right: State) -> State:
    """The state of sums after the edges of both."""
    return tuple(
        [a + b for a, b in zip(*part, strict=True)] for part in zip(left, right, strict=True)
    )


def fold_neighbors(
    names: Sequence[str], lanes: Lanes, team: Team, item: Item, references: Sequence[Any]
) -> State:
    """The sum of an item's edges.

    Args:
      names: names of the references, as in `Neighbors.operands()`.
      lanes, team, item: those of the edges.
      references: the references of the operands.

    Returns:
      The state of a sum.
    """
    tables = dict(zip(names, references, strict=True))

    def fetch(slot: jax.Array, mask: jax.Array) -> Mapping[str, jax.Array]:
        return {
            name: lanes.read(tables[name], slot, mask=mask)[0]
            for name in ("neighbors", "slots")
            if name in tables
        }

    def load(fetched: Mapping[str, jax.Array], slot: jax.Array, mask: jax.Array) -> Any:
        neighbor, place = (fetched.get(name, slot) for name in ("neighbors", "slots"))
        factors = []
        if "weights" in tables:
            factors.append(lanes.read(tables["weights"], place, item.head, mask=mask)[0])
        if "scale" in tables:
            factors.append(lanes.read(tables["scale"], neighbor, mask=mask)[0])
        rows = [
            lanes.read(tables["x"], neighbor, column, mask=mask & inside, count=team.count)
            for column, inside in zip(item.columns, item.inside, strict=True)
        ]
        return rows, factors

    def combine(state: State, fetched: Any, loaded: Any, slot: Any, mask: Any) -> State:
        rows, factors = loaded
        if factors:
            factor = lanes.spread(functools.reduce(jnp.multiply, factors), team.count)
            rows = [values * factor for values in rows]
        return add_states(state, (rows,))

    return fold_edges(lanes, team, item, fetch, load, combine, empty_state(lanes, team, SUM))
