"""Sums over the rows of a table by column, of which the statistics of a batch norm are made."""

from __future__ import annotations

import jax

from jaxgraph.ops.cpu import calls

__all__ = ["column_sums"]


def column_sums(
    x: jax.Array,
    z: jax.Array,
    x_shift: jax.Array,
    z_shift: jax.Array,
    valid: jax.Array | None,
    implementation: str,
) -> tuple[jax.Array, jax.Array]:
    """s = sum_i (x_i - a) and p = sum_i (x_i - a) (z_i - b), element by element.

    "cpu" has a kernel that reads both tables once; XLA stores the differences before it adds them
    up, and differentiates it.

    Args:
      x, z: float [rows, features], of one type.
      x_shift, z_shift: a and b, float [features], of the type in which x is accumulated.
      valid: bool [rows], which rows are summed; the others may hold anything. None: all.
      implementation: "mosaic_gpu", "cpu" or "xla".

    Returns:
      [features] and [features], of the type in which x is accumulated.
    """
    if implementation == "cpu" and x.dtype in calls.KERNEL_TYPES:
        return calls.column_sums(x, z, x_shift, z_shift, valid)

    return calls.portable_column_sums(x, z, x_shift, z_shift, valid)
