"""Rows of arrays whose numbers are known to be in bounds.

An index of `array[index]` may count from the back: three instructions find out, in every loop that
looks something up, and with them a step of attention over several parts is a good part larger.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

__all__ = ["entry_at", "rows_from", "take_rows", "with_rows_from"]

Pytree = Any


def take_rows(tree: Pytree, rows: jax.Array) -> Pytree:
    """Rows [chunk, ...] of every array of a pytree; `rows` must be in bounds."""
    return jax.tree.map(
        lambda leaf: leaf.at[rows].get(mode="promise_in_bounds", wrap_negative_indices=False), tree
    )


def entry_at(array: jax.Array, index: jax.Array | int) -> jax.Array:
    """array[index], whose index is in bounds and counts from the front."""
    return lax.dynamic_index_in_dim(array, index, 0, False, allow_negative_indices=False)


def rows_from(array: jax.Array, start: jax.Array | int, size: int) -> jax.Array:
    """array[start : start + size], of a start that is in bounds and counts from the front."""
    return lax.dynamic_slice_in_dim(array, start, size, 0, allow_negative_indices=False)


def with_rows_from(array: jax.Array, start: jax.Array | int, rows: jax.Array) -> jax.Array:
    """`array` with other rows from `start` on, which is in bounds and counts from the front."""
    return lax.dynamic_update_slice_in_dim(array, rows, start, 0, allow_negative_indices=False)
