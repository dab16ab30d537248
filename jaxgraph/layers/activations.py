"""Activations whose gradient needs nothing but what they put out, which is kept anyway."""

from __future__ import annotations

import jax
import jax.numpy as jnp

__all__ = ["elu"]


@jax.custom_jvp
def elu(x: jax.Array) -> jax.Array:
    """y = x where x > 0, else exp(x) - 1

    As `jax.nn.elu`, of which XLA keeps the exponential beside y for the backward.

    Args:
      x: float, of any shape.

    Returns:
      As x.

    References:
      Clevert et al., "Fast and accurate deep network learning by exponential linear units", 2016.
    """
    return jax.nn.elu(x)


@elu.defjvp
def _elu_tangent(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    y = elu(*primals)
    return y, tangents[0] * jnp.where(y > 0, jnp.ones((), y.dtype), y + 1)
