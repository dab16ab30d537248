"""One product, or one sum, per edge of the rows at its two ends.

Expected: an edge reads a row of z and 4 bytes of index, and writes 4 bytes per head, or a row; the
row of x is read once for all its edges. In flight: as in `neighbor_sum`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.compatibility import kernel
from pallas_kernels.lanes import Lanes
from pallas_kernels.rows import OPERANDS, Item, Rows, fold_edges, visit_rows
from pallas_kernels.teams import Launch, Team, team_for

__all__ = ["edge_products", "edge_sums", "team_total"]


def edge_products(
    x: jax.Array,
    z: jax.Array,
    rows: Rows,
    neighbors: jax.Array,
    before: jax.Array,
    *,
    slots: jax.Array | None = None,
    launch: Launch | None = None,
) -> jax.Array:
    """y_e = <x_i, z_j> per head, for every edge e of row i with neighbor j.

    Args:
      x: [rows, heads * width], float32, bfloat16 or float16.
      z: [neighbors' rows, heads * width], of any of these types.
      rows: the rows and their edges.
      neighbors: int32 [edges], the row of `z` of each edge.
      before: [slots, heads], of the type of the result, overwritten at the slots of edges.
      slots: int32 [edges], the slot of each edge's product; None: its own index.
      launch: the launch configuration; None: the one for the chip of this process.

    Returns:
      [slots, heads], summed in float32 and rounded to the type of `before`.
    """
    heads = before.shape[1]
    widest = max(x.dtype.itemsize, z.dtype.itemsize)
    launch = (launch or Launch.here()).without_clusters()
    team = team_for(x.shape[1] // heads, widest, heads=heads, words=launch.words)

    def put(lanes: Lanes, item: Item, y: Any, own: Any, found: Any, slot: Any, mask: Any) -> None:
        products = [a * b for a, b in zip(own, found, strict=True)]
        numbers = [number for each in products for number in lanes.split(each)]
        total = functools.reduce(jnp.add, numbers)
        result = lanes.spread(team_total(lanes, team, total), 1)
        lanes.write(y, slot, item.head, result, mask=mask & (item.lane == 0))

    return _per_edge("edge_products", put, team, x, z, rows, neighbors, before, slots, launch)


def edge_sums(
    x: jax.Array,
    z: jax.Array,
    rows: Rows,
    neighbors: jax.Array,
    before: jax.Array,
    *,
    slots: jax.Array | None = None,
    launch: Launch | None = None,
) -> jax.Array:
    """y_e = x_i + z_j for every edge e of row i with neighbor j.

    Args:
      x: [rows, width], float32, bfloat16 or float16.
      z: [neighbors' rows, width], of any of these types.
      rows, neighbors, slots, launch: as for `edge_products`.
      before: [slots, width], of the type of the result, overwritten at the slots of edges.

    Returns:
      [slots, width].
    """
    launch = (launch or Launch.here()).without_clusters()
    team = team_for(x.shape[1], max(x.dtype.itemsize, z.dtype.itemsize), words=launch.words)

    def put(lanes: Lanes, item: Item, y: Any, own: Any, found: Any, slot: Any, mask: Any) -> None:
        for column, inside, a, b in zip(item.columns, item.inside, own, found, strict=True):
            lanes.write(y, slot, column, a + b, mask=mask & inside)

    return _per_edge("edge_sums", put, team, x, z, rows, neighbors, before, slots, launch)


def team_total(lanes: Lanes, team: Team, values: jax.Array) -> jax.Array:
    """[lanes]: the sum over the lanes of a team, the same bits in all of them."""
    distance = 1
    while distance < team.lanes:
        values = values + lanes.exchange(values, distance)
        distance *= 2
    return values


def _per_edge(
    name: str,
    put: Callable[..., None],
    team: Team,
    x: jax.Array,
    z: jax.Array,
    rows: Rows,
    neighbors: jax.Array,
    before: jax.Array,
    slots: jax.Array | None,
    launch: Launch,
) -> jax.Array:
    lanes = Lanes(launch.interpret is not None)
    lists = [rows.whole] if rows.pieces is None else [rows.pieces, rows.whole]
    described = [operand for each in lists for operand in each.operands()]
    arrays = [x, z, neighbors] if slots is None else [x, z, neighbors, slots]

    def body(*references: Any) -> None:
        tables, y = references[len(described) : -2], references[-1]
        for place in range(len(lists)):
            some = references[place * OPERANDS : (place + 1) * OPERANDS]
            visit_rows(
                lanes, team, launch, some, lambda item: _visit(lanes, team, item, tables, y, put)
            )

    return kernel(
        body,
        [(before.shape, before.dtype)],
        programs=launch.programs,
        warpgroups=launch.warpgroups,
        cluster=launch.cluster,
        name=name,
        continued={len(described) + len(arrays): 0},
        interpret=launch.interpret,
    )(*described, *arrays, before)[0]


def _visit(
    lanes: Lanes, team: Team, item: Item, tables: Any, y: Any, put: Callable[..., None]
) -> None:
    x, z, neighbors, slots = (*tables, None)[:4]

    def of_row(table: Any, row: jax.Array, mask: jax.Array) -> list[jax.Array]:
        return [
            lanes.read(table, row, column, mask=mask & inside, count=team.count)
            for column, inside in zip(item.columns, item.inside, strict=True)
        ]

    own = of_row(x, item.row, item.valid)

    def fetch(slot: jax.Array, mask: jax.Array) -> list[jax.Array]:
        found = [lanes.read(neighbors, slot, mask=mask)[0]]
        return found if slots is None else [*found, lanes.read(slots, slot, mask=mask)[0]]

    def load(fetched: list[jax.Array], slot: jax.Array, mask: jax.Array) -> list[jax.Array]:
        return of_row(z, fetched[0], mask)

    def combine(state: tuple, fetched: Any, loaded: Any, slot: Any, mask: Any) -> tuple:
        put(lanes, item, y, own, loaded, slot if slots is None else fetched[1], mask)
        return state

    fold_edges(lanes, team, item, fetch, load, combine, ())
