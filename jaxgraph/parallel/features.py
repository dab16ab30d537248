"""Features split by column: a device holds some columns of every node (P3, section 3.1)."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["FeatureColumns", "gather_columns", "project_columns"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FeatureColumns:
    """This device's columns of the features of all nodes, under `spmd`.

    Attributes:
      values: float [devices * rows, columns], the nodes of device 0 first; columns at or past
        `num_features` are padding.
      offset: int32 [], the first column.
      node_ids: int32 [devices * rows], ids of the rows in the whole graph.
      num_features: columns in all.
    """

    values: jax.Array
    offset: jax.Array
    node_ids: jax.Array
    num_features: int = dataclasses.field(metadata={"static": True})

    def in_range(self) -> jax.Array:
        """bool [columns], False for padding columns."""
        return self.offset + jnp.arange(self.values.shape[1]) < self.num_features


def gather_columns(columns: FeatureColumns, axis: str) -> jax.Array:
    """All columns of the own nodes.

    Args:
      columns: this device's columns, which start at its index times their number.
      axis: the mesh axis over which the columns are split.

    Returns:
      float [rows, num_features].
    """
    rows = lax.all_to_all(columns.values, axis, split_axis=0, concat_axis=1, tiled=True)
    return rows[:, : columns.num_features]


def project_columns(columns: FeatureColumns, kernel: jax.Array, axis: str) -> jax.Array:
    """y = x W for the own nodes, from partial products over columns (P3, section 3.2).

    Args:
      columns: this device's columns of x.
      kernel: float [num_features, out_features], W, the same on every device.
      axis: the mesh axis over which the columns are split.

    Returns:
      float [rows, out_features].
    """
    width = columns.values.shape[1]
    padded = jnp.pad(kernel, ((0, width), (0, 0)))
    own = lax.dynamic_slice_in_dim(padded, columns.offset, width, 0)
    values = jnp.where(columns.in_range(), columns.values, 0)
    return lax.psum_scatter(values @ own, axis, scatter_dimension=0, tiled=True)
