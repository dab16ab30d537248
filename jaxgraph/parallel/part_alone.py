"""One part of a sharded graph alone on its device, with its halo given, to run and time a layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxgraph.layout.placed import placed_part, placed_shapes
from jaxgraph.layout.shard_tables import PartSource
from jaxgraph.ops.core.blocks import Block
from jaxgraph.ops.core.messages import Inputs, MessageFn, Wanted
from jaxgraph.ops.core.propagation import propagate_by, pull_once
from jaxgraph.ops.core.reducers import Reducer
from jaxgraph.parallel.assembly import assemble
from jaxgraph.parallel.exchange import halo_route
from jaxgraph.parallel.neighborhood import NodeTable
from jaxgraph.parallel.placement import AbstractSource, ShardedGraph, on_mesh
from jaxgraph.parallel.schedules.given import GivenHalos
from jaxgraph.parallel.shard import Shard
from pallas_kernels.pytrees import pytree

Pytree = Any


@pytree
class PartAlone:
    """A part with its halo given: the same shapes, padding and trip counts as on the mesh.

    Layers take `(x[part.senders.node_ids], x[part.receivers.node_ids])`, x being rows of the whole
    graph, and return rows of the part.

    Attributes:
      shard: the part.
      senders: its own nodes, then those of its halo.
    """

    shard: Shard
    senders: NodeTable

    @property
    def receivers(self) -> Shard:
        """The own nodes."""
        return self.shard

    @property
    def edges(self) -> jax.Array | None:
        """[slots, ...], features of the edges, or None."""
        return self.shard.edges

    @property
    def edge_weight(self) -> jax.Array | None:
        """[slots], weights of the edges, or None."""
        return self.shard.edge_weight

    @property
    def edge_type(self) -> jax.Array | None:
        """[slots], types of the edges, or None."""
        return self.shard.edge_type

    @property
    def node_data(self) -> Mapping[str, jax.Array]:
        """[rows, ...] by name, named arrays of the own nodes."""
        return self.shard.node_data

    @property
    def edge_data(self) -> Mapping[str, jax.Array]:
        """[slots, ...] by name, named arrays of the edges."""
        return self.shard.edge_data

    @property
    def implementation(self) -> str:
        """The implementation that reduces over the edges: "xla", "cpu" or "mosaic_gpu"."""
        return self.shard.implementation

    @property
    def edge_chunk(self) -> int:
        """Number of edges in a call of a message function."""
        return self.shard.edge_chunk

    def own_rows(self, values: jax.Array) -> jax.Array:
        """The own rows of `values` [senders, ...]."""
        return values[: self.shard.num_rows]

    def sum(self, values: Pytree) -> Pytree:
        """`values`: the share of this part alone."""
        return values

    def propagate(
        self, message: MessageFn, reducer: Reducer, inputs: Inputs, *, self_loops: bool = False
    ) -> Pytree:
        """See `jaxgraph.parallel.neighborhood.Neighborhood.propagate`."""
        return propagate_by(self._schedule(self_loops), message, reducer, inputs)

    def pull_sum(
        self, message: MessageFn, reducer: Reducer, inputs: Inputs, gradient: Pytree, wanted: Wanted
    ) -> Inputs:
        """See `jaxgraph.parallel.shard.Shard.pull_sum`."""
        return pull_once(self._schedule(False), message, reducer, inputs, gradient, wanted)

    def _schedule(self, self_loops: bool) -> GivenHalos | Block:
        if self.shard.manifest.mode == "sar" and self.shard.num_parts > 1:
            return GivenHalos(self.shard, self_loops)
        return self.shard.local_block().with_loops(self_loops)

    @property
    def sender_rows(self) -> int:
        """Rows of the table of senders, padding included."""
        return self.senders.num_rows

    @property
    def receiver_rows(self) -> int:
        """Rows of the table of receivers, padding included."""
        return self.shard.num_rows

    @property
    def edge_slots(self) -> int:
        """Slots of an array with one row per edge, padding included."""
        return self.shard.edge_slots


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


def part_alone(sharded: ShardedGraph, part: int, device: Any = None) -> PartAlone:
    """Takes one part out of a sharded graph in mode "sar" or "domain" whose parts are all here."""
    assert sharded.shards.columns is None and 0 <= part < sharded.num_parts
    held = jax.tree.map(lambda leaf: _held_by(leaf, part), sharded.shards)
    own = _taken(held if device is None else jax.device_put(held, device))
    own = dataclasses.replace(own, prefetch=False, hosts=1)
    ids, mask = _sender_ids(own)
    return PartAlone(own, _table(sharded.shards, own, ids, mask))


def _held_by(leaf: Any, device: int) -> Any:
    if isinstance(leaf, np.ndarray):
        return leaf[device : device + 1]
    return next(s for s in leaf.addressable_shards if (s.index[0].start or 0) == device).data


@jax.jit
def _taken(held: Shard) -> Shard:
    """Takes the part of a device, from arrays [1, ...] whose first axis counts devices."""
    return jax.tree.map(lambda leaf: leaf[0], held)


def _sender_ids(own: Shard) -> tuple[np.ndarray, np.ndarray]:
    """Returns the global ids of own rows and halo, in the order of layers' input, and their mask.

    In mode "domain" the rows of a part start at `num_rows + part * halo_rows`, in mode "sar" those
    of a step on the ring at `num_rows + (step - 1) * halo rows of a message`.
    """
    rows, parts = own.num_rows, own.num_parts
    listed, found = np.asarray(own.incoming.sender_ids), own.incoming.by_sender
    if parts == 1 or own.manifest.mode == "domain":
        used = np.asarray(found.position) >= 0
        used[:rows] = np.asarray(own.node_mask)
        ids = listed.copy()
        ids[:rows] = np.asarray(own.node_ids)
        return ids[: len(used)], used
    room = halo_route(own).rows
    ids = np.zeros(rows + (parts - 1) * room, np.int32)
    mask = np.zeros(len(ids), bool)
    ids[:rows], mask[:rows] = np.asarray(own.node_ids), np.asarray(own.node_mask)
    starts, counts = np.asarray(own.incoming.sender_ptr), np.diff(found.compressed_ptr)
    for step in range(1, parts):
        some = slice(rows + (step - 1) * room, rows + (step - 1) * room + counts[step])
        ids[some] = listed[starts[step] : starts[step] + counts[step]]
        mask[some] = True
    return ids, mask


def _table(shards: Shard, own: Shard, ids: np.ndarray, mask: np.ndarray) -> NodeTable:
    """Builds the table of the nodes with these ids, on the device of the part."""
    of_all, is_node = np.asarray(shards.node_ids), np.asarray(shards.node_mask)
    place = np.zeros(int(of_all.max(initial=0)) + 1, np.int64)
    place[of_all[is_node]] = np.flatnonzero(is_node.reshape(-1))
    (device,) = own.node_ids.devices()

    def looked_up(values: jax.Array) -> jax.Array:
        found = np.asarray(values).reshape(-1)[place[ids]]
        return jax.device_put(np.where(mask, found, np.zeros((), found.dtype)), device)

    weighted = shards.weighted_in_degree
    return NodeTable(
        jax.device_put(np.where(mask, ids, 0).astype(np.int32), device),
        jax.device_put(mask, device),
        looked_up(shards.in_degree),
        looked_up(shards.missing_self_loop),
        None if weighted is None else looked_up(weighted),
        bool(not mask.all()),
        own.implementation,
    )
