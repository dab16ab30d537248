"""Sparse features: the non-zeros of the rows of nodes, as edges from columns to rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgraph.layout.derived.chunks import PIECE
from jaxgraph.ops.aggregation import aggregate
from jaxgraph.ops.core.blocks import Block
from jaxgraph.ops.core.derivatives import custom_vjp, forward_of
from jaxgraph.ops.core.edges import EdgeGroups, Orientation, match_variation
from jaxgraph.ops.core.randomness import entry_keep_mask
from jaxgraph.parallel.feature_protocol import FeatureKind, Numbers, Two, scaled
from jaxgraph.parallel.neighborhood import Nodes
from pallas_kernels.pytrees import pytree


@pytree
class NonZeros:
    """The non-zeros in one order: row by row, or column by column.

    Attributes:
      values: float [slots], the non-zeros, then padding.
      ends: int32 [slots], the row of each, or its column.
      edges: the same, as edges that end there.
      capacity: as of `jaxgraph.ops.core.edges.EdgeGroups`.
    """

    values: jax.Array
    ends: jax.Array
    edges: Orientation
    capacity: int = dataclasses.field(metadata={"static": True})

    @property
    def num_ends(self) -> int:
        """Rows, or columns, with those that have no non-zero."""
        return self.edges.position.shape[-1]


@pytree
class SparseFeatures(FeatureKind):
    """The non-zeros of the features of nodes, under `spmd`.

    A linear map x W is a sum over the non-zeros of each row, and its gradient by W a sum over those
    of each column. No array [rows, features] is made, and there is no gradient by x.

    Attributes:
      by_row, by_column: the non-zeros in both orders.
      node_ids: int32 [rows], ids in the whole graph, from which `jaxgraph.layers.dropout` draws.
      chunk, implementation: as of `jaxgraph.ops.core.edges.EdgeGroups`.
      count: of the first rows, of which alone these are the features; None: all rows.
    """

    by_row: NonZeros
    by_column: NonZeros
    node_ids: jax.Array
    chunk: int = dataclasses.field(metadata={"static": True})
    implementation: str = dataclasses.field(metadata={"static": True})
    count: int | None = dataclasses.field(default=None, metadata={"static": True})

    is_sparse = True

    def __repr__(self) -> str:
        return (
            f"SparseFeatures(shape={self.shape}, dtype={self.dtype}, "
            f"slots={self.by_row.values.size}, implementation={self.implementation!r})"
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """[rows, features], as of the dense array."""
        rows = self.node_ids.shape if self.count is None else (self.count,)
        return *rows, self.by_column.num_ends

    @property
    def dtype(self) -> Any:
        """The type of the values."""
        return self.by_row.values.dtype

    def map_values(
        self, function: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
    ) -> SparseFeatures:
        """The same non-zeros with other values.

        Args:
          function: `(values, rows, columns) -> values`, [slots] each, every slot for itself; rows
            are numbered as in `node_ids`.

        Returns:
          The features.
        """

        def mapped(some: NonZeros, rows: jax.Array, columns: jax.Array) -> NonZeros:
            return dataclasses.replace(some, values=function(some.values, rows, columns))

        return dataclasses.replace(
            self,
            by_row=mapped(self.by_row, self.by_row.ends, self.by_row.edges.neighbors),
            by_column=mapped(self.by_column, self.by_column.edges.neighbors, self.by_column.ends),
        )

    def __matmul__(self, kernel: jax.Array) -> jax.Array:
        """y = x W, which has a gradient by W alone.

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
        kernel = match_variation(kernel.astype(jnp.result_type(self.dtype, kernel)), self)
        fixed = lax.stop_gradient(self)
        return _product(fixed, kernel)[: self.count]

    def astype(self, dtype: Any) -> SparseFeatures:
        """The same non-zeros in another type."""
        return self.map_values(lambda values, rows, columns: values.astype(dtype))

    def first_rows(self, count: int) -> SparseFeatures:
        """The same non-zeros, of which a map returns the first rows."""
        return dataclasses.replace(self, count=count)

    def masked(self, nodes: Nodes) -> SparseFeatures:
        """x itself: rows of padding have no non-zero."""
        return self

    def times(self, by: str, kernel: jax.Array) -> jax.Array:
        """x W"""
        return self @ kernel

    def times_both(self, by: str, kernel: jax.Array, other: jax.Array) -> Two:
        """x W and x V by one product, which reads the non-zeros once."""
        both = self @ jnp.concatenate((kernel, other), axis=1)
        return both[:, : kernel.shape[1]], both[:, kernel.shape[1] :]

    def dropped(self, nodes: Nodes, key: jax.Array, rate: float, offset: Any = 0) -> Any:
        """The non-zeros, of which those are dropped that would be dropped of dense rows."""

        def drop(values: jax.Array, rows: jax.Array, columns: jax.Array) -> jax.Array:
            keep = entry_keep_mask(key, self.node_ids, rows, columns, rate, offset)
            return scaled(values, keep, rate)

        return self.map_values(drop)

    def hidden(self, nodes: Nodes, key: jax.Array, rate: float, first: Any) -> Any:
        """The non-zeros, of which those are 0 that would be 0 of dense rows."""

        def hide(values: jax.Array, rows: jax.Array, columns: jax.Array) -> jax.Array:
            keep = entry_keep_mask(key, self.node_ids, rows, jnp.zeros_like(columns), rate)
            return jnp.where(keep | (columns < first), values, jnp.zeros((), values.dtype))

        return self.map_values(hide)

    def digest(self, of_rows: np.ndarray, of_columns: Numbers, first: int = 0) -> int:
        """The sum over the non-zeros."""
        rows: Any = self.by_row
        numbers = of_rows[rows.ends] * of_columns(rows.edges.neighbors + first)
        return int((numbers * rows.values.view(f"u{self.dtype.itemsize}")).sum())


def _sum(x: SparseFeatures, over: NonZeros, others: NonZeros, values: jax.Array) -> jax.Array:
    """The sum over the non-zeros of each end, of their values times the other end's."""
    ids = match_variation(jnp.arange(over.num_ends, dtype=jnp.int32), over.ends)
    edges = EdgeGroups(
        by_receiver=over.edges,
        by_sender=others.edges,
        sender_ids=match_variation(jnp.arange(others.num_ends, dtype=jnp.int32), over.ends),
        sender_ptr=None,
        receiver_ids=ids,
        receiver_ptr=None,
        repetition=None,
        receivers=over.ends,
        chunk=x.chunk,
        piece=PIECE,
        receiver_capacity=over.capacity,
        sender_capacity=others.capacity,
        implementation=x.implementation,
    )
    return aggregate(Block(edges, ids, None), values, over.values.astype(values.dtype))


# Not the derivative of `aggregate`, which looks the values up in the order by row.
@custom_vjp
def _product(x: SparseFeatures, kernel: jax.Array) -> jax.Array:
    return _sum(x, x.by_row, x.by_column, kernel)


def _forward(x: SparseFeatures, kernel: jax.Array) -> tuple[jax.Array, SparseFeatures]:
    return forward_of(partial(_sum, x, x.by_row, x.by_column), kernel), x


def _backward(x: SparseFeatures, gradient: jax.Array) -> tuple[None, jax.Array]:
    return None, forward_of(partial(_sum, x, x.by_column, x.by_row), gradient)


_product.defvjp(_forward, _backward)
