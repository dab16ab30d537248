"""A sample of the graph on a device: the relations of a model's layers for some seeds.

Each layer has edges that were drawn from all edges that end at its receivers. Data of the nodes is
not sent with a sample: it is fetched from the shards that hold it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from jaxgraph.layout.derived.chunks import PIECE
from jaxgraph.layout.derived.rows import RowSizes
from jaxgraph.layout.sample_tables import (
    ASKED,
    COLUMN_ROWS,
    COUNTS,
    NODE_IDS,
    PLACES,
    SampleSizes,
    edges_prefix,
)
from jaxgraph.layout.schema import EDGE_DATA, REPETITION
from jaxgraph.ops.core.chosen_rows import chosen_rows
from jaxgraph.ops.core.compact_rows import receivers_of_slots, with_compact_rows
from jaxgraph.ops.core.edges import EdgeGroups, Orientation
from jaxgraph.ops.core.messages import Inputs, Wanted
from jaxgraph.ops.core.reducers import Sum
from jaxgraph.parallel.exchange import Call, Exchange
from jaxgraph.parallel.feature_protocol import plain_features
from jaxgraph.parallel.node_table import Degrees, NodeTable
from jaxgraph.parallel.relation import EdgeArrays, Relation
from jaxgraph.parallel.sampled_columns import AtSync, SampledColumns
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
      num_types: of the edges in the whole graph; None: edges have no types.
    """

    share: Any = None
    num_types: int | None = dataclasses.field(default=None, metadata={"static": True})

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
class SampledLayer:
    """The nodes and edges of several sets that a layer of a sample reads, as a shard has them.

    Attributes:
      tables, receivers: the nodes of each set whose rows the layer takes, and returns, by name.
      relations: the neighbourhoods, by name.
      ends: the tables of each relation, by name.
    """

    tables: Mapping[str, NodeTable]
    receivers: Mapping[str, NodeTable]
    relations: Mapping[str, Relation]
    ends: tuple[tuple[str, Any], ...] = dataclasses.field(metadata={"static": True})

    def relation(self, name: str) -> Relation:
        """The edges of a set, as layers take them."""
        if name not in self.relations:
            known = ", ".join(map(repr, self.relations))
            raise ValueError(f"there is no relation {name!r}; expected one of {known}")
        return self.relations[name]


@pytree
class Home:
    """The nodes of a set that a device holds.

    Attributes:
      table: their table.
      as_receivers, as_senders: their degrees in the whole graph in each set of edges that enters,
        and that leaves the set, by name.
    """

    table: NodeTable
    as_receivers: Mapping[str, Degrees]
    as_senders: Mapping[str, Degrees]

    def reading(self, table: NodeTable, relation: str, *, sends: bool) -> NodeTable:
        """A table of these nodes with their degrees in a relation."""
        of_side = self.as_senders if sends else self.as_receivers
        degrees = jax.tree.map(lambda leaf: leaf[: table.num_rows], of_side[relation])
        return dataclasses.replace(table, degrees=degrees)


def home_of(shard: Any, name: str, ends: Sequence[tuple[str, str, str]]) -> Home:
    """The nodes of a set on a device, with their degrees in some sets of edges."""
    table = shard.tables[name]
    receivers, senders = {}, {}
    for relation, sender, receiver in ends:
        arrays = shard.edge_arrays[relation]
        if receiver == name:
            receivers[relation] = arrays.at_receivers
        if sender == name:
            own = arrays.at_senders
            senders[relation] = arrays.at_receivers if own is None else own
    x = None if shard.columns is not None else plain_features(table.nodes)
    return Home(dataclasses.replace(table, nodes=x), receivers, senders)


@pytree
class Sample:
    """The nodes and edges that a model's layers read for the seeds of a device.

    Attributes:
      words: int32 [words], the arrays of `jaxgraph.layout.sample_tables.SampleSizes`.
      edge_data: data of each layer's edges by slot, by name, for each set of edges.
      cache: rows that every device holds, of the nodes that samples read most, by set.
      given: arrays by row, by name, of sets of which all is in the sample: their labels, and others
        of `NodeTable.node_data`.
      sizes: the sizes of the arrays.
      reads_whole: whether layers compute the nodes of the whole graph: the sample has those that a
        readout reads of their outputs.
      at_sync: as of `SampledColumns`.
    """

    words: jax.Array
    edge_data: tuple[tuple[Mapping[str, jax.Array], ...], ...]
    cache: Mapping[str, Home]
    given: Mapping[str, Mapping[str, jax.Array]]
    sizes: SampleSizes = dataclasses.field(metadata={"static": True})
    reads_whole: bool = dataclasses.field(default=False, metadata={"static": True})
    at_sync: AtSync | None = dataclasses.field(default=None, metadata={"static": True})

    def layers(self, shard: Any) -> tuple[Any, ...]:
        """The neighbourhood of each layer, or those of its sets, as `Shard.flow` has them."""
        arrays, sizes = self._arrays(), self.sizes
        paired = dict(getattr(shard.manifest, "paired", ()))
        homes = {name: self.fetched(home_of(shard, name, sizes.ends), name) for name in sizes.sets}
        # Of the first layer's senders, features may have no rows to fetch.
        first = {sizes.sets[0]: self._by_column(shard)} if sizes.by_column else homes
        homes_of = (first, *[homes] * len(sizes.edges))

        def tables(number: int) -> dict[str, NodeTable]:
            found = {}
            for place, (name, rows) in enumerate(zip(sizes.sets, sizes.rows[number], strict=True)):
                chosen = jnp.arange(rows, dtype=jnp.int32) < arrays[COUNTS][number, place]
                found[name] = homes_of[number][name].table.first_rows(rows, chosen)
            return found

        layers = []
        for layer, (senders, receivers) in enumerate(
            itertools.pairwise(map(tables, range(len(sizes.rows))))
        ):
            relations = {}
            for number, (name, sender, receiver) in enumerate(sizes.ends):
                relations[name] = self._relation(
                    layer,
                    number,
                    arrays,
                    homes_of[layer][sender].reading(senders[sender], name, sends=True),
                    homes[receiver].reading(receivers[receiver], name, sends=False),
                    set_number=shard.edge_arrays[name].set_number,
                    num_types=paired[name].num_types if name in paired else None,
                )
            ends = tuple(each for each in shard.ends if each[0] in relations)
            layers.append(SampledLayer(senders, receivers, relations, ends))
        if shard.is_typed:
            return tuple(layers)
        return tuple(relation for layer in layers for relation in layer.relations.values())

    def _arrays(self) -> dict[str, jax.Array]:
        return {
            name: self.words[start : start + math.prod(shape)].reshape(shape)
            for name, (start, shape) in self.sizes.shapes().items()
        }

    def fetched(self, home: Home, name: str) -> Home:
        """The nodes of a set that are in the sample, whose data is fetched."""
        if name in self.given:
            return self._brought(home, name)
        arrays, table = self._arrays(), home.table
        asked = arrays.get(name + ASKED)
        fetch = Fetch(arrays[name + PLACES], asked, table.axis, table.implementation)
        found = fetch.rows(home, self.cache.get(name))
        ids = arrays[name + NODE_IDS][: len(fetch.places)]
        # Rows past the nodes of the sample are those of any node.
        count = arrays[COUNTS][self.sizes.fetched, self.sizes.sets.index(name)]
        mask = jnp.arange(len(ids), dtype=jnp.int32) < count
        table = dataclasses.replace(found.table, node_ids=ids, node_mask=mask, has_padding=True)
        return dataclasses.replace(found, table=table)

    def _brought(self, home: Home, name: str) -> Home:
        """The nodes of a set of which all is in the sample, each with one edge of each relation."""
        data = dict(self.given[name])
        ids = self._arrays()[name + NODE_IDS]
        mask = (
            jnp.arange(len(ids), dtype=jnp.int32)
            < self._arrays()[COUNTS][0, self.sizes.sets.index(name)]
        )
        table = dataclasses.replace(
            home.table.without_data(),
            node_ids=ids,
            node_mask=mask,
            labels=data.pop("labels"),
            train_mask=mask,
            node_data=data,
            has_padding=True,
        )
        one = Degrees(mask.astype(jnp.float32), jnp.zeros_like(mask), None)
        return Home(table, dict.fromkeys(home.as_receivers, one), {})

    def _by_column(self, shard: Any) -> Home:
        """The nodes of the sample, of which this device has columns of the features."""
        (name,), arrays = self.sizes.sets, self._arrays()
        places, everyone = arrays[name + COLUMN_ROWS], shard.columns.nodes
        degrees = jax.tree.map(lambda leaf: leaf[places], everyone.degrees)
        columns = plain_features(shard.tables[name].nodes)
        table = dataclasses.replace(
            shard.tables[name].without_data(),
            node_ids=arrays[name + NODE_IDS],
            node_mask=everyone.node_mask[places],
            nodes=SampledColumns(columns, places, at_sync=self.at_sync),
            has_padding=True,
        )
        of_ends = {each: degrees for each, *_ in self.sizes.ends}
        return Home(table, of_ends, of_ends)

    def _relation(
        self,
        layer: int,
        number: int,
        arrays: Mapping[str, jax.Array],
        senders: NodeTable,
        receivers: NodeTable,
        *,
        set_number: int,
        num_types: int | None,
    ) -> Relation:
        name, sender, receiver = self.sizes.ends[number]
        own = edges_prefix(layer, name)
        found = {x.removeprefix(own): y for x, y in arrays.items() if x.startswith(own)}
        data = dict(self.edge_data[layer][number])
        sizes = self.sizes.block(layer, number).visits()

        def orientation(side: str, rows: int, visits: RowSizes) -> Orientation:
            of_side = {x.rpartition("/")[2]: y for x, y in found.items() if x.startswith(side)}
            loops = visits.longest, visits.entries, sizes.chunk
            return with_compact_rows(of_side, rows, *loops)

        by_receiver = orientation("by_receiver", receivers.num_rows, sizes.by_receiver)
        groups = EdgeGroups(
            by_receiver,
            orientation("by_sender", senders.num_rows, sizes.by_sender),
            sender_ids=senders.node_ids,
            sender_ptr=None,
            receiver_ids=receivers.node_ids,
            receiver_ptr=None,
            repetition=data.pop(REPETITION, None),
            receivers=receivers_of_slots(by_receiver),
            chunk=sizes.chunk,
            piece=PIECE,
            receiver_capacity=sizes.by_receiver.capacity,
            sender_capacity=sizes.by_sender.capacity,
            implementation=receivers.implementation,
        )
        plain: dict[str, Any] = {each: data.pop(each, None) for each in EDGE_DATA}
        assert receivers.degrees is not None
        edges = EdgeArrays(
            groups,
            None,
            receivers.degrees,
            senders.degrees,
            **plain,
            edge_data=data,
            receivers_first=sender == receiver,
            set_number=set_number,
        )
        exchange = DrawnEdges(share=found_share(groups, receivers), num_types=num_types)
        return Relation(senders, receivers, edges, exchange)


def found_share(groups: EdgeGroups, receivers: NodeTable) -> jax.Array:
    """float32 [receivers], all edges that enter a node over those of a group; 0 without any."""
    side, none = groups.by_receiver, jnp.zeros(receivers.num_rows, jnp.int32)
    counts = none.at[side.compressed_rows].add(jnp.diff(side.compressed_starts))
    return jnp.where(counts > 0, receivers.in_degree / jnp.maximum(counts, 1), 0)


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
        leaves, structure = jax.tree.flatten(own)
        if self.asked is None:
            rows = [chosen_rows(leaf, self.places, self.implementation) for leaf in leaves]
            return structure.unflatten(rows)
        wanted = lax.all_to_all(self.asked, self.axis, split_axis=0, concat_axis=0)
        # The cache may have another `has_padding` than the table, so that they are no equal trees.
        cached = jax.tree.leaves(cache) if cache is not None else [None] * len(leaves)
        each = zip(leaves, cached, strict=True)
        return structure.unflatten([self._fetched(*sources, wanted) for sources in each])

    def _fetched(self, own: jax.Array, cache: jax.Array | None, wanted: jax.Array) -> jax.Array:
        """The rows of an array; `wanted` int32 [devices, asked] are those to send each device."""
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


def with_sample(sharded: Any, sample: Sample) -> Any:
    """The sharded graph with a sample on each device, [devices, ...]."""
    return dataclasses.replace(sharded, shards=dataclasses.replace(sharded.shards, sample=sample))


def cache_of(
    sharded: Any, words: jax.Array, sizes: SampleSizes, ends: Sequence[tuple[str, str, str]]
) -> Mapping[str, Home]:
    """Rows of nodes for a cache of each device, [devices, rows, ...]; a sample names the nodes."""

    def fetched(shards: Any, words: jax.Array) -> dict[str, Home]:
        shard, words = jax.tree.map(lambda leaf: leaf[0], (shards, words))
        sample = Sample(words, (), {}, {}, sizes)
        found = {name: sample.fetched(home_of(shard, name, ends), name) for name in sizes.sets}
        return jax.tree.map(lambda leaf: leaf[None], found)

    split = PartitionSpec(sharded.axis)
    program = jax.shard_map(
        fetched, mesh=sharded.mesh, in_specs=split, out_specs=split, check_vma=True
    )
    return jax.jit(program)(sharded.shards, words)
