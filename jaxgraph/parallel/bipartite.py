"""The neighbourhood of two tables of nodes and the edges from one to the other, as plain arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxgraph.graph_arrays import check_finite, checked_categories
from jaxgraph.layout.block_tables import BlockTables, block_tables
from jaxgraph.layout.derived.chunks import PIECE
from jaxgraph.ops.core.blocks import Block
from jaxgraph.ops.core.edges import EdgeGroups, Orientation
from jaxgraph.ops.usable import usable_implementation
from jaxgraph.parallel.edge_order import InEdgeOrder
from jaxgraph.parallel.neighborhood import NodeTable, OfOneBlock
from pallas_kernels.pytrees import pytree

Pytree = Any
LARGEST = np.iinfo(np.int32).max
"""Rows and edges are numbered in 32 bits."""


@pytree
class Bipartite(OfOneBlock, InEdgeOrder):
    """Edges from the nodes of one table to those of another, on one device.

    Attributes:
      senders, receivers: the tables.
      groups: the edges, as one group.
      edges, edge_weight, edge_type: [slots, ...], data of the edges, or None.
      edge_of_slot: int32 [slots], the given edge of each slot; 0 in empty slots.
      slot_of_edge: int32 [edges], its inverse.
      receivers_first: whether the receivers are the first of the senders.
    """

    senders: NodeTable
    receivers: NodeTable
    groups: EdgeGroups
    edges: jax.Array | None
    edge_weight: jax.Array | None
    edge_type: jax.Array | None
    edge_of_slot: jax.Array
    slot_of_edge: jax.Array
    receivers_first: bool = dataclasses.field(metadata={"static": True})

    def __repr__(self) -> str:
        return (
            f"Bipartite({self.senders.num_rows} senders, {self.receivers.num_rows} receivers, "
            f"{self.slot_of_edge.shape[0]} edges, implementation={self.implementation!r})"
        )

    def own_rows(self, values: jax.Array) -> jax.Array:
        """The receivers' rows of `values` [senders, ...].

        Raises:
          ValueError: the receivers are not the first of the senders.
        """
        if not self.receivers_first:
            raise ValueError(
                "x holds rows of the senders alone, and the receivers are other nodes: pass a pair "
                "(x_senders, x_receivers), or make the block with receivers_first=True where its "
                "receivers are the first senders"
            )
        return values[: self.receivers.num_rows]

    def sum(self, values: Pytree) -> Pytree:
        """`values`: the receivers are all on this device."""
        return values

    def block(self) -> Block:
        """The edges, for the operations of `jaxgraph.ops`."""
        missing = self.receivers.missing_self_loop if self.receivers_first else None
        return Block(self.groups, self.receivers.node_ids, missing)


def bipartite(
    senders: Any,
    receivers: Any,
    *,
    num_senders: int,
    num_receivers: int,
    edges: Any = None,
    edge_weight: Any = None,
    edge_type: Any = None,
    sender_ids: Any = None,
    receiver_ids: Any = None,
    sender_degree: Any = None,
    receiver_degree: Any = None,
    receivers_first: bool = False,
    implementation: str | None = None,
) -> Bipartite:
    """Makes a neighbourhood of edges in COO form; call it outside of compiled functions.

    Layers take `(x_senders, x_receivers)`, or `x_senders` where the receivers are the first
    senders, and return rows of the receivers.

    Args:
      senders, receivers: int [edges], rows of the senders' and of the receivers' table.
      num_senders, num_receivers: rows of the tables.
      edges, edge_weight, edge_type: [edges, ...], data of the edges in the same order, or None.
      sender_ids, receiver_ids: int [rows], ids in the whole graph, from which dropout is drawn;
        None: rows.
      sender_degree: float [senders], d_j of `gcn_conv`; None: the edges that leave a node, or their
        weights.
      receiver_degree: float [receivers], d_i; None: the edges that enter a node, or their weights.
        The mean divides by the edges that enter.
      receivers_first: whether the receivers are the first senders, as in a sample of neighbours.
        Layers then add a self-loop to a receiver without one; in other blocks they add none.
      implementation: "mosaic_gpu", "cpu" or "xla"; None: the fastest that can be used.

    Returns:
      The neighbourhood, on JAX's default device.

    Raises:
      ValueError: an array has the wrong shape or type or a number that is not finite, or a row is
        out of range.
      NotImplementedError: the implementation named cannot be used here.
    """
    sizes = {"num_senders": num_senders, "num_receivers": num_receivers}
    for name, size in sizes.items():
        _check_size(name, size)
    if not isinstance(receivers_first, bool | np.bool_):
        raise ValueError(f"receivers_first is {receivers_first!r}; expected True or False")
    if receivers_first and num_receivers > num_senders:
        raise ValueError(
            f"receivers_first=True: {num_receivers} receivers cannot be the first of {num_senders} "
            "senders"
        )
    senders = _integers("senders", senders, None, num_senders)
    receivers = _integers("receivers", receivers, None, num_receivers)
    if len(senders) != len(receivers):
        raise ValueError(
            f"senders has {len(senders)} entries and receivers {len(receivers)}; expected one of "
            "each for every edge"
        )
    given = {"edges": edges, "edge_weight": edge_weight, "edge_type": edge_type}
    data = {name: _edge_data(name, x, len(senders)) for name, x in given.items() if x is not None}
    implementation = usable_implementation(implementation, jax.devices()[0])
    loops = np.zeros(max(num_senders, num_receivers), bool)
    if receivers_first:
        loops[:num_receivers] = True
        loops[senders[senders == receivers]] = False
    weights = None
    if edge_weight is not None:
        weights = _numbers("edge_weight", edge_weight, len(senders))

    def table(rows: np.ndarray, size: int, ids: Any, degree: Any, end: str) -> NodeTable:
        entering = None
        if end == "receiver":
            entering = jnp.asarray(np.bincount(rows, minlength=size), jnp.float32)
        if degree is not None:
            degree = _numbers(f"{end}_degree", degree, size)
        elif weights is not None or entering is None:
            degree = np.bincount(rows, weights, size).astype(np.float32)
        numbers = np.arange(size)
        if ids is not None:
            numbers = _integers(f"{end}_ids", ids, size, LARGEST + 1)
        return NodeTable(
            jnp.asarray(numbers.astype(np.int32)),
            jnp.ones(size, bool),
            entering,
            jnp.asarray(loops[:size]),
            None if degree is None else jnp.asarray(degree),
            False,
            implementation,
        )

    of_senders = table(senders, num_senders, sender_ids, sender_degree, "sender")
    of_receivers = table(receivers, num_receivers, receiver_ids, receiver_degree, "receiver")
    tables = block_tables(senders, receivers, num_senders, num_receivers)
    slots = {name: jnp.asarray(x[tables.edge_of_slot]) for name, x in data.items()}
    return Bipartite(
        of_senders,
        of_receivers,
        _groups(tables, of_senders, of_receivers, implementation),
        slots.get("edges"),
        slots.get("edge_weight"),
        slots.get("edge_type"),
        jnp.asarray(tables.edge_of_slot),
        jnp.asarray(tables.slot_of_edge),
        bool(receivers_first),
    )


def _groups(
    tables: BlockTables, senders: NodeTable, receivers: NodeTable, implementation: str
) -> EdgeGroups:
    repetition = tables.repetition
    return EdgeGroups(
        by_receiver=_orientation(tables.by_receiver),
        by_sender=_orientation(tables.by_sender),
        sender_ids=senders.node_ids,
        sender_ptr=None,
        receiver_ids=receivers.node_ids,
        receiver_ptr=None,
        repetition=None if repetition is None else jnp.asarray(repetition.astype(np.int32)),
        receivers=jnp.asarray(tables.receiver_of_slot),
        chunk=tables.chunk,
        piece=PIECE,
        receiver_capacity=tables.receiver_capacity,
        sender_capacity=tables.sender_capacity,
        implementation=implementation,
    )


def _orientation(tables: Mapping[str, np.ndarray]) -> Orientation:
    arrays: dict[str, Any] = {name: jnp.asarray(values) for name, values in tables.items()}
    arrays.setdefault("edge_ids", None)
    return Orientation(**arrays)


def _check_size(name: str, size: Any) -> None:
    is_integer = isinstance(size, int | np.integer) and not isinstance(size, bool)
    if not is_integer or not 1 <= size <= LARGEST:
        raise ValueError(f"{name} is {size!r}; expected a number of rows from 1 to {LARGEST}")


def _concrete(name: str, values: Any) -> np.ndarray:
    if isinstance(values, Tracer):
        raise ValueError(
            f"{name} is traced: a block is laid out on the host. Call bipartite outside of jax.jit "
            "and jax.grad, and pass the block to the compiled function"
        )
    return np.asarray(values)


def _integers(name: str, values: Any, count: int | None, stop: int) -> np.ndarray:
    """int64 [count], from 0 to `stop` - 1; None: any number of them."""
    found = _concrete(name, values)
    is_list = found.ndim == 1 and len(found) == (len(found) if count is None else count)
    if not is_list or not (np.issubdtype(found.dtype, np.integer) or not found.size):
        raise ValueError(
            f"{name} has shape {list(found.shape)} and type {found.dtype}; expected integers "
            f"[{'edges' if count is None else count}]"
        )
    if len(found) > LARGEST:
        raise ValueError(f"{name} has {len(found)} entries; a block has at most {LARGEST} edges")
    if found.size and not 0 <= found.min() <= found.max() < stop:
        raise ValueError(f"{name} holds {found.min()} to {found.max()}; expected 0 to {stop - 1}")
    return found.astype(np.int64)


def _edge_data(name: str, values: Any, count: int) -> np.ndarray:
    data = _concrete(name, values)
    if not jnp.issubdtype(data.dtype, jnp.number) and data.dtype != np.bool_:
        raise ValueError(f"{name} has type {data.dtype}; expected numbers or truth values")
    if data.ndim < 1 or len(data) != count:
        raise ValueError(
            f"{name} has shape {list(data.shape)}; expected one row for each of {count} edges"
        )
    if name == "edge_type" and count:
        types: Any = checked_categories(name, data, count, "edge")
        return types
    check_finite(name, data)
    # Slots beyond the last edge are read and never used: a read needs at least one row.
    return data if count else np.zeros((1, *data.shape[1:]), data.dtype)


def _numbers(name: str, values: Any, count: int) -> np.ndarray:
    """float32 [count]."""
    found = _concrete(name, values)
    is_real = jnp.issubdtype(found.dtype, jnp.number) or found.dtype == np.bool_
    if found.shape != (count,) or not is_real or jnp.iscomplexobj(found):
        raise ValueError(
            f"{name} has shape {list(found.shape)} and type {found.dtype}; expected real numbers "
            f"[{count}]"
        )
    numbers = found.astype(np.float32)
    check_finite(name, numbers)
    return numbers
