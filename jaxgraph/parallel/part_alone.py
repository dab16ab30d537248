"""One part of a sharded graph alone on its device, with its halo given, to run and time a layer."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxgraph.layout.placed import placed_part, placed_shapes
from jaxgraph.layout.shard_tables import PartSource
from jaxgraph.parallel.assembly import assemble
from jaxgraph.parallel.exchange import Exchange
from jaxgraph.parallel.node_table import NodeTable
from jaxgraph.parallel.relation import Relation
from jaxgraph.parallel.schedules.given import Given
from jaxgraph.parallel.schedules.sar import Ring
from jaxgraph.parallel.shard import Shard
from jaxgraph.parallel.sharded_graph import AbstractSource, ShardedGraph, on_mesh


def on_host(source: PartSource, mesh: Mesh) -> ShardedGraph:
    """The parts of a source in arrays of the host, for a device that gets one after the other."""
    on_device = on_mesh(AbstractSource(source.manifest), mesh)
    manifest, implementation = on_device.shards.manifest, on_device.shards.implementation
    shapes = placed_shapes(manifest, implementation)
    parts = [
        placed_part(source, manifest, index, implementation) for index in range(manifest.num_parts)
    ]
    arrays = {
        name: np.stack([part[name].reshape(shape) for part in parts])
        for name, (shape, _) in shapes.items()
    }
    shards = assemble(arrays, manifest, on_device.axis, False, implementation)
    return dataclasses.replace(on_device, shards=shards)


def part_alone(sharded: ShardedGraph, part: int, device: Any = None) -> Relation:
    """Takes one part out of a sharded graph in mode "sar" or "domain" whose parts are all here.

    It has the shapes, padding and trip counts that it has on the mesh. Layers take
    `(x[part.senders.node_ids], x[part.receivers.node_ids])`, x being rows of the whole graph, and
    return rows of the part. The senders are its own nodes, then those of its halo.
    """
    assert sharded.shards.columns is None and 0 <= part < sharded.num_parts
    held = jax.tree.map(lambda leaf: _held_by(leaf, part), sharded.shards)
    own = _taken(held if device is None else jax.device_put(held, device)).relation()
    receivers, exchange = dataclasses.replace(own.receivers, axis=()), Exchange()
    if isinstance(own.exchange, Ring):
        exchange = Given.of(own.exchange)
    senders = _table(sharded.shards.relation().receivers, receivers, _sender_ids(own))
    return dataclasses.replace(own, senders=senders, receivers=receivers, exchange=exchange)


def _held_by(leaf: Any, device: int) -> Any:
    if isinstance(leaf, np.ndarray):
        return leaf[device : device + 1]
    return next(s for s in leaf.addressable_shards if (s.index[0].start or 0) == device).data


@jax.jit
def _taken(held: Shard) -> Shard:
    """Takes the part of a device, from arrays [1, ...] whose first axis counts devices."""
    return jax.tree.map(lambda leaf: leaf[0], held)


def _sender_ids(own: Relation) -> np.ndarray:
    """Returns the global ids of own rows and halo, in the order of layers' input; -1: padding.

    In mode "domain" the rows of a part start at `num_rows + part * halo_rows`, in mode "sar" those
    of a step on the ring at `num_rows + (step - 1) * halo rows of a message`.
    """
    nodes, edges, rows = own.receivers, own.incoming, own.receiver_rows
    listed, ids = np.asarray(edges.sender_ids), np.where(nodes.node_mask, nodes.node_ids, -1)
    if not isinstance(own.exchange, Ring):
        position = np.asarray(edges.by_sender.position)
        return np.append(ids, np.where(position >= 0, listed[: len(position)], -1)[rows:])
    assert edges.sender_ptr is not None
    starts, counts = np.asarray(edges.sender_ptr), np.diff(edges.by_sender.compressed_ptr)
    halos = np.full((len(counts) - 1, own.exchange.halo_route().rows), -1, np.int32)
    for halo, start, count in zip(halos, starts[1:], counts[1:], strict=True):
        halo[:count] = listed[start : start + count]
    return np.append(ids, halos)


def _table(of_all: NodeTable, own: NodeTable, ids: np.ndarray) -> NodeTable:
    """Builds the table of the nodes with these ids, on the device of the part."""
    numbers, is_node, mask = np.asarray(of_all.node_ids), np.asarray(of_all.node_mask), ids >= 0
    place = np.zeros(int(numbers.max(initial=0)) + 1, np.int64)
    place[numbers[is_node]] = np.flatnonzero(is_node)
    (device,) = own.node_ids.devices()

    def looked_up(values: jax.Array) -> jax.Array:
        found = np.asarray(values).reshape(-1)[place[ids]]
        return jax.device_put(np.where(mask, found, np.zeros((), found.dtype)), device)

    return NodeTable(
        jax.device_put(np.where(mask, ids, 0).astype(np.int32), device),
        jax.device_put(mask, device),
        jax.tree.map(looked_up, of_all.degrees),
        has_padding=bool(not mask.all()),
        implementation=own.implementation,
    )
