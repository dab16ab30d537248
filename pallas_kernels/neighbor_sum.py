"""Sums over the neighbors of every row: sparse matrix times dense matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.compatibility import kernel
from pallas_kernels.lanes import Lanes
from pallas_kernels.rows import (
    OPERANDS,
    Item,
    RowList,
    Rows,
    empty_state,
    fold_edges,
    visit_rows,
)
from pallas_kernels.teams import Launch, Team, team_for

__all__ = ["neighbor_sum"]


def neighbor_sum(
    x: jax.Array,
    rows: Rows,
    neighbors: jax.Array,
    before: jax.Array,
    *,
    weights: jax.Array | None = None,
    slots: jax.Array | None = None,
    launch: Launch | None = None,
) -> jax.Array:
    """y_i = before_i + sum_{e of row i} w_e x_{neighbor of e}.

    Args:
      x: [neighbors' rows, heads, width], float32, bfloat16 or float16.
      rows: the rows and their edges.
      neighbors: int32 [edges], the row of `x` that each edge brings.
      before: float32 [rows, heads, width], written over where a row has edges.
      weights: [slots, heads], of any of these types; None: 1.
      slots: int32 [edges], the row of `weights` of each edge; None: its own place.
      launch: how the kernel is started; None: for Hopper.

    Returns:
      float32 [rows, heads, width]; the same bits on every run.
    """
    launch = launch or Launch()
    table = x.reshape(x.shape[0], -1)
    start = before.reshape(before.shape[0], -1)
    heads = 1 if weights is None else x.shape[1]
    team = team_for(table.shape[1] // heads, x.dtype.itemsize, heads=heads)
    edges = [neighbors] if weights is None else [neighbors, weights]
    if weights is not None and slots is not None:
        edges.append(slots)
    results = [(start.shape, jnp.float32)]
    if rows.pieces is None or rows.joined is None:
        y = _call(team, launch, [rows.whole], [table, *edges], [start], results)[0]
        return y.reshape(before.shape)
    results.append(((rows.partials, table.shape[1]), jnp.float32))
    lists = [rows.pieces, rows.whole]
    y, partials = _call(team, launch, lists, [table, *edges], [start], results)
    wide = team_for(table.shape[1], 4)
    return _call(wide, launch, [rows.joined], [partials], [y], results[:1])[0].reshape(before.shape)


def _call(
    team: Team,
    launch: Launch,
    lists: list[RowList],
    arrays: list[jax.Array],
    before: list[jax.Array],
    results: list[tuple[tuple[int, ...], Any]],
) -> list[jax.Array]:
    """The sums of some lists of rows; of two, the first is of pieces."""
    lanes = Lanes(launch.interpret is not None)
    described = [operand for each in lists for operand in each.operands()]
    ends = len(described), len(described) + len(arrays), len(described) + len(arrays) + 1

    def body(*references: Any) -> None:
        edges, outputs = references[ends[0] : ends[1]], references[ends[2] :]

        def visit(item: Item, write: Callable[[Item, list[jax.Array]], None]) -> None:
            write(item, _sum(lanes, team, item, *edges))

        def write_rows(item: Item, total: list[jax.Array]) -> None:
            for column, inside, values in zip(item.columns, item.inside, total, strict=True):
                mask = item.valid & inside
                old = lanes.read(
                    outputs[0], item.row, column, mask=mask, count=team.count, constant=False
                )
                lanes.write(outputs[0], item.row, column, old + values, mask=mask)

        def write_partials(item: Item, total: list[jax.Array]) -> None:
            for column, inside, values in zip(item.columns, item.inside, total, strict=True):
                lanes.write(outputs[1], item.entry, column, values, mask=item.valid & inside)

        writers = [write_partials, write_rows] if len(lists) == 2 else [write_rows]
        for place, write in enumerate(writers):
            some = references[place * OPERANDS : (place + 1) * OPERANDS]
            visit_rows(lanes, team, launch, some, lambda item, write=write: visit(item, write))

    return kernel(
        body,
        results,
        programs=launch.programs,
        warpgroups=launch.warpgroups,
        name="neighbor_sum",
        continued={ends[1]: 0},
        interpret=launch.interpret,
    )(*described, *arrays, *before)


def _sum(
    lanes: Lanes,
    team: Team,
    item: Item,
    x: Any,
    neighbors: Any = None,
    weights: Any = None,
    slots: Any = None,
) -> list[jax.Array]:
    """What the edges of an item bring, [count, lanes] for each read of a lane."""

    def fetch(slot: jax.Array, mask: jax.Array) -> tuple[jax.Array, ...]:
        if neighbors is None:
            return ()
        neighbor = lanes.read(neighbors, slot, mask=mask)[0]
        if slots is None:
            return (neighbor,)
        return neighbor, lanes.read(slots, slot, mask=mask)[0]

    def load(fetched: tuple[jax.Array, ...], slot: jax.Array, mask: jax.Array) -> Any:
        neighbor = fetched[0] if fetched else slot
        rows = [
            lanes.read(x, neighbor, column, mask=mask & inside, count=team.count)
            for column, inside in zip(item.columns, item.inside, strict=True)
        ]
        if weights is None:
            return rows, None
        place = fetched[1] if slots is not None else slot
        return rows, lanes.read(weights, place, item.head, mask=mask)[0]

    def combine(state: Any, fetched: Any, loaded: Any, slot: jax.Array, mask: jax.Array) -> Any:
        rows, weight = loaded
        if weight is not None:
            rows = [values * lanes.spread(weight, team.count) for values in rows]
        return [total + values for total, values in zip(state, rows, strict=True)]

    return fold_edges(lanes, team, item, fetch, load, combine, empty_state(lanes, team, 0.0))
