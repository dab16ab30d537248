"""The graph for layers on feature columns (P3): all nodes, and their edges in chunks.

Its arrays are those of `jaxgraph.layout.column_tables`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxgraph.layout.derived.chunks import PIECE
from jaxgraph.layout.derived.rows import EdgeSizes
from jaxgraph.layout.manifest import ColumnSchedule
from jaxgraph.ops.core.edges import EdgeGroups, Orientation
from jaxgraph.parallel.exchange import Exchange
from jaxgraph.parallel.node_table import NodeTable
from jaxgraph.parallel.relation import EdgeArrays, Relation
from pallas_kernels.pytrees import pytree

Pytree = Any


@pytree
class ColumnEdges:
    """The edges of a `ColumnChunk`, or of several along a leading axis.

    Attributes:
      by_receiver, by_sender: the edges in both orientations, as one group; senders are numbered
        among all nodes.
      receivers: int32 [slots], as in `EdgeGroups`, or None: the edges have no data.
      data: [slots, ...], the user's data of the edges by name.
    """

    by_receiver: Orientation
    by_sender: Orientation
    receivers: jax.Array | None
    data: Mapping[str, jax.Array]


@pytree
class ColumnTopology:
    """The graph for layers on feature columns: all nodes, and the edges of this device.

    Attributes:
      nodes: of all parts.
      edges: the device's edges, one entry per chunk.
      schedule: how features and rows are split.
      sizes: how the edges of a chunk are visited.
      axes: names of the mesh axes; columns differ over the last one.
      implementation: the implementation that reduces over the edges.
    """

    nodes: NodeTable
    edges: ColumnEdges
    schedule: ColumnSchedule = dataclasses.field(metadata={"static": True})
    sizes: EdgeSizes = dataclasses.field(metadata={"static": True})
    axes: tuple[str, ...] = dataclasses.field(metadata={"static": True})
    implementation: str = dataclasses.field(metadata={"static": True})

    @property
    def axis(self) -> str:
        """Name of the mesh axis over which columns are split."""
        return self.axes[-1]

    @property
    def chunks(self) -> int:
        """The number of chunks that the rows are cut into."""
        return self.schedule.chunks

    def first_part(self) -> jax.Array:
        """The first part of this device's row of devices, int32 []."""
        row = lax.axis_index(self.axes[0]) if len(self.axes) > 1 else jnp.int32(0)
        return row * self.schedule.groups

    def own_parts(self, values: jax.Array) -> jax.Array:
        """The rows of `values` [parts * rows, ...] of the parts of this device's row of devices."""
        rows = values.shape[0] // self.schedule.replicas
        start = self.first_part() // self.schedule.groups * rows
        return lax.dynamic_slice_in_dim(values, start, rows, 0)

    def each_part(
        self, chunk: jax.Array | int, function: Callable[[ColumnChunk], Pytree]
    ) -> Pytree:
        """Maps a chunk, part by part, to [rows of the chunk in all parts, ...]."""
        edges = _at(self.edges, chunk)
        if self.schedule.topology == "replicated":
            return function(self._edges_to(edges, 0, chunk))

        def of_part(part: tuple[jax.Array, ColumnEdges]) -> Pytree:
            return function(self._edges_to(part[1], part[0], chunk))

        found = lax.map(of_part, (jnp.arange(self.schedule.groups), self._pushed(edges)))
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), found)

    def fold_parts(
        self,
        chunk: jax.Array | int,
        function: Callable[[ColumnChunk, Pytree, Pytree], Pytree],
        rows: Pytree,
        state: Pytree,
    ) -> Pytree:
        """Folds a function over a chunk, part by part."""
        edges, groups = _at(self.edges, chunk), self.schedule.groups
        if self.schedule.topology == "replicated":
            return function(self._edges_to(edges, 0, chunk), rows, state)

        def step(state: Pytree, part: tuple[jax.Array, ColumnEdges, Pytree]) -> Any:
            return function(self._edges_to(part[1], part[0], chunk), part[2], state), None

        by_part = jax.tree.map(lambda leaf: leaf.reshape(groups, -1, *leaf.shape[1:]), rows)
        return lax.scan(step, state, (jnp.arange(groups), self._pushed(edges), by_part))[0]

    def _edges_to(
        self, edges: ColumnEdges, part: jax.Array | int, chunk: jax.Array | int
    ) -> ColumnChunk:
        """The edges that enter a chunk of rows: of all parts, or of one of this row of devices."""
        rows = _Rows(self.schedule, self.first_part() + part, chunk)
        receivers = jax.tree.map(rows.of, self.nodes)
        groups = EdgeGroups(
            by_receiver=edges.by_receiver,
            by_sender=edges.by_sender,
            sender_ids=self.nodes.node_ids,
            sender_ptr=None,
            receiver_ids=receivers.node_ids,
            receiver_ptr=None,
            repetition=None,
            receivers=edges.receivers,
            chunk=self.sizes.chunk,
            piece=PIECE,
            receiver_capacity=self.sizes.by_receiver.capacity,
            sender_capacity=self.sizes.by_sender.capacity,
            implementation=self.implementation,
        )
        assert receivers.degrees is not None
        data: dict[str, Any] = dict(edges.data)
        arrays = EdgeArrays(groups, None, receivers.degrees, receivers_first=False, **data)
        return ColumnChunk(self.nodes, receivers, arrays, Exchange(), rows)

    def _pushed(self, edges: ColumnEdges) -> ColumnEdges:
        """Gathers the edges of all parts of this row of devices, [groups, ...]."""
        return jax.tree.map(lambda leaf: lax.all_gather(leaf, self.axis), edges)


def _at(tree: Pytree, index: jax.Array | int) -> Pytree:
    return jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, index, 0, False), tree)


@pytree
class _Rows:
    """The rows of a chunk, in the parts that its edges end in.

    Attributes:
      schedule: how features and rows are split.
      part, chunk: int32 [], the first part, and the chunk of its rows.
    """

    schedule: ColumnSchedule = dataclasses.field(metadata={"static": True})
    part: jax.Array
    chunk: jax.Array | int

    def of(self, values: jax.Array) -> jax.Array:
        """The rows of `values` [parts * rows, ...] in the chunk."""
        schedule, rest = self.schedule, values.shape[1:]
        parts = schedule.groups * schedule.replicas
        by_chunk = values.reshape(parts, schedule.chunks, -1, *rest)
        of_parts = lax.dynamic_slice_in_dim(by_chunk, self.part, schedule.parts_per_table, 0)
        rows = lax.dynamic_index_in_dim(of_parts, self.chunk, 1, keepdims=False)
        return rows.reshape(-1, *rest)


@pytree
class ColumnChunk(Relation):
    """The edges from all nodes to the rows of a chunk in some parts.

    Attributes:
      rows: the receivers' rows among those of the senders.
    """

    rows: _Rows

    def own_rows(self, values: jax.Array) -> jax.Array:
        """The receivers' rows of `values` [parts * rows, ...], 0 in padding."""
        return self.receivers.mask_rows(self.rows.of(values))

    def sum(self, values: Pytree) -> Pytree:
        """Raises ValueError: the rows of a chunk are incomplete."""
        raise ValueError("a chunk of the columns holds shares of rows, which have no sum yet")
