"""Activations whose derivative reads their output alone, which is saved anyway."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgraph.ops.core.precision import to_accumulation
from jaxgraph.ops.core.stored import stored

Activation = Callable[[jax.Array], jax.Array]


@jax.custom_jvp
def elu(x: jax.Array) -> jax.Array:
    """y = x where x > 0, else exp(x) - 1

    Equals `jax.nn.elu` to 2 units in the last place. XLA counts its own exponential as expensive:
    it would save the exponential as well as y, or an array of powers where y is recomputed.

    Args:
      x: float, of any shape.

    Returns:
      float, of the shape and type of x.

    References:
      Clevert et al., "Fast and accurate deep network learning by exponential linear units", 2016.
    """
    wide = to_accumulation(jnp.asarray(x))
    return jnp.where(wide > 0, wide, _exp_minus_one(wide)).astype(x.dtype)


@elu.defjvp
def _elu_tangent(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    y = elu(*primals)
    return y, tangents[0] * jnp.where(y > 0, jnp.ones((), y.dtype), y + 1)


def keeping_output(activation: Activation) -> Activation:
    """Returns an activation that saves its output instead of its input for the backward."""
    return _relu if activation is jax.nn.relu else activation


@jax.custom_jvp
def _relu(x: jax.Array) -> jax.Array:
    return stored(jnp.maximum(x, 0))


@_relu.defjvp
def _relu_tangent(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    y = _relu(*primals)
    return y, jnp.where(y > 0, tangents[0], jnp.zeros((), y.dtype))


_LOG2_HIGH, _LOG2_LOW = np.float32(0.693145751953125), np.float32(1.42860677e-06)
"""ln 2 as a sum of two; the first has few digits, so that its multiples are exact."""


def _exp_minus_one(x: jax.Array) -> jax.Array:
    """exp(x) - 1 = 2^n (exp(r) - 1) + (2^n - 1),  r = x - n ln 2,  for x <= 0."""
    if x.dtype != jnp.float32:
        return jnp.expm1(x)
    x = jnp.maximum(x, -20)  # -1, rounded
    n = jnp.round(x * np.float32(1 / np.log(2)))
    r = x - n * _LOG2_HIGH - n * _LOG2_LOW
    series = jnp.full_like(r, 1 / math.factorial(7))
    for k in range(6, 0, -1):
        series = series * r + np.float32(1 / math.factorial(k))
    power = lax.bitcast_convert_type((n.astype(jnp.int32) + 127) << 23, jnp.float32)
    return power * (series * r) + (power - 1)
