"""Sums over the rows of a table by column, of which the statistics of a batch norm are made."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxgraph.ops.cpu import calls
from jaxgraph.ops.precision import to_accumulation

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

    def centered(table: jax.Array, shift: jax.Array) -> jax.Array:
        table = to_accumulation(table) - shift[None]
        return table if valid is None else jnp.where(valid[:, None], table, 0)

    of_x = centered(x, x_shift)
    return jnp.sum(of_x, 0), jnp.sum(of_x * centered(z, z_shift), 0)
