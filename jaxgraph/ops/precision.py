"""In which type sums are kept.

A sum of thousands of 16-bit numbers kept in 16 bits stops growing when its next term is less than
half a unit of its last place; so everything accumulates in 32 bits and is rounded once.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["accumulation_dtype", "to_accumulation"]


def accumulation_dtype(dtype: Any) -> np.dtype:
    """The type in which values of a type are accumulated.

    Args:
      dtype: the type of the values.

    Returns:
      float32 for floating types of 16 bits and fewer, else the type itself.
    """
    dtype = jnp.dtype(dtype)
    is_short = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4
    return jnp.dtype(jnp.float32) if is_short else dtype


def to_accumulation(values: jax.Array) -> jax.Array:
    """`values` in the type in which they are accumulated."""
    return values.astype(accumulation_dtype(values.dtype))
