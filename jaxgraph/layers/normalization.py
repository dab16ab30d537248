"""Normalisation over the nodes of the whole graph, and over the features of a node."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from jaxgraph.layers.dense import require_rows
from jaxgraph.ops.precision import to_accumulation
from jaxgraph.ops.recomputation import recomputed
from jaxgraph.parallel import FeatureColumns, Shard

__all__ = ["STATISTICS", "batch_statistics", "layer_norm", "normalize"]

STATISTICS = "batch_statistics"
"""Checkpoint name of what is reduced over all devices: computed again, it would be sent again."""


def batch_statistics(shard: Shard, x: jax.Array | FeatureColumns) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of every feature over all nodes of the whole graph.

    mean = sum_i x_i / n,  var = sum_i (x_i - mean)^2 / n

    In two passes: the difference of two large sums would lose the variance of a feature that is
    far from 0.

    Args:
      shard: the shard, under `spmd`.
      x: float [rows, features]; the rows of padding are not read.

    Returns:
      float [features] and [features], the same on every device, in 32 bits at least.

    Raises:
      TypeError: x is split by column.

    References:
      SAR, section 3.4; Ioffe and Szegedy, "Batch normalization", 2015.
    """
    x = to_accumulation(require_rows(x, "batch normalisation"))
    own = jnp.sum(shard.node_mask, dtype=x.dtype)
    total, count = shard.sum((jnp.sum(shard.mask_rows(x), 0), own))
    count = checkpoint_name(jnp.maximum(count, 1), STATISTICS)
    mean = checkpoint_name(total / count, STATISTICS)
    squares = recomputed(_sum_of_squares)(x, shard.node_mask, mean)
    return mean, checkpoint_name(shard.sum(squares) / count, STATISTICS)


def _sum_of_squares(x: jax.Array, mask: jax.Array, mean: jax.Array) -> jax.Array:
    return jnp.sum(jnp.square(jnp.where(mask[:, None], x - mean, 0)), 0)


def normalize(
    shard: Shard,
    x: jax.Array | FeatureColumns,
    mean: jax.Array,
    var: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    *,
    epsilon: float = 1e-5,
    activation: Callable[[jax.Array], jax.Array] | None = None,
) -> jax.Array:
    """y = activation((x - mean) / sqrt(var + epsilon) * scale + bias)

    Of all this only x is kept for the backward.

    Args:
      shard: the shard, under `spmd`.
      x: float [rows, features].
      mean, var: float [features], of this pass or running.
      scale, bias: float [features].
      epsilon: added to the variance.
      activation: elementwise function; None: none.

    Returns:
      float [rows, features].

    Raises:
      TypeError: x is split by column.
    """
    x = require_rows(x, "batch normalisation")
    factor = lax.rsqrt(var + epsilon) * scale

    def activated(x: jax.Array, mask: jax.Array, *coefficients: jax.Array) -> jax.Array:
        normal = _affine(x, mask, *coefficients)
        return normal if activation is None else activation(normal)

    return recomputed(activated)(x, shard.node_mask, mean, factor, bias)


def _affine(
    x: jax.Array, mask: jax.Array, mean: jax.Array, factor: jax.Array, bias: jax.Array
) -> jax.Array:
    centered = jnp.where(mask[:, None], to_accumulation(x), 0) - mean
    return (centered * factor + bias).astype(x.dtype)


def layer_norm(
    shard: Shard,
    x: jax.Array | FeatureColumns,
    scale: jax.Array,
    bias: jax.Array,
    *,
    epsilon: float = 1e-5,
) -> jax.Array:
    """y_i = (x_i - mean_i) / sqrt(var_i + epsilon) * scale + bias, over the features of node i.

    Args:
      shard: the shard, under `spmd`.
      x: float [rows, features].
      scale, bias: float [features].
      epsilon: added to the variance.

    Returns:
      float [rows, features].

    Raises:
      TypeError: x is split by column.

    References:
      Ba et al., "Layer normalization", 2016.
    """
    x = shard.mask_rows(require_rows(x, "layer normalisation"))
    wide = to_accumulation(x)
    centered = wide - jnp.mean(wide, 1, keepdims=True)
    var = jnp.mean(jnp.square(centered), 1, keepdims=True)
    return (centered * lax.rsqrt(var + epsilon) * scale + bias).astype(x.dtype)
