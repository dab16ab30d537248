"""The shard: a device's share of the sharded graph, and the tables that connect it to the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from jaxgraph.layout.manifest import Manifest
from jaxgraph.ops.core.blocks import Block
from jaxgraph.ops.core.edges import EdgeGroups, varying_axes
from jaxgraph.ops.core.messages import Inputs, MessageFn, Wanted
from jaxgraph.ops.core.reducers import Reducer
from jaxgraph.other_names import NAMES_OF_GRAPH, no_attribute
from jaxgraph.parallel.columns import ColumnTopology
from jaxgraph.parallel.edge_changes import refuse_stale, with_edge_data
from jaxgraph.parallel.feature_protocol import Features, features_of, plain_of
from jaxgraph.parallel.kept_edges import has_edge, refuse_dropped_edges, sum_of_kept
from jaxgraph.parallel.schedules.domain import AllHalos
from jaxgraph.parallel.schedules.sar import Sequential
from pallas_kernels.pytrees import pytree

NO_LIST_OF_EDGES = (
    "a shard has no list of edges, since the nodes at their ends may be on several devices. "
    "jaxgraph.parallel.propagate(shard, message_fn, sender, receiver, edge) looks up the rows at "
    "both ends of each edge and reduces; jaxgraph.parallel.edge_messages returns a value for each"
)
"""The remedy where a layer indexes by the ends of edges, as it can on a `Graph`."""


@pytree
class HaloTable:
    """The own rows at one end of the edges between this part and each other part.

    Attributes:
      rows: int32 [rows of all steps], own rows in the order in which they travel.
      ptr: int32 [steps + 1], where each step's rows start.
      position: int32 [steps, boundary rows], the index of each own row in a step, -1: absent.
    """

    rows: jax.Array
    ptr: jax.Array
    position: jax.Array


@pytree
class Shard:
    """A device's share of the sharded graph, as a model reads it under `jaxgraph.parallel.spmd`.

    Rows are the device's own nodes; rows past them are padding (`node_mask` False) and never reach
    a loss, a statistic or a gradient. Edge arrays are in slot order (by group of `incoming`, then
    by receiver, as `jaxgraph.ops.core.edges` says) and belong to `propagate`.

    Attributes:
      node_ids: int32 [rows], ids in the whole graph.
      node_mask: bool [rows], False for padding.
      in_degree: float32 [rows], edges that enter a node, in the whole graph.
      missing_self_loop: bool [rows], which nodes have no edge to themselves.
      weighted_in_degree: float32 [rows], sum of `edge_weight` over the edges that enter a node;
        float64 under `jax_enable_x64`.
      nodes: float32 [rows, features], `SparseFeatures` or `FeatureColumns`, or None; where a
        layer's aggregate has been computed once, both as a pytree
        (`jaxgraph.train.aggregates.aggregate_once`).
      labels: int32 [rows] or float32 [rows, labels], or None.
      train_mask, val_mask, test_mask: bool [rows], or None.
      graph_ids: int32 [rows], reserved for batches of graphs.
      edges, edge_weight, edge_type: [slots, ...], one slot per edge that ends here, then padding
        slots of a chunk; or None.
      node_data: named arrays of the graph's nodes, [rows, ...] by name; 0 in rows of padding.
      edge_data: named arrays of the graph's edges, [slots, ...] by name; 0 in slots of padding.
      incoming: the edges that end here.
      outgoing: the edges that leave for other parts, or None where the schedule does not need them.
      send: the rows that other parts aggregate.
      reach: the rows that have edges from other parts.
      manifest: shapes and schedule of the whole sharded graph, without its counts.
      columns: the graph for layers on feature columns, or None: features are split by node.
      axis: name of the mesh axis, or of several that together count the parts.
      prefetch: whether the next part's rows are fetched while the current ones are aggregated.
      hosts: over how many hosts the parts are spread, in runs of equal length; schedules visit the
        parts of the own host first.
      kept_edges: bool [slots], the edges that carry messages; the others are dropped
        (`jaxgraph.layers.dropout_edge`). None: all.
      has_own_weights: whether `replace` changed `edge_weight`, which sums that were made for the
        whole graph do not know.
      follows_from: the edge data that degrees follow from, or None: its own.
    """

    node_ids: jax.Array
    node_mask: jax.Array
    in_degree: jax.Array
    missing_self_loop: jax.Array
    weighted_in_degree: jax.Array | None
    nodes: Features | None
    labels: jax.Array | None
    train_mask: jax.Array | None
    val_mask: jax.Array | None
    test_mask: jax.Array | None
    graph_ids: jax.Array | None
    edges: jax.Array | None
    edge_weight: jax.Array | None
    edge_type: jax.Array | None
    node_data: Mapping[str, jax.Array]
    edge_data: Mapping[str, jax.Array]
    incoming: EdgeGroups
    outgoing: EdgeGroups | None
    send: HaloTable | None
    reach: HaloTable | None
    columns: ColumnTopology | None
    manifest: Manifest = dataclasses.field(metadata={"static": True})
    axis: str | tuple[str, ...] = dataclasses.field(metadata={"static": True})
    prefetch: bool = dataclasses.field(metadata={"static": True})
    kept_edges: jax.Array | None = None
    hosts: int = dataclasses.field(default=1, metadata={"static": True})
    has_own_weights: bool = dataclasses.field(default=False, metadata={"static": True})
    follows_from: Any = dataclasses.field(
        default=None, repr=False, compare=False, metadata={"dropped": True}
    )

    streamed: ClassVar[bool] = False
    """True where the host visits part after part, and computes again what the backward reads."""

    def __post_init__(self) -> None:
        refuse_stale(self)

    @property
    def num_nodes(self) -> jax.Array:
        """Nodes of the whole graph, int32 []; data, since one program serves graphs of any size."""
        return lax.psum(jnp.sum(self.node_mask, dtype=jnp.int32), self.axis)

    if not TYPE_CHECKING:  # it would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            remedy = NAMES_OF_GRAPH.get(name)
            if remedy is not None:
                remedy = f"its name here is {remedy}"
            if name in ("num_edges", "edge_index"):
                remedy = NO_LIST_OF_EDGES
            raise no_attribute("a Shard", name, remedy)

    def __repr__(self) -> str:
        features = getattr(self.nodes, "shape", (None,))[-1]
        return (
            f"Shard(part of {self.num_parts}, mode={self.manifest.mode!r}, "
            f"num_rows={self.num_rows}, num_features={features}, axis={self.axis!r}, "
            f"implementation={self.incoming.implementation!r})"
        )

    @property
    def num_parts(self) -> int:
        """Parts of the whole graph."""
        return self.manifest.num_parts

    @property
    def num_rows(self) -> int:
        """Rows of this shard, padding included."""
        return self.manifest.node_rows

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
          ValueError: another name, or an array without an entry for each slot. In mode "p3" the
            first layer refuses the result: its columns have the edges in another order.
        """
        return with_edge_data(self, changes)

    @property
    def sender_rows(self) -> int:
        """Rows of the table of senders: the own nodes."""
        return self.num_rows

    @property
    def receiver_rows(self) -> int:
        """Rows of the table of receivers: the own nodes."""
        return self.num_rows

    @property
    def edge_slots(self) -> int:
        """Slots of an array with one row per edge that ends here, padding included."""
        return self.incoming.by_receiver.neighbors.shape[-1]

    @property
    def edge_mask(self) -> jax.Array:
        """bool [slots], False for padding; True for edges that are dropped, too."""
        return has_edge(self.incoming)

    def has_edges(self, side: str) -> jax.Array:
        """bool [rows], the own nodes that some edge reads at its "sender" or "receiver"."""
        position = self.incoming.orientation(side).position[: self.num_rows]
        shared = self.send if side == "sender" else self.reach
        if shared is None:
            return position >= 0
        elsewhere = (shared.position >= 0).any(0)
        more = jnp.zeros(self.num_rows - len(elsewhere), bool)
        return (position >= 0) | jnp.concatenate([elsewhere, more])

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
        _check_under_spmd(self.axis)
        for path, leaf in jax.tree_util.tree_leaves_with_path(values):
            _check_differs(jax.tree_util.keystr(path), leaf, self.axis)
        return jax.tree.map(lambda leaf: lax.psum(leaf, self.axis), values)

    @property
    def receivers(self) -> Shard:
        """The nodes whose rows layers return: the own nodes."""
        return self

    @property
    def senders(self) -> Shard:
        """The nodes whose rows layers take: the own nodes, too."""
        return self

    @property
    def degree(self) -> jax.Array:
        """float [rows], d_i of `gcn_conv`, without the self-loops that it adds."""
        weighted = self.weighted_in_degree
        return self.in_degree if weighted is None else weighted

    @property
    def has_padding(self) -> bool:
        """True where there may be rows of padding."""
        return self.manifest.has_padding

    @property
    def implementation(self) -> str:
        """The implementation that reduces over the edges: "xla", "cpu" or "mosaic_gpu"."""
        return self.incoming.implementation

    @property
    def edge_chunk(self) -> int:
        """Number of edges in a call of a message function."""
        return self.incoming.chunk

    def mask_rows(self, values: jax.Array) -> jax.Array:
        """`values` [rows, ...] with zeros in the rows of padding."""
        return features_of(values).masked(self)

    def own_rows(self, values: jax.Array) -> jax.Array:
        """`values` [rows, ...]: receivers and senders are the same nodes."""
        return values

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

    def local_block(self) -> Block:
        """Returns the edges whose senders are on this device (with all halos, in mode "domain")."""
        return Block(self.incoming, self.node_ids, self.missing_self_loop & self.node_mask)

    def schedule(self, *, self_loops: bool = False) -> AllHalos | Sequential:
        """Returns the schedule by which the rows of other parts reach this one.

        Raises:
          ValueError: some edges are dropped.
        """
        if self.kept_edges is not None:
            refuse_dropped_edges(
                "attention", "pass dropout= to its layer, which drops by edge and head"
            )
        return self._schedule(self_loops=self_loops)

    def _schedule(self, *, self_loops: bool) -> AllHalos | Sequential:
        if self.manifest.mode == "domain" or self.num_parts == 1:
            return AllHalos(self, self_loops)
        return Sequential(self, self_loops)

    def propagate(
        self, message: MessageFn, reducer: Reducer, inputs: Inputs, *, self_loops: bool = False
    ) -> Any:
        """Reduces messages at the own nodes by the schedule that the graph was sharded for.

        y_i = reduce_{e: j -> i} message(params, sender_j, receiver_i, edge_e)

        Args:
          message: evaluated on chunks of edges; closes over nothing that needs a gradient.
          reducer: the reduction of the messages.
          inputs: arrays by own row and edge slot.
          self_loops: whether nodes without an edge to themselves send themselves a message.

        Returns:
          Pytree of arrays [rows, ...].

        Raises:
          ValueError: some edges are dropped, and the reducer is no sum.
        """
        if self.kept_edges is None:
            return self.schedule(self_loops=self_loops).propagate(message, reducer, inputs)
        kept = sum_of_kept(self.kept_edges, message, reducer, inputs, self_loops=self_loops)
        return dataclasses.replace(self, kept_edges=None).propagate(*kept)

    def pull_sum(
        self, message: MessageFn, reducer: Reducer, inputs: Inputs, gradient: Any, wanted: Wanted
    ) -> Inputs:
        """Pulls a gradient back through a sum of messages, for ops that state their derivative.

        Args:
          message, inputs: as for `propagate`.
          reducer: one whose gradient needs nothing of its outputs, such as `Sum`.
          gradient: of the outputs, [rows, ...].
          wanted: the inputs whose gradients are computed.

        Returns:
          `Inputs` of lists of the gradients of floating arrays, zeros where none is wanted.

        Raises:
          ValueError: some edges are dropped, and gradients of edges are wanted.
        """
        if self.kept_edges is not None:
            if wanted.edge:
                refuse_dropped_edges("an op on edge values", "call it on the whole shard")
            kept = sum_of_kept(self.kept_edges, message, reducer, inputs, self_loops=False)
            whole = dataclasses.replace(self, kept_edges=None)
            return whole.pull_sum(*kept, gradient, wanted)
        return self.schedule().pull_sum(message, reducer, inputs, gradient, wanted)


def _check_under_spmd(axis: str | tuple[str, ...]) -> None:
    try:
        lax.axis_size(axis)
    except NameError as error:
        raise ValueError(
            "shard.sum adds over the devices of a running program; call it in a function that "
            "jaxgraph.parallel.spmd runs on every shard"
        ) from error


def _check_differs(where: str, leaf: Any, axis: str | tuple[str, ...]) -> None:
    if varying_axes(leaf) >= ({axis} if isinstance(axis, str) else set(axis)):
        return
    what = f"values{where}" if where else "its argument"
    raise ValueError(
        f"shard.sum: {what} is the same on every device (a constant, the result of another "
        "shard.sum, shard.num_nodes, a parameter or its gradient), so that it would be counted "
        "once per part. Use it as it is: gradients of parameters are summed over the parts "
        "already. To count something per node, sum it over the rows first: "
        "shard.sum(jnp.sum(jnp.where(shard.node_mask, value, 0)))"
    )
