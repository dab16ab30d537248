"""Normalisation over the nodes of the whole graph, and over the features of a node."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from jaxgraph.layers.dense import require_rows
from jaxgraph.ops.core.derivatives import custom_vjp
from jaxgraph.ops.core.edges import match_variation
from jaxgraph.ops.core.precision import accumulation_dtype, to_accumulation
from jaxgraph.ops.core.stored import stored_for, when_ready
from jaxgraph.parallel import Shard
from jaxgraph.parallel.features import FeatureColumns
from jaxgraph.parallel.whole_graph import nodes_on_device

STATISTICS = "batch_statistics"
"""Checkpoint name of sums over all devices: recomputing them would send them again."""


def batch_statistics(shard: Shard, x: jax.Array | FeatureColumns) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of every feature over all nodes of the whole graph.

    mean = sum_i x_i / n,  var = sum_i (x_i - mean)^2 / n

    In two passes: the difference of two large sums would lose the variance of a feature that is
    far from 0.

    References:
      SAR, section 3.4; Ioffe and Szegedy, "Batch normalization", 2015.
    """
    shard, x = _rows(shard, x, "batch normalisation")
    return _statistics(shard, x)[0]


def _rows(shard: Any, x: jax.Array | FeatureColumns, purpose: str) -> tuple[Any, jax.Array]:
    nodes, x = nodes_on_device(shard, x)
    return nodes, require_rows(x, purpose)


def _statistics(shard: Shard, x: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
    """Returns mean and variance, and the number of nodes."""
    dtype = accumulation_dtype(x.dtype)
    zero = jnp.zeros(x.shape[1], dtype)
    own = jnp.sum(shard.node_mask, dtype=dtype)
    # Rows computed without features are equal on every device; their sums are not.
    x = match_variation(x, own)
    total, count = shard.sum((_sums(shard, x, x, zero, zero)[0], own))
    count = checkpoint_name(jnp.maximum(count, 1), STATISTICS)
    mean = checkpoint_name(total / count, STATISTICS)
    var = shard.sum(_sums(shard, x, x, mean, mean)[1]) / count
    return (mean, checkpoint_name(var, STATISTICS)), count


def _sums(
    shard: Shard, x: jax.Array, z: jax.Array, x_shift: jax.Array, z_shift: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """s = sum_i (x_i - a) and p = sum_i (x_i - a) (z_i - b) over the own nodes, by column."""

    def centered(table: jax.Array, shift: jax.Array) -> jax.Array:
        table = to_accumulation(table) - shift[None]
        return shard.mask_rows(table) if shard.has_padding else table

    of_x = centered(x, x_shift)
    return jnp.sum(of_x, 0), jnp.sum(of_x * centered(z, z_shift), 0)


def batch_norm(
    shard: Shard,
    x: jax.Array | FeatureColumns,
    scale: jax.Array,
    bias: jax.Array,
    *,
    epsilon: float = 1e-5,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """y = (x - mean) / sqrt(var + epsilon) * scale + bias, with `batch_statistics` of x.

    The backward reads x and the gradient g of y once for two sums, and once for

    dx = scale / sqrt(var + epsilon) (g - sum_j g_j / n - h sum_j g_j h_j / n)

    where h = (x - mean) / sqrt(var + epsilon). The only residual with a row per node is x.

    Args:
      shard: the shard, under `spmd`.
      x: float [rows, features].
      scale, bias: float [features].
      epsilon: added to the variance.

    Returns:
      y, float [rows, features], and the mean and variance, through which no gradient flows.

    Raises:
      TypeError: x is split by column.

    References:
      Ioffe and Szegedy, "Batch normalization", 2015, section 3.
    """
    shard, x = _rows(shard, x, "batch normalisation")
    results: Any = _batch_norm(epsilon, shard, *match_variation((x, scale, bias), x))
    return results[0], lax.stop_gradient(results[1])


@partial(custom_vjp, nondiff_argnums=(0,), loops=False)
def _batch_norm(
    epsilon: float, shard: Shard, x: jax.Array, scale: jax.Array, bias: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    statistics, _ = _statistics(shard, x)
    return normalize(shard, x, *statistics, scale, bias, epsilon=epsilon), statistics


def _batch_norm_forward(epsilon, shard, x, scale, bias):
    (mean, var), count = _statistics(shard, x)
    y = normalize(shard, x, mean, var, scale, bias, epsilon=epsilon)
    return (y, (mean, var)), (shard, x, mean, lax.rsqrt(var + epsilon), count, scale)


def _batch_norm_backward(epsilon, residuals, gradients):
    shard, x, mean, inverse, count, scale = residuals
    implementation = shard.implementation
    gradient = stored_for(implementation, gradients[0])
    # Otherwise XLA would compute `normal` in the forward, and save it as well.
    x = x + when_ready(gradient).astype(x.dtype)
    zero = jnp.zeros_like(mean)
    of_bias, along = _sums(shard, gradient, x, zero, mean)
    own = match_variation((of_bias, along * inverse), shard.node_mask)
    total, along = shard.sum(own)
    of_output = to_accumulation(shard.mask_rows(gradient))
    normal = (to_accumulation(shard.mask_rows(x)) - mean[None]) * inverse[None]
    of_all = (total / count)[None]
    dx = (of_output - of_all - normal * (along / count)[None]) * (inverse * scale)[None]
    dscale, dbias = own[1].astype(scale.dtype), own[0].astype(scale.dtype)
    dx = shard.mask_rows(dx).astype(x.dtype)
    return None, stored_for(implementation, dx), dscale, dbias


_batch_norm.defvjp(_batch_norm_forward, _batch_norm_backward)


def normalize(
    shard: Shard,
    x: jax.Array | FeatureColumns,
    mean: jax.Array,
    var: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    *,
    epsilon: float = 1e-5,
) -> jax.Array:
    """y = (x - mean) / sqrt(var + epsilon) * scale + bias

    Args:
      shard: the shard, under `spmd`.
      x: float [rows, features].
      mean, var: float [features], of this pass or running.
      scale, bias: float [features].
      epsilon: added to the variance.

    Returns:
      float [rows, features].

    Raises:
      TypeError: x is split by column.
    """
    shard, rows = _rows(shard, x, "batch normalisation")
    x = shard.mask_rows(rows)
    factor = (lax.rsqrt(var + epsilon) * scale)[None]
    return ((to_accumulation(x) - mean[None]) * factor + bias[None]).astype(x.dtype)


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
    shard, rows = _rows(shard, x, "layer normalisation")
    x = shard.mask_rows(rows)
    wide = to_accumulation(x)
    centered = wide - jnp.mean(wide, 1, keepdims=True)
    var = jnp.mean(jnp.square(centered), 1, keepdims=True)
    return (centered * lax.rsqrt(var + epsilon) * scale[None] + bias[None]).astype(x.dtype)
