"""Gathers and slices with indices that are known to be in bounds.

An index of `array[index]` may count from the end. Three instructions test for that in every loop
with a gather, and make a step of attention over several parts noticeably larger.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

Pytree = Any


def take_rows(tree: Pytree, rows: jax.Array) -> Pytree:
    """Rows [chunk, ...] of every array of a pytree; `rows` must be in bounds."""
    return jax.tree.map(
        lambda leaf: leaf.at[rows].get(mode="promise_in_bounds", wrap_negative_indices=False), tree
    )


def entry_at(array: jax.Array, index: jax.Array | int) -> jax.Array:
    """array[index], for an index in bounds that counts from the front."""
    return lax.dynamic_index_in_dim(array, index, 0, False, allow_negative_indices=False)


def rows_from(array: jax.Array, start: jax.Array | int, size: int) -> jax.Array:
    """array[start : start + size], for a start in bounds that counts from the front."""
    return lax.dynamic_slice_in_dim(array, start, size, 0, allow_negative_indices=False)


def with_rows_from(array: jax.Array, start: jax.Array | int, rows: jax.Array) -> jax.Array:
    """`array` with `rows` written from `start` on, which is in bounds and counts from the front."""
    return lax.dynamic_update_slice_in_dim(array, rows, start, 0, allow_negative_indices=False)
