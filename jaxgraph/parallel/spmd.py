"""Running one function on every shard at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from jaxgraph.parallel.placement import ShardedGraph

__all__ = ["collect_rows", "gather_rows", "local_rows", "place_rows", "rows_prefix", "spmd"]

Pytree = Any
ROWS = "rows"
"""Metadata of a variable with one row per node: "nodes" in the graph's order, "placed" by shard."""


def spmd(
    function: Callable[..., Pytree], *, outputs: Pytree = "replicated"
) -> Callable[..., Pytree]:
    """Makes a function of a shard run on every shard of a sharded graph at once.

    Every `ShardedGraph` among the arguments of the result becomes the device's `Shard`. Variables
    whose rows belong to nodes (`jaxgraph.nn.NodeEmbedding`, after `place_rows`) become the device's
    rows. Everything else is the same on every device, and `jax.grad` of the result sums its
    gradient over the devices. Nothing may be returned as "replicated" that differs between
    devices: reduce it with `shard.sum` first.

    Args:
      function: pure, `(..., shard, ...) -> pytree of arrays`.
      outputs: for each output (a pytree prefix), "replicated": the same on every device, or "rows":
        [rows, ...], one row per node of the shard.

    Returns:
      A compiled function of global arrays; outputs of "rows" are [parts * rows, ...] in the order
      of the shards (`gather_rows` brings them into the graph's order).

    Raises:
      ValueError: no sharded graph among the arguments, two on different meshes, or `outputs` holds
        another word.
    """
    for word in jax.tree.leaves(outputs):
        if word not in ("replicated", "rows"):
            raise ValueError(f"outputs holds {word!r}; expected 'replicated' or 'rows'")

    @wraps(function)
    def on_all_shards(*arguments: Any) -> Pytree:
        mesh, axis = _mesh_of(arguments)
        split = PartitionSpec(axis)
        specs = jax.tree.map(
            lambda part: split if _is_split(part) else PartitionSpec(), arguments, is_leaf=_is_unit
        )
        out_specs = jax.tree.map(lambda word: split if word == "rows" else PartitionSpec(), outputs)

        def on_one_shard(*local: Any) -> Pytree:
            return function(*jax.tree.map(_own_shard, local, is_leaf=_is_graph))

        return jax.shard_map(
            on_one_shard, mesh=mesh, in_specs=specs, out_specs=out_specs, check_vma=True
        )(*arguments)

    return jax.jit(on_all_shards)


def _is_graph(part: Any) -> bool:
    return isinstance(part, ShardedGraph)


def _is_unit(part: Any) -> bool:
    return isinstance(part, ShardedGraph | nnx.Variable)


def _is_split(part: Any) -> bool:
    if isinstance(part, nnx.Variable):
        rows = part.get_metadata().get(ROWS)
        if rows == "nodes":
            raise ValueError(
                "a variable with one row per node is in the graph's order; split it with "
                "jaxgraph.parallel.place_rows(state, sharded) first"
            )
        return rows == "placed"
    return isinstance(part, ShardedGraph)


def _own_shard(part: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[0], part.shards) if _is_graph(part) else part


def _mesh_of(arguments: Any) -> tuple[jax.sharding.Mesh, str | tuple[str, ...]]:
    graphs = [p for p in jax.tree.leaves(arguments, is_leaf=_is_graph) if _is_graph(p)]
    if not graphs:
        raise ValueError(
            "spmd found no sharded graph among the arguments; pass the result of "
            "jaxgraph.parallel.shard"
        )
    if any(graph.mesh != graphs[0].mesh for graph in graphs):
        raise ValueError("the sharded graphs among the arguments live on different meshes")
    return graphs[0].mesh, graphs[0].axis


def rows_prefix(state: Pytree) -> Pytree:
    """The `outputs` of `spmd` for a pytree of variables, such as the gradient of `state`."""
    return jax.tree.map(
        lambda part: "rows" if _is_split(part) else "replicated",
        state,
        is_leaf=lambda part: isinstance(part, nnx.Variable),
    )


def place_rows(state: Pytree, sharded: ShardedGraph) -> Pytree:
    """Splits variables with one row per node over the shards; all others stay as they are.

    Args:
      state: pytree of `nnx.Variable`; those with metadata rows="nodes" are [nodes, ...].
      sharded: the graph whose nodes they belong to.

    Returns:
      The same with rows="placed", [parts * rows, ...].
    """
    sharding = NamedSharding(sharded.mesh, PartitionSpec(sharded.axis))
    rows = sharded.num_parts * sharded.manifest.node_rows

    def place(part: Any) -> Any:
        if not (isinstance(part, nnx.Variable) and part.get_metadata().get(ROWS) == "nodes"):
            return part
        value = part.get_value()
        if value.shape[0] != sharded.num_nodes:
            raise ValueError(
                f"a variable has {value.shape[0]} rows for {sharded.num_nodes} nodes; make "
                "NodeEmbedding with the number of nodes of the graph"
            )
        if isinstance(value, jax.ShapeDtypeStruct) or _is_abstract(sharded):
            shape = (rows, *value.shape[1:])
            placed = jax.ShapeDtypeStruct(shape, value.dtype, sharding=sharding)
        else:
            placed = jax.jit(_scatter_rows, out_shardings=sharding)(
                value, sharded.shards.node_ids, sharded.shards.node_mask
            )
        return _with_rows(part, placed, "placed")

    return jax.tree.map(place, state, is_leaf=lambda part: isinstance(part, nnx.Variable))


def _scatter_rows(value: jax.Array, node_ids: jax.Array, node_mask: jax.Array) -> jax.Array:
    mask = node_mask.reshape(-1, *(1,) * (value.ndim - 1))
    return jnp.where(mask, value[node_ids.reshape(-1)], 0)


def _is_abstract(sharded: ShardedGraph) -> bool:
    return isinstance(sharded.shards.node_ids, jax.ShapeDtypeStruct)


def _with_rows(part: nnx.Variable, value: Any, rows: str) -> nnx.Variable:
    metadata: dict[str, Any] = part.get_metadata() | {ROWS: rows}
    return type(part)(value, **metadata)


def collect_rows(state: Pytree, sharded: ShardedGraph) -> Pytree:
    """Brings variables split by `place_rows` back into the graph's order, [nodes, ...]."""

    def collect(part: Any) -> Any:
        if not (isinstance(part, nnx.Variable) and part.get_metadata().get(ROWS) == "placed"):
            return part
        return _with_rows(part, jnp.asarray(gather_rows(part.get_value(), sharded)), "nodes")

    return jax.tree.map(collect, state, is_leaf=lambda part: isinstance(part, nnx.Variable))


def local_rows(values: jax.Array, sharded: ShardedGraph) -> tuple[np.ndarray, np.ndarray]:
    """This process's rows of an output of kind "rows", with their node ids.

    Args:
      values: [parts * rows, ...].
      sharded: the graph.

    Returns:
      int64 [own nodes] and [own nodes, ...].
    """

    def local(array: jax.Array) -> np.ndarray:
        pieces = sorted(array.addressable_shards, key=lambda piece: piece.index[0].start or 0)
        return np.concatenate([np.asarray(piece.data) for piece in pieces])

    ids = local(sharded.shards.node_ids).reshape(-1)
    mask = local(sharded.shards.node_mask).reshape(-1)
    return ids[mask].astype(np.int64), local(values)[mask]


def gather_rows(values: jax.Array, sharded: ShardedGraph) -> np.ndarray:
    """An output of kind "rows" in the graph's order.

    Args:
      values: [parts * rows, ...].
      sharded: the graph.

    Returns:
      [nodes, ...] on the host, in every process.
    """
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        arrays = (values, sharded.shards.node_ids, sharded.shards.node_mask)
        values, ids, mask = multihost_utils.process_allgather(arrays, tiled=True)
        ids, mask = np.asarray(ids).reshape(-1), np.asarray(mask).reshape(-1)
        ids, rows = ids[mask], np.asarray(values)[mask]
    else:
        ids, rows = local_rows(values, sharded)
    gathered = np.zeros((sharded.num_nodes, *rows.shape[1:]), rows.dtype)
    gathered[ids] = rows
    return gathered
