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
from jaxgraph.kinds import check_positive
from jaxgraph.layout.block_tables import BLOCK, BlockSizes, block_tables
from jaxgraph.layout.derived.chunks import PIECE
from jaxgraph.layout.derived.rows import EdgeSizes
from jaxgraph.layout.index_range import check_sizes
from jaxgraph.layout.manifest import Arrays
from jaxgraph.ops.core.edges import EdgeGroups, Orientation
from jaxgraph.ops.usable import usable_implementation
from jaxgraph.parallel.edge_order import InEdgeOrder, edge_order
from jaxgraph.parallel.exchange import Exchange
from jaxgraph.parallel.node_table import Degrees, NodeTable
from jaxgraph.parallel.relation import EdgeArrays, Relation
from pallas_kernels.pytrees import pytree


@pytree
class Bipartite(Relation, InEdgeOrder):
    """Edges from the nodes of one table to those of another, on one device.

    Attributes:
      senders, receivers: the tables.
      arrays: the edges, as one group, and their data.
      exchange: sends nothing.
      edge_of_slot: int32 [slots], the given edge of each slot; 0 in empty slots.
      slot_of_edge: int32 [edges], its inverse.
    """

    edge_of_slot: jax.Array
    slot_of_edge: jax.Array

    def __repr__(self) -> str:
        return (
            f"Bipartite({self.senders.num_rows} senders, {self.receivers.num_rows} receivers, "
            f"{self.slot_of_edge.shape[0]} edges, implementation={self.implementation!r})"
        )


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
    pad_to: BlockSizes | None = None,
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
      pad_to: sizes that all shapes follow from, so that one compiled program runs on all blocks of
        these sizes; layers then take rows [num_senders, ...] of them. None: as large as the edges
        need.

    Returns:
      The neighbourhood, on JAX's default device.

    Raises:
      ValueError: an array has the wrong shape or type or a number that is not finite, or a row is
        out of range.
      NotImplementedError: the implementation named cannot be used here.
    """
    sizes = {"num_senders": num_senders, "num_receivers": num_receivers}
    for name, size in sizes.items():
        check_positive(name, size)
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
    sizes["num_edges"] = count = len(senders)
    check_sizes(sizes)
    given = {"edges": edges, "edge_weight": edge_weight, "edge_type": edge_type}
    data = {name: _edge_data(name, x, count) for name, x in given.items() if x is not None}
    room = sizes if pad_to is None else _room(pad_to, sizes)
    implementation = usable_implementation(implementation, jax.devices()[0])
    loops = np.zeros(max(num_senders, num_receivers), bool)
    if receivers_first:
        loops[:num_receivers] = True
        loops[senders[senders == receivers]] = False
    weights = None if edge_weight is None else data["edge_weight"].astype(np.float32)

    def table(rows: np.ndarray, ids: Any, degree: Any, end: str) -> NodeTable:
        size, entering = sizes[f"num_{end}s"], None
        if end == "receiver":
            entering = np.bincount(rows, minlength=size).astype(np.float32)
        if degree is not None:
            degree = _numbers(f"{end}_degree", degree, size).astype(np.float32)
        elif weights is not None or entering is None:
            degree = np.bincount(rows, weights, size).astype(np.float32)
        numbers = np.arange(size)
        if ids is not None:
            numbers = _integers(f"{end}_ids", ids, size, 2**31)

        def padded(values: np.ndarray | None) -> Any:
            if values is not None:
                return jnp.asarray(np.pad(values, (0, room[f"num_{end}s"] - size)))

        return NodeTable(
            padded(numbers.astype(np.int32)),
            padded(np.ones(size, bool)),
            Degrees(padded(entering), padded(loops[:size]), padded(degree)),
            has_padding=pad_to is not None,
            implementation=implementation,
        )

    of_senders = table(senders, sender_ids, sender_degree, "sender")
    of_receivers = table(receivers, receiver_ids, receiver_degree, "receiver")
    rows = room["num_senders"], room["num_receivers"]
    tables, edge_of_slot, visits = block_tables(senders, receivers, data, *rows, pad_to)
    assert of_receivers.degrees is not None
    slots: dict[str, Any] = {name: jnp.asarray(tables[name]) for name in data}
    arrays = EdgeArrays(
        _groups(tables, visits, of_senders, of_receivers),
        None,
        of_receivers.degrees,
        of_senders.degrees,
        **slots,
        receivers_first=bool(receivers_first),
    )
    order = edge_order(edge_of_slot, len(tables[f"{BLOCK}/receivers"]), room["num_edges"])
    return Bipartite(of_senders, of_receivers, arrays, Exchange(), *map(jnp.asarray, order))


def _groups(
    tables: Arrays, sizes: EdgeSizes, senders: NodeTable, receivers: NodeTable
) -> EdgeGroups:
    held = {name: jnp.asarray(values) for name, values in tables.items()}

    def orientation(side: str) -> Orientation:
        names = [field.name for field in dataclasses.fields(Orientation)]
        found: dict[str, Any] = {name: held.get(f"{BLOCK}/{side}/{name}") for name in names}
        return Orientation(**found)

    return EdgeGroups(
        by_receiver=orientation("by_receiver"),
        by_sender=orientation("by_sender"),
        sender_ids=senders.node_ids,
        sender_ptr=None,
        receiver_ids=receivers.node_ids,
        receiver_ptr=None,
        repetition=held.get(f"{BLOCK}/repetition"),
        receivers=held[f"{BLOCK}/receivers"],
        chunk=sizes.chunk,
        piece=PIECE,
        receiver_capacity=sizes.by_receiver.capacity,
        sender_capacity=sizes.by_sender.capacity,
        implementation=receivers.implementation,
    )


def _room(given: Any, needed: Mapping[str, int]) -> dict[str, int]:
    if not isinstance(given, BlockSizes):
        raise ValueError(f"pad_to is {given!r}; expected jaxgraph.parallel.BlockSizes(...)")
    room = dataclasses.asdict(given)
    for name, size in needed.items():
        if size > room[name]:
            raise ValueError(
                f"pad_to has room for {name}={room[name]}, and the block has {size}; expected "
                "sizes that hold the largest block"
            )
    return room


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
    if found.size and not 0 <= found.min() <= found.max() < stop:
        raise ValueError(f"{name} holds {found.min()} to {found.max()}; expected 0 to {stop - 1}")
    return found.astype(np.int64)


def _edge_data(name: str, values: Any, count: int) -> np.ndarray:
    if name == "edge_type":
        types: Any = checked_categories(name, _concrete(name, values), count, "edge")
        return types
    return _numbers(name, values, count, per_row=name == "edge_weight")


def _numbers(name: str, values: Any, count: int, *, per_row: bool = True) -> np.ndarray:
    """Finite real numbers [count]; of edges with features, any numbers [count, ...]."""
    found = _concrete(name, values)
    is_number = jnp.issubdtype(found.dtype, jnp.number) or found.dtype == np.bool_
    if per_row:
        fits = found.shape == (count,) and not jnp.iscomplexobj(found)
    else:
        fits = found.shape[:1] == (count,)
    if not fits or not is_number:
        expected = f"real numbers [{count}]" if per_row else f"numbers [{count}, ...]"
        raise ValueError(
            f"{name} has shape {list(found.shape)} and type {found.dtype}; expected {expected}"
        )
    check_finite(name, found.astype(np.float32) if per_row else found)
    return found
