"""The shard: the part of the graph that one device owns, with what it needs to reach the rest."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxgraph.ops.blocks import Block
from jaxgraph.ops.edges import EdgeGroups
from jaxgraph.parallel.columns import ColumnTopology
from jaxgraph.parallel.features import FeatureColumns, gather_columns
from jaxgraph.partition.manifest import Manifest
from pallas_kernels.pytrees import pytree

__all__ = ["HaloTable", "Shard"]


@pytree
class HaloTable:
    """Which of the own rows another part deals with, for every other part.

    Attributes:
      rows: int32 [rows of all steps], own rows in the order in which they travel.
      ptr: int32 [steps + 1], where each step's rows start.
      position: int32 [steps, boundary rows], where each own row stands in a step, -1: nowhere.
    """

    rows: jax.Array
    ptr: jax.Array
    position: jax.Array


@pytree
class Shard:
    """What a model sees of the graph under `jaxgraph.parallel.spmd`.

    Rows are the device's own nodes; rows past them are padding (`node_mask` False) and never reach
    a loss, a statistic or a gradient. Edge arrays are in slot order (by group of `incoming`, then
    by receiver, as `jaxgraph.ops.edges` says) and belong to `propagate`.

    Attributes:
      node_ids: int32 [rows], ids in the whole graph.
      node_mask: bool [rows], False for padding.
      in_degree: float32 [rows], edges that enter a node, in the whole graph.
      missing_self_loop: bool [rows], which nodes have no edge to themselves.
      weighted_in_degree: float32 [rows], sum of `edge_weight` over the edges that enter a node;
        float64 under `jax_enable_x64`.
      nodes: float32 [rows, features] or `FeatureColumns`, or None; where a layer's aggregate has
        been computed once, both as a pytree (`jaxgraph.train.aggregate_once`).
      labels: int32 [rows] or float32 [rows, labels], or None.
      train_mask, val_mask, test_mask: bool [rows], or None.
      graph_ids: int32 [rows], reserved for batches of graphs.
      edges, edge_weight, edge_type: [slots, ...], one slot per edge that ends here and room for a
        chunk behind them; or None.
      incoming: the edges that end here.
      outgoing: the edges that leave for other parts, or None where the schedule has no use for it.
      send: the rows that other parts aggregate.
      reach: the rows that have edges from other parts.
      manifest: shapes and schedule of the whole sharded graph, without its counts.
      columns: what layers on feature columns need, or None: features are split by node.
      axis: name of the mesh axis, or of several that together count the parts.
      prefetch: whether the next partition is fetched while the current one is aggregated.
    """

    node_ids: jax.Array
    node_mask: jax.Array
    in_degree: jax.Array
    missing_self_loop: jax.Array
    weighted_in_degree: jax.Array | None
    nodes: jax.Array | FeatureColumns | None
    labels: jax.Array | None
    train_mask: jax.Array | None
    val_mask: jax.Array | None
    test_mask: jax.Array | None
    graph_ids: jax.Array | None
    edges: jax.Array | None
    edge_weight: jax.Array | None
    edge_type: jax.Array | None
    incoming: EdgeGroups
    outgoing: EdgeGroups | None
    send: HaloTable | None
    reach: HaloTable | None
    columns: ColumnTopology | None
    manifest: Manifest = dataclasses.field(metadata={"static": True})
    axis: str | tuple[str, ...] = dataclasses.field(metadata={"static": True})
    prefetch: bool = dataclasses.field(metadata={"static": True})

    @property
    def num_nodes(self) -> jax.Array:
        """Nodes of the whole graph, int32 []; data, since one program serves graphs of any size."""
        return self.sum(jnp.sum(self.node_mask, dtype=jnp.int32))

    @property
    def num_parts(self) -> int:
        """Parts of the whole graph."""
        return self.manifest.num_parts

    @property
    def num_rows(self) -> int:
        """Rows of this shard, padding included."""
        return self.manifest.node_rows

    def sum(self, values: Any) -> Any:
        """Sums over all shards, of a pytree of arrays that hold this shard's share."""
        return jax.tree.map(lambda leaf: lax.psum(leaf, self.axis), values)

    def mask_rows(self, values: jax.Array) -> jax.Array:
        """`values` [rows, ...] with zeros in the rows of padding."""
        if not self.manifest.has_padding:
            return values
        mask = self.node_mask.reshape(-1, *(1,) * (values.ndim - 1))
        return jnp.where(mask, values, jnp.zeros((), values.dtype))

    def to_nodes(self, values: jax.Array | FeatureColumns) -> jax.Array:
        """All features of the own nodes, [rows, features], from this device's columns of all."""
        if not isinstance(values, FeatureColumns):
            return values
        topology = self.require_columns()
        own = dataclasses.replace(values, values=topology.own_parts(values.values))
        return gather_columns(own, topology.axis)

    def require_columns(self) -> ColumnTopology:
        """What layers on feature columns need.

        Raises:
          ValueError: the graph is not in mode "p3".
        """
        if self.columns is None:
            raise ValueError(
                "x is FeatureColumns, but the graph does not say how layers run on them; shard it "
                "with mode='p3'"
            )
        return self.columns

    def own_rows(self, values: jax.Array) -> jax.Array:
        """The rows of receivers among those of senders: `values` [rows, ...], 0 in padding."""
        return self.mask_rows(values)

    def block(self, *, self_loops: bool = False) -> Block:
        """The edges whose senders are on this device (with all halos, in mode "domain")."""
        missing = self.missing_self_loop & self.node_mask if self_loops else None
        return Block(self.incoming, self.node_ids, missing)
