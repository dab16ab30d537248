"""The shard: a device's share of the sharded graph, its node tables and relations by name."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import jax

from jaxgraph.layout.manifest import Manifest
from jaxgraph.layout.message_flow import HOPS
from jaxgraph.layout.typed_manifest import Ends, Paired, TypedManifest
from jaxgraph.layout.typed_pairs import TYPES
from jaxgraph.ops.core.messages import Inputs, MessageFn, Wanted
from jaxgraph.ops.core.reducers import Reducer
from jaxgraph.other_names import NAMES_OF_GRAPH, no_attribute
from jaxgraph.parallel.columns import ColumnTopology
from jaxgraph.parallel.edge_changes import with_edge_data
from jaxgraph.parallel.exchange import Exchange
from jaxgraph.parallel.feature_protocol import plain_of
from jaxgraph.parallel.node_table import NodeTable
from jaxgraph.parallel.relation import EdgeArrays, Pairs, Relation
from jaxgraph.parallel.samples import Sample, SampledLayer
from pallas_kernels.pytrees import pytree

NO_LIST_OF_EDGES = (
    "a shard has no list of edges, since the nodes at their ends may be on several devices. "
    "jaxgraph.parallel.propagate(shard, message_fn, sender, receiver, edge) looks up the rows at "
    "both ends of each edge and reduces; jaxgraph.parallel.edge_messages returns a value for each"
)
"""The remedy where a layer indexes by the ends of edges, as it can on a `Graph`."""
NODES, EDGES = "nodes", "edges"
"""The names of the table and of the relation of a graph that has one of each."""


def _of_table(name: str) -> Any:
    return property(lambda shard: getattr(shard.table(), name))


def _of_relation(name: str) -> Any:
    return property(lambda shard: getattr(shard.relation(), name))


def _of_receivers(name: str) -> Any:
    return property(lambda shard: getattr(shard.relation().receivers, name))


def _between(relation: Relation, senders: NodeTable, receivers: NodeTable) -> Relation:
    """A relation that knows all rows of a table, between two runs of its first rows."""
    arrays = relation.arrays
    outgoing = arrays.outgoing
    if outgoing is not None:
        outgoing = dataclasses.replace(outgoing, sender_ids=senders.node_ids)
    arrays = dataclasses.replace(
        arrays,
        incoming=dataclasses.replace(arrays.incoming, receiver_ids=receivers.node_ids),
        outgoing=outgoing,
        at_receivers=receivers.degrees,
        at_senders=senders.degrees,
        # Random bits are those of the whole set of edges.
        set_number=0,
    )
    return Relation(senders, receivers, arrays, relation.exchange)


@pytree
class Shard:
    """A device's share of the sharded graph, as a model reads it under `jaxgraph.parallel.spmd`.

    Rows are the device's own nodes; rows past them are padding (`node_mask` False) and never reach
    a loss, a statistic or a gradient. Edge arrays are in slot order (by group of `incoming`, then
    by receiver, as `jaxgraph.ops.core.edges` says) and belong to `propagate`.

    A graph of one set of nodes and edges has one table and one relation: the attributes of both are
    attributes of its shard.

    Attributes:
      node_ids: int32 [rows], ids in the whole graph.
      node_mask: bool [rows], False for padding.
      in_degree: float32 [rows], edges that enter a node, in the whole graph.
      missing_self_loop: bool [rows], which nodes have no edge to themselves.
      weighted_in_degree: float32 [rows], sum of `edge_weight` over the edges that enter a node;
        float64 under `jax_enable_x64`.
      degree: float [rows], d_i of `gcn_conv`, without the self-loops that it adds.
      nodes: float32 [rows, features], `SparseFeatures` or `FeatureColumns`, or None; where a
        layer's aggregate has been computed once, both as a pytree
        (`jaxgraph.train.aggregates.aggregate_once`).
      labels: int32 [rows] or float32 [rows, labels], or None.
      train_mask, val_mask, test_mask: bool [rows], or None.
      edges, edge_weight, edge_type: [slots, ...], one slot per edge that ends here, then padding
        slots of a chunk; or None.
      node_data: named arrays of the graph's nodes, [rows, ...] by name; 0 in rows of padding. With
        message flow also "hops_to_loss", the fewest edges from a node to one with a loss.
      edge_data: named arrays of the graph's edges, [slots, ...] by name; 0 in slots of padding.
      edge_slots, edge_mask: slots of an array with one row per edge that ends here, and bool
        [slots], False for padding.
      kept_edges: bool [slots], the edges that carry messages; the others are dropped
        (`jaxgraph.layers.dropout_edge`). None: all.
      num_nodes: int32 [], nodes of the whole graph; data, since one program serves graphs of any
        size.
      num_rows: rows of this shard, padding included.
      tables: node tables by name.
      relations: the neighbourhoods that layers take, by name; `relation(name)` is one of them.
      edge_arrays, exchanges: of which relations are made, by name.
      ends: the tables and the exchange of each relation.
      sample: the nodes and edges of a mini-batch (`jaxgraph.sampling.Loader`), or None.
      columns: the graph for layers on feature columns, or None: features are split by node.
      manifest: shapes and schedule of the whole sharded graph, without its counts; a
        `TypedManifest` where there are several tables or relations.
    """

    tables: Mapping[str, NodeTable]
    edge_arrays: Mapping[str, EdgeArrays]
    exchanges: Mapping[str, Exchange]
    columns: ColumnTopology | None
    manifest: Manifest = dataclasses.field(metadata={"static": True})
    ends: tuple[tuple[str, Ends], ...] = dataclasses.field(
        default=((EDGES, Ends(NODES, NODES, NODES)),), metadata={"static": True}
    )
    sample: Sample | None = None

    streamed: ClassVar[bool] = False
    """True where the host visits part after part, and computes again what the backward reads."""

    node_ids = _of_table("node_ids")
    node_mask = _of_table("node_mask")
    nodes = _of_table("nodes")
    labels = _of_table("labels")
    train_mask = _of_table("train_mask")
    val_mask = _of_table("val_mask")
    test_mask = _of_table("test_mask")
    node_data = _of_table("node_data")
    num_nodes = _of_table("num_nodes")
    num_rows = _of_table("num_rows")
    has_padding = _of_table("has_padding")
    set_number = _of_table("set_number")
    in_degree = _of_receivers("in_degree")
    missing_self_loop = _of_receivers("missing_self_loop")
    weighted_in_degree = _of_receivers("weighted_in_degree")
    degree = _of_receivers("degree")
    edges = _of_relation("edges")
    edge_weight = _of_relation("edge_weight")
    edge_type = _of_relation("edge_type")
    edge_data = _of_relation("edge_data")
    edge_slots = _of_relation("edge_slots")
    edge_mask = _of_relation("edge_mask")
    edge_chunk = _of_relation("edge_chunk")
    kept_edges = _of_relation("kept_edges")
    has_own_weights = _of_relation("has_own_weights")
    has_edges = _of_relation("has_edges")
    incoming = _of_relation("incoming")
    exchange = _of_relation("exchange")
    implementation = _of_table("implementation")
    sender_rows = _of_relation("sender_rows")
    receiver_rows = _of_relation("receiver_rows")
    pairs = _of_relation("pairs")

    if not TYPE_CHECKING:  # it would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            remedy = NAMES_OF_GRAPH.get(name)
            if remedy is not None:
                remedy = f"its name here is {remedy}"
            if name in ("num_edges", "edge_index"):
                remedy = NO_LIST_OF_EDGES
            raise no_attribute("a Shard", name, remedy)

    def __repr__(self) -> str:
        parts = f"part of {self.num_parts}, mode={self.manifest.mode!r}"
        if len(self.tables) > 1 or len(self.edge_arrays) > 1:
            names = f"tables={self.given('table')}, relations={self.given('relation')}"
            return f"Shard({parts}, {names})"
        features = getattr(self.nodes, "shape", (None,))[-1]
        return (
            f"Shard({parts}, num_rows={self.num_rows}, num_features={features}, "
            f"axis={self.axis!r}, implementation={self.implementation!r})"
        )

    @property
    def axis(self) -> str | tuple[str, ...]:
        """Name of the mesh axis over which the graph is split, or names of several."""
        return next(iter(self.tables.values())).axis

    @property
    def num_parts(self) -> int:
        """Parts of the whole graph."""
        return self.manifest.num_parts

    @property
    def receivers(self) -> Shard:
        """The nodes whose rows layers return: the own nodes."""
        return self

    @property
    def senders(self) -> Shard:
        """The nodes whose rows layers take: the own nodes, too."""
        return self

    def table(self, name: str | None = None) -> NodeTable:
        """A table of nodes.

        Args:
          name: of the table; None: the only one, or the `target` of a `jaxgraph.TypedGraph`.

        Raises:
          ValueError: there is no such table, or there are several and none is named.
        """
        return self.tables[self.name_of("table", name)]

    def relation(self, name: str | None = None) -> Relation:
        """The edges from one table to another, as layers take them.

        Args:
          name: of the relation; None: the only one.

        Raises:
          ValueError: there is no such relation, or there are several and none is named.
        """
        name = self.name_of("relation", name)
        found, paired = self._relation(name), dict(getattr(self.manifest, "paired", ())).get(name)
        if paired is None:
            return found
        return dataclasses.replace(found, pairs=self._pairs(paired))

    def _pairs(self, paired: Paired) -> Pairs:
        types = self.tables[paired.table].node_data[TYPES]
        into, out_of = map(self._relation, (paired.into, paired.out_of))
        back = None if paired.back is None else self._pairs(paired.back)
        return Pairs(into, out_of, types, back, paired.block, paired.num_types)

    @property
    def relations(self) -> dict[str, Relation]:
        """The edges of each set, from one table to another, as layers take them."""
        return {name: self.relation(name) for name in self.given("relation")}

    @property
    def flow(self) -> tuple[Any, ...]:
        """The relations of a model's layers that compute what a loss needs; (): there are none.

        The receivers of each are the first of its senders, and the senders of the next. Of a sample
        of several sets, there is a `jaxgraph.parallel.samples.SampledLayer` for each layer.
        """
        if self.sample is not None:
            return () if self.sample.reads_whole else self.sample.layers(self)
        manifest: Any = self.manifest
        if manifest.flow is None:
            return ()
        names, known = manifest.flow.relations, dict(manifest.relations)
        nodes = self.relation().receivers
        sizes = [known[name].own_senders.node_rows for name in names] + [known[names[-1]].node_rows]
        most = range(len(names), -1, -1)
        tables = [
            nodes.first_rows(rows, nodes.node_data[HOPS] <= hops)
            for rows, hops in zip(sizes, most, strict=True)
        ]
        return tuple(
            _between(self.relation(name), *ends)
            for name, ends in zip(names, itertools.pairwise(tables), strict=True)
        )

    def read(self, rows: Mapping[str, jax.Array]) -> tuple[Any, Mapping[str, Any]]:
        """Object with the relations of the readout, and the rows that they read, by set.

        They are those of the shard, given rows of its nodes; or of a batch, which fetches some.
        """
        if self.sample is None:
            return self, rows
        layer = self._readout(rows)
        return layer, {name: layer.tables[name].nodes for name in rows}

    def _readout(self, rows: Mapping[str, jax.Array]) -> SampledLayer:
        """The layer of a batch that reads rows of nodes; features but those of the target wait."""
        assert self.sample is not None
        target = self.name_of("table")
        tables = {
            name: table if name == target else dataclasses.replace(table, nodes=rows.get(name))
            for name, table in self.tables.items()
        }
        (layer,) = self.sample.layers(dataclasses.replace(self, tables=tables))
        return layer

    def with_loss(self, flow: Sequence[Any]) -> Shard:
        """The shard of the nodes that a step has a loss of, given its flow."""
        if self.sample is not None and self.sample.reads_whole:
            flow = (self._readout({}),)
        return self.at_receivers(flow[-1]) if flow else self

    def at_receivers(self, layer: Relation | SampledLayer) -> Shard:
        """The shard of the receivers of the last layer, without edges, for a task."""
        name = self.name_of("table")
        is_one = isinstance(layer, Relation)
        tables = {name: layer.receivers if is_one else layer.receivers[name]}
        return dataclasses.replace(self, tables=tables, edge_arrays={}, exchanges={})

    @property
    def is_typed(self) -> bool:
        """True for the shard of a `jaxgraph.TypedGraph`."""
        return isinstance(self.manifest, TypedManifest) and self.manifest.flow is None

    def given(self, kind: str) -> list[str]:
        """The names of the tables ("table") or relations ("relation") that the user gave."""
        derived = getattr(self.manifest, "derived", ())
        return [name for name in self._known(kind) if name not in derived]

    def _known(self, kind: str) -> Mapping[str, Any]:
        return self.tables if kind == "table" else self.edge_arrays

    def name_of(self, kind: str, name: str | None = None) -> str:
        """The name of a "table" or a "relation"; None: that of the only one or the target."""
        known, given = self._known(kind), self.given(kind)
        target = getattr(self.manifest, "target", None) if kind == "table" else None
        if name is None and (target is not None or len(given) == 1):
            return target or given[0]
        if name is None or name not in known:
            if not known:
                raise ValueError(
                    "with message_flow a task is given the nodes with a loss, without edges; shard "
                    "the graph without message_flow"
                )
            what = "none was named" if name is None else f"got {name!r}"
            raise ValueError(
                f"the shard has the {kind}s {', '.join(map(repr, sorted(given)))}, and {what}; "
                f"name one: shard.{kind}(name)"
            )
        return name

    def _relation(self, name: str) -> Relation:
        arrays, ends = self.edge_arrays[name], dict(self.ends)[name]
        by = arrays.incoming.implementation
        at_senders = arrays.at_senders or arrays.at_receivers
        return Relation(
            dataclasses.replace(self.tables[ends.senders], degrees=at_senders, implementation=by),
            dataclasses.replace(
                self.tables[ends.receivers], degrees=arrays.at_receivers, implementation=by
            ),
            arrays,
            self.exchanges[ends.exchange],
        )

    def fields_of(self, table: str) -> frozenset[tuple[str, ...]]:
        """The fields whose arrays have a row for each row of a table."""
        found: set[tuple[str, ...]] = {("tables", table)}
        for name, ends in self.ends:
            if ends.receivers == table:
                found.add(("edge_arrays", name, "at_receivers"))
            if ends.senders == table:
                found.add(("edge_arrays", name, "at_senders"))
        return frozenset(found)

    def with_table(self, **changes: Any) -> Shard:
        """The shard with other arrays of its only table."""
        name = self.name_of("table")
        table = dataclasses.replace(self.tables[name], **changes)
        return dataclasses.replace(self, tables={**self.tables, name: table})

    def with_edges(self, relation: str | None = None, **changes: Any) -> Shard:
        """The shard with other arrays of a relation, or of its only one."""
        name = self.name_of("relation", relation)
        arrays = dataclasses.replace(self.edge_arrays[name], **changes)
        return dataclasses.replace(self, edge_arrays={**self.edge_arrays, name: arrays})

    def replace(self, **changes: Any) -> Shard:
        """Returns the shard with other data of its edges, and with the degrees that follow.

        d_i = sum_{e: j -> i} w_e

        Gradients reach w through the degrees, too, as an explanation by a mask of the edges needs.

            shard = shard.replace(edge_weight=shard.edge_weight * jax.nn.sigmoid(mask))

        Args:
          **changes: `edges` [slots, features], `edge_weight` [slots] or `edge_type` [slots], each
            an array by slot or None.

        Returns:
          The shard.

        Raises:
          ValueError: another name, or an array without an entry for each slot; or the graph has
            several sets. In mode "p3" the first layer refuses the result: its columns have the
            edges in another order.
        """
        if isinstance(self.manifest, TypedManifest):
            has = "sets by name" if self.is_typed else "edges for each layer (message_flow)"
            raise ValueError(
                f"shard.replace changes the edges of a graph of one set, and this one has {has}; "
                "give the graph other data before it is sharded"
            )
        relation = with_edge_data(self.relation(), changes)
        changed: dict[str, Any] = {"edge_arrays": {next(iter(self.edge_arrays)): relation.arrays}}
        if "edge_type" in changes:
            changed["manifest"] = dataclasses.replace(self.manifest, num_edge_types=0)
        if "edge_weight" in changes or any(data is not None for data in changes.values()):
            # The columns of mode "p3" have edge data of their own.
            changed["columns"] = None
        return dataclasses.replace(self, **changed)

    def sum(self, values: Any) -> Any:
        """Sums over all shards.

        y = sum_p values_p

        Args:
          values: pytree of arrays, each this shard's share.

        Returns:
          The same pytree, equal on every device.

        Raises:
          ValueError: an array is equal on every device already, such as a constant, a sum or the
            gradient of a parameter: it would be counted once per part. Or the call is not under
            `spmd`.
        """
        return next(iter(self.tables.values())).sum(values)

    def mask_rows(self, values: jax.Array) -> jax.Array:
        """`values` [rows, ...] with zeros in the rows of padding."""
        return self.table().mask_rows(values)

    def own_rows(self, values: jax.Array) -> jax.Array:
        """The receivers' rows of `values` [senders, ...]."""
        return self.relation().own_rows(values)

    def to_nodes(self, values: Any) -> jax.Array:
        """Returns all features of the own nodes, [rows, features].

        Args:
          values: dense features, or `FeatureColumns`, which are gathered.

        Raises:
          TypeError: the features are sparse.
        """
        return plain_of(values).gathered(self, "shard.to_nodes")

    def require_columns(self) -> ColumnTopology:
        """Returns `columns`, the graph for layers on feature columns.

        Raises:
          ValueError: the graph is not in mode "p3".
        """
        if self.columns is None:
            raise ValueError(
                "x is FeatureColumns, but the graph does not say how layers run on them; shard it "
                "with mode='p3', and replace no edge data of the shard before its first layer"
            )
        return self.columns

    def propagate(
        self, message: MessageFn, reducer: Reducer, inputs: Inputs, *, self_loops: bool = False
    ) -> Any:
        """See `jaxgraph.parallel.relation.Relation.propagate`."""
        return self.relation().propagate(message, reducer, inputs, self_loops=self_loops)

    def pull_sum(
        self, message: MessageFn, reducer: Reducer, inputs: Inputs, gradient: Any, wanted: Wanted
    ) -> Inputs:
        """See `jaxgraph.parallel.relation.Relation.pull_sum`."""
        return self.relation().pull_sum(message, reducer, inputs, gradient, wanted)
