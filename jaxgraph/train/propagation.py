"""Propagation of numbers of nodes over a graph, on its devices or part by part.

Arrays on the host have a row for each node, in the graph's order, in every process.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxgraph.layers.propagation import propagate_values
from jaxgraph.parallel import Shard, ShardedGraph, gather_rows, spmd
from jaxgraph.parallel.spmd import in_order, on_host
from jaxgraph.parallel.streaming.function import StreamedFunction
from jaxgraph.parallel.streaming.graph import StreamedGraph
from jaxgraph.train.latest_programs import LatestPrograms

_START, _VALUES = "propagation start", "propagation values"


def node_arrays(graph: ShardedGraph, *names: str) -> list[np.ndarray]:
    """Arrays of a graph's table of nodes, such as labels and masks, on the host."""
    if isinstance(graph, StreamedGraph):
        parts, numbers = graph.parts, graph.parts.numbers.table()
        rows = [[parts.leaf(getattr(numbers, n), part) for part in parts.own] for n in names]
        return [graph.gather_rows(np.stack(each)) for each in rows]
    table = graph.shards.table()
    given = (getattr(table, name) for name in names)
    ids, mask, *found = on_host(table.node_ids, table.node_mask, *given)
    return [in_order(ids[mask], rows[mask], graph.num_nodes) for rows in found]


def propagated(
    graph: ShardedGraph,
    start: np.ndarray,
    steps: int,
    alpha: float,
    bounds: tuple[float, float] | None,
) -> np.ndarray:
    """z = clip(alpha A z + (1 - alpha) start) to some bounds, `steps` times, from z = start.

    Without bounds the rows of training nodes are those of `start` again after each step.

    Args:
      graph: the graph.
      start: float [nodes, columns].
      steps: number of steps.
      alpha: share of the neighbours.
      bounds: those of the clip.
    """
    least, most = bounds or (-np.inf, np.inf)
    numbers = np.array((alpha, least, most, bounds is None), start.dtype)
    if isinstance(graph, StreamedGraph):
        return _part_by_part(graph, start, steps, numbers)
    table = graph.shards.table()
    ids, mask = on_host(table.node_ids, table.node_mask)
    sharding = NamedSharding(graph.mesh, PartitionSpec(graph.axis))

    def of_devices(index: Any) -> np.ndarray:
        return _rows_of(start, ids[index[:1]], mask[index[:1]])

    placed = jax.make_array_from_callback((*ids.shape, start.shape[1]), sharding, of_devices)
    shards = graph.shards.with_table(node_data={_START: placed})
    return gather_rows(
        _on_devices(dataclasses.replace(graph, shards=shards), numbers, steps), graph
    )


def _part_by_part(
    graph: StreamedGraph, start: np.ndarray, steps: int, numbers: np.ndarray
) -> np.ndarray:
    """The parts visit the devices once in every step; between steps their values wait."""
    parts, store = graph.parts, graph.parts.store
    table, names = parts.numbers.table(), (_START, _VALUES)

    def types(table: Any) -> dict[str, Any]:
        shape = (*table.node_mask.shape, start.shape[1])
        return {"node_data": {name: jax.ShapeDtypeStruct(shape, start.dtype) for name in names}}

    def make() -> StreamedFunction:
        waiting = graph.with_table(types, lambda table: {"node_data": {n: n for n in names}})
        return StreamedFunction(_of_shard, waiting, (numbers,), outputs="rows")

    step = parts.cached(("propagation", start.shape[1], start.dtype), make)
    for part in parts.own:
        ids, mask = parts.leaf(table.node_ids, part), parts.leaf(table.node_mask, part)
        for name in names:
            store.put(name, part, _rows_of(start, ids, mask))
    for _ in range(steps):
        step.write_rows(lambda part, rows: store.put(_VALUES, part, rows), numbers)
    found = graph.gather_rows(np.stack([store.get(_VALUES, part) for part in parts.own]))
    for part in parts.own:
        for name in names:
            store.drop(name, part)
    store.recycle()
    return found


def _rows_of(values: np.ndarray, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The rows of nodes, 0 in padding."""
    return np.where(mask[..., None], values[ids], np.zeros((), values.dtype))


def _of_shard(shard: Shard, numbers: jax.Array, steps: int = 1) -> jax.Array:
    """The values of a shard's rows after some steps."""
    alpha, least, most, resets = numbers
    start = shard.node_data[_START]
    fixed = (shard.train_mask & (resets > 0))[:, None]

    def post_step(z: jax.Array) -> jax.Array:
        return jnp.where(fixed, start, jnp.clip(z, least, most))

    values = shard.node_data.get(_VALUES, start)
    return propagate_values(shard, values, start, steps=steps, alpha=alpha, post_step=post_step)


@partial(LatestPrograms, static_argnums=(2,))
def _on_devices(graph: ShardedGraph, numbers: np.ndarray, steps: int) -> jax.Array:
    return spmd(partial(_of_shard, steps=steps), outputs="rows")(graph, numbers)
