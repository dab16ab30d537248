"""A sample of the graph on a device: the relations of a model's layers for some seeds.

Each layer has edges that were drawn from all edges that end at its receivers. Data of the nodes is
not sent with a sample: it is fetched from the shards that hold it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from jaxgraph.layout.derived.chunks import PIECE
from jaxgraph.layout.sample_tables import (
    ASKED,
    COUNTS,
    NODE_IDS,
    PLACES,
    SampleSizes,
    layer_prefix,
)
from jaxgraph.ops.core.chosen_rows import chosen_rows
from jaxgraph.ops.core.edges import EdgeGroups, Orientation
from jaxgraph.ops.core.messages import Inputs, Wanted
from jaxgraph.ops.core.reducers import Sum
from jaxgraph.parallel.exchange import Call, Exchange
from jaxgraph.parallel.feature_protocol import plain_features
from jaxgraph.parallel.node_table import NodeTable
from jaxgraph.parallel.relation import EdgeArrays, Relation
from pallas_kernels.pytrees import pytree

Pytree = Any


@pytree
class DrawnEdges(Exchange):
    """The exchange of a layer of a sample: all its senders' rows are here.

    A sum over the edges that were drawn, times `share`, estimates the sum over all edges of the
    receiver, without bias. Means, maxima and softmax are those of the drawn edges.

    Attributes:
      share: float32 [receivers], edges that enter a node in the whole graph over those drawn; 0
        where none was.
    """

    share: Any = None

    def propagate(self, call: Call) -> Pytree:
        """See `jaxgraph.parallel.relation.Relation.propagate`."""
        if type(call.reducer) is not Sum:
            return super().propagate(call)
        sums = self._scaled(super().propagate(dataclasses.replace(call, self_loops=False)))
        if not call.self_loops:
            return sums
        alone = dataclasses.replace(call, relation=_without_edges(call.relation))
        return jax.tree.map(jnp.add, sums, super().propagate(alone))

    def pull_sum(self, call: Call, gradient: Pytree, wanted: Wanted) -> Inputs:
        """See `jaxgraph.parallel.relation.Relation.pull_sum`."""
        if type(call.reducer) is Sum:
            gradient = self._scaled(gradient)
        return super().pull_sum(call, gradient, wanted)

    def _scaled(self, sums: Pytree) -> Pytree:
        def one(leaf: jax.Array) -> jax.Array:
            share = self.share.reshape(-1, *(1,) * (leaf.ndim - 1))
            return (leaf * share).astype(leaf.dtype)

        return jax.tree.map(one, sums)


def _without_edges(relation: Relation) -> Relation:
    def none(orientation: Orientation) -> Orientation:
        names = ("compressed_ptr", "run_ptr", "heavy_rows")
        zeros = {name: jnp.zeros_like(getattr(orientation, name)) for name in names}
        return dataclasses.replace(
            orientation, position=jnp.full_like(orientation.position, -1), **zeros
        )

    groups = relation.incoming
    sides = {side: none(getattr(groups, side)) for side in ("by_receiver", "by_sender")}
    return relation.with_arrays(incoming=dataclasses.replace(groups, **sides))


@pytree
class Sample:
    """The nodes and edges that a model's layers read for the seeds of a device.

    Attributes:
      words: int32 [words], the arrays of `jaxgraph.layout.sample_tables.SampleSizes`.
      edge_data: data of each layer's edges by slot, by name.
      cache: rows that every device holds, of the nodes that samples read most; None: there are
        none.
      sizes: the sizes of the arrays.
    """

    words: jax.Array
    edge_data: tuple[Mapping[str, jax.Array], ...]
    cache: NodeTable | None
    sizes: SampleSizes = dataclasses.field(metadata={"static": True})

    def relations(self, home: NodeTable) -> tuple[Relation, ...]:
        """The relations of the layers, the first layer's first; see `Shard.flow`.

        Args:
          home: the nodes that this device holds, with the degrees of the whole graph.
        """
        arrays, nodes = self._arrays(), self.fetched(home)
        counts = arrays[COUNTS]
        tables = [
            nodes.first_rows(rows, jnp.arange(rows, dtype=jnp.int32) < counts[number])
            for number, rows in enumerate(self.sizes.rows)
        ]
        ends = itertools.pairwise(tables)
        return tuple(self._relation(number, arrays, *each) for number, each in enumerate(ends))

    def _arrays(self) -> dict[str, jax.Array]:
        return {
            name: self.words[start : start + math.prod(shape)].reshape(shape)
            for name, (start, shape) in self.sizes.shapes().items()
        }

    def fetched(self, home: NodeTable) -> NodeTable:
        """The table of all nodes of the sample, whose data is fetched."""
        arrays, plain = self._arrays(), dataclasses.replace(home, nodes=plain_features(home.nodes))
        fetch = Fetch(arrays[PLACES], arrays.get(ASKED), home.axis, home.implementation)
        found = fetch.rows(plain, self.cache)
        ids = arrays[NODE_IDS]
        # Rows past the nodes of the sample are those of any node.
        mask = jnp.arange(len(ids), dtype=jnp.int32) < arrays[COUNTS][0]
        return dataclasses.replace(found, node_ids=ids, node_mask=mask, has_padding=True)

    def _relation(
        self,
        layer: int,
        arrays: Mapping[str, jax.Array],
        senders: NodeTable,
        receivers: NodeTable,
    ) -> Relation:
        own = layer_prefix(layer)
        found = {x.removeprefix(own): y for x, y in arrays.items() if x.startswith(own)}
        sizes, data = self.sizes.block(layer).visits(), dict(self.edge_data[layer])

        def orientation(side: str) -> Orientation:
            names = [f.name for f in dataclasses.fields(Orientation)]
            of_side: dict[str, Any] = {name: found.get(f"{side}/{name}") for name in names}
            return Orientation(**of_side)

        by_receiver = orientation("by_receiver")
        groups = EdgeGroups(
            by_receiver,
            orientation("by_sender"),
            sender_ids=senders.node_ids,
            sender_ptr=None,
            receiver_ids=receivers.node_ids,
            receiver_ptr=None,
            repetition=data.pop("repetition", None),
            receivers=found["receivers"],
            chunk=sizes.chunk,
            piece=PIECE,
            receiver_capacity=sizes.by_receiver.capacity,
            sender_capacity=sizes.by_sender.capacity,
            implementation=receivers.implementation,
        )
        plain: dict[str, Any] = {
            name: data.pop(name, None) for name in ("edges", "edge_weight", "edge_type")
        }
        assert receivers.degrees is not None
        edges = EdgeArrays(
            groups,
            None,
            receivers.degrees,
            senders.degrees,
            **plain,
            edge_data=data,
            set_number=0,
        )
        return Relation(senders, receivers, edges, DrawnEdges(share=found_share(groups, receivers)))


def found_share(groups: EdgeGroups, receivers: NodeTable) -> jax.Array:
    """float32 [receivers], all edges that enter a node over those of a group; 0 without any."""
    side = groups.by_receiver
    has_edges = side.position >= 0
    # Rows that have edges, in row order, are the compressed rows.
    of_row = jnp.cumsum(has_edges) - has_edges
    counts = jnp.diff(side.compressed_starts)[jnp.minimum(of_row, len(side.compressed_rows) - 1)]
    return jnp.where(has_edges, receivers.in_degree / jnp.maximum(counts, 1), 0)


@dataclasses.dataclass(frozen=True)
class Fetch:
    """Fetches rows of nodes from the devices that hold them.

    Attributes:
      places: int32 [rows], where each row is: own rows are numbered first, then those of the cache,
        then those that were asked of the first device, of the second, and so on.
      asked: int32 [devices, asked], the rows to ask of each device; None: one device holds all.
      axis: of the mesh.
      implementation: what copies the rows.
    """

    places: jax.Array
    asked: jax.Array | None
    axis: Any
    implementation: str

    def rows(self, own: Pytree, cache: Pytree) -> Pytree:
        """The rows of every array of a table [own rows, ...]."""
        if cache is None:
            return jax.tree.map(self._fetched, own)
        return jax.tree.map(self._fetched, own, cache)

    def _fetched(self, own: jax.Array, cache: jax.Array | None = None) -> jax.Array:
        if self.asked is None:
            return chosen_rows(own, self.places, self.implementation)
        wanted = lax.all_to_all(self.asked, self.axis, split_axis=0, concat_axis=0)
        answers = chosen_rows(own, wanted.reshape(-1), self.implementation)
        answers = answers.reshape(*wanted.shape, *own.shape[1:])
        arrived = lax.all_to_all(answers, self.axis, split_axis=0, concat_axis=0)
        arrived = arrived.reshape(-1, *own.shape[1:])
        found, first = None, 0
        for source in (own, cache, arrived):
            if source is None or not len(source):
                continue
            rows = jnp.clip(self.places - first, 0, len(source) - 1)
            chosen = chosen_rows(source, rows, self.implementation)
            is_later = (self.places >= first).reshape(-1, *(1,) * (own.ndim - 1))
            found = chosen if found is None else jnp.where(is_later, chosen, found)
            first += len(source)
        assert found is not None
        return found


def home_of(shard: Any) -> NodeTable:
    """The nodes that a device holds, with their degrees in the whole graph."""
    return dataclasses.replace(shard.table(), degrees=shard.relation().arrays.at_receivers)


def with_sample(sharded: Any, sample: Sample) -> Any:
    """The sharded graph with a sample on each device, [devices, ...]."""
    return dataclasses.replace(sharded, shards=dataclasses.replace(sharded.shards, sample=sample))


def cache_of(sharded: Any, words: jax.Array, sizes: SampleSizes) -> NodeTable:
    """Rows of nodes for a cache of each device, [devices, rows, ...]; a sample names the nodes."""

    def fetched(shards: Any, words: jax.Array) -> NodeTable:
        shard, words = jax.tree.map(lambda leaf: leaf[0], (shards, words))
        found = Sample(words, (), None, sizes).fetched(home_of(shard))
        return jax.tree.map(lambda leaf: leaf[None], found)

    split = PartitionSpec(sharded.axis)
    program = jax.shard_map(
        fetched, mesh=sharded.mesh, in_specs=split, out_specs=split, check_vma=True
    )
    return jax.jit(program)(sharded.shards, words)
