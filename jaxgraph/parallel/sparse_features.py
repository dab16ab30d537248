"""Sparse features: the non-zeros of the rows of nodes, as edges from columns to rows."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxgraph.layout.derived.chunks import PIECE
from jaxgraph.ops.aggregation import aggregate
from jaxgraph.ops.core.blocks import Block
from jaxgraph.ops.core.edges import EdgeGroups, Orientation, match_variation
from pallas_kernels.pytrees import pytree

__all__ = ["SparseFeatures", "refuse_sparse"]


@pytree
class SparseFeatures:
    """The non-zeros of the features of nodes, under `spmd`.

    A linear map x W is a sum over the non-zeros of each row, and its gradient by W a sum over those
    of each column. No array [rows, features] is made, and no gradient by x. Of a device that owns
    several parts, all arrays but `node_ids` have a leading axis.

    Attributes:
      values: float [slots], the non-zeros by row, then padding.
      rows: int32 [slots], the row of each.
      node_ids: int32 [rows], ids in the whole graph, of which `dropout` draws.
      by_receiver, by_sender: the non-zeros of each row, and of each column.
      chunk, receiver_capacity, sender_capacity, implementation: as of
        `jaxgraph.ops.core.edges.EdgeGroups`.
    """

    values: jax.Array
    rows: jax.Array
    node_ids: jax.Array
    by_receiver: Orientation
    by_sender: Orientation
    chunk: int = dataclasses.field(metadata={"static": True})
    receiver_capacity: int = dataclasses.field(metadata={"static": True})
    sender_capacity: int = dataclasses.field(metadata={"static": True})
    implementation: str = dataclasses.field(metadata={"static": True})

    def __repr__(self) -> str:
        return (
            f"SparseFeatures(shape={self.shape}, dtype={self.dtype}, slots={self.values.size}, "
            f"implementation={self.implementation!r})"
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """[rows, features], as of the dense array."""
        return *self.node_ids.shape, self.by_sender.position.shape[-1]

    @property
    def dtype(self) -> Any:
        """The type of the values."""
        return self.values.dtype

    def columns(self) -> jax.Array:
        """int32 [slots], the column of each value."""
        return self.by_receiver.neighbors

    def ids_of_values(self) -> tuple[jax.Array, jax.Array]:
        """The nodes in the rows, and for each value its place among them, both flat."""
        rows = self.rows
        if rows.ndim > 1:
            parts, of_part = len(rows), len(self.node_ids) // len(rows)
            rows = rows + of_part * jnp.arange(parts, dtype=jnp.int32)[:, None]
        return self.node_ids, rows.reshape(-1)

    def part(self, index: jax.Array | int) -> SparseFeatures:
        """The features of one of several own parts."""
        return jax.tree.map(lambda leaf: leaf[index], self._by_part())

    def __matmul__(self, kernel: jax.Array) -> jax.Array:
        """y = x W; differentiable by W alone.

        Args:
          kernel: float [features, out_features], W.

        Returns:
          float [rows, out_features], 0 in the rows of padding.

        Raises:
          ValueError: W has another number of rows.
        """
        if kernel.shape[0] != self.shape[-1]:
            raise ValueError(
                f"x has {self.shape[-1]} features, but the kernel has shape {kernel.shape}"
            )
        dtype = jnp.result_type(self.values, kernel)
        kernel = match_variation(kernel.astype(dtype), self)
        if self.values.ndim == 1:
            return self._product(kernel)
        y = lax.map(lambda part: part._product(kernel), self._by_part())
        return y.reshape(-1, *y.shape[2:])

    def _product(self, kernel: jax.Array) -> jax.Array:
        values = lax.stop_gradient(self.values).astype(kernel.dtype)
        return aggregate(self._block(), kernel, values)

    def _by_part(self) -> SparseFeatures:
        ids = self.node_ids.reshape(len(self.values), -1)
        return dataclasses.replace(self, node_ids=ids)

    def _block(self) -> Block:
        columns = jnp.arange(self.shape[-1], dtype=jnp.int32)
        edges = EdgeGroups(
            by_receiver=self.by_receiver,
            by_sender=self.by_sender,
            sender_ids=match_variation(columns, self.node_ids),
            sender_ptr=None,
            receiver_ids=self.node_ids,
            receiver_ptr=None,
            repetition=None,
            receivers=self.rows,
            chunk=self.chunk,
            piece=PIECE,
            receiver_capacity=self.receiver_capacity,
            sender_capacity=self.sender_capacity,
            implementation=self.implementation,
        )
        return Block(edges, self.node_ids, None)


def refuse_sparse(x: Any, purpose: str) -> None:
    """Raises TypeError for sparse features where dense rows are needed.

    Args:
      x: anything.
      purpose: what the rows are needed for, the subject of the message.
    """
    if isinstance(x, SparseFeatures):
        raise TypeError(
            f"{purpose} needs dense rows, but x is SparseFeatures (the non-zeros of the nodes' "
            "features); pass it through jaxgraph.nn.Linear first, or make the features dense "
            "before the graph is placed: graph.replace(nodes=graph.nodes.toarray())"
        )
