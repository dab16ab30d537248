"""Features split by column: a device holds some columns of every node (P3, section 3.1)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels.pytrees import pytree


@pytree
class FeatureColumns:
    """This device's columns of the features of all nodes, under `spmd`.

    Attributes:
      values: float [parts * rows, columns], the nodes of part 0 first; the last column of some
        devices is padding, where the number of features cannot be divided. Or
        `jaxgraph.parallel.SparseFeatures` of this shape.
      offset: int32 [], the first column.
      num_features: columns in all.
      groups: into how many slices they are cut.
    """

    values: Any
    offset: jax.Array
    num_features: int = dataclasses.field(metadata={"static": True})
    groups: int = dataclasses.field(metadata={"static": True})

    @property
    def has_padding(self) -> bool:
        """True where some devices hold columns of padding."""
        return self.num_features % self.groups != 0

    def in_range(self) -> jax.Array:
        """bool [columns], False for padding columns."""
        width, longer = self.values.shape[-1], self.num_features % self.groups
        is_full = self.offset < longer * width if longer else True
        return jnp.arange(width) < jnp.where(is_full, width, width - 1)

    def rows_of(self, kernel: jax.Array) -> jax.Array:
        """The rows of a kernel [num_features, ...] that belong to the columns, [columns, ...].

        A column of padding gets a row of another device's columns, or zeros.
        """
        width = self.values.shape[-1]
        padded = jnp.pad(kernel, ((0, width), *((0, 0),) * (kernel.ndim - 1)))
        return lax.dynamic_slice_in_dim(padded, self.offset, width, 0)


def gather_columns(columns: FeatureColumns, axis: str) -> jax.Array:
    """All columns of the own nodes; moves features, which layers on columns do not."""
    rows = lax.all_to_all(columns.values, axis, split_axis=0, concat_axis=1, tiled=True)
    width, (fewer, longer) = columns.values.shape[1], divmod(columns.num_features, columns.groups)
    counts = fewer + (np.arange(columns.groups) < longer)
    kept = np.flatnonzero(np.arange(width) < counts[:, None])
    return rows if len(kept) == rows.shape[1] else rows[:, kept]
