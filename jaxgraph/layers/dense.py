"""Linear maps, bias and dropout, which act on each node separately, for all kinds of `Features`."""

from __future__ import annotations

from numbers import Real
from typing import overload

import jax
from jax.ad_checkpoint import checkpoint_name

from jaxgraph.ops.core.randomness import of_set
from jaxgraph.parallel import Shard
from jaxgraph.parallel.feature_protocol import FeatureKind, Features, features_of, plain_of, rounded
from jaxgraph.parallel.neighborhood import Nodes
from jaxgraph.parallel.whole_graph import nodes_on_device

MAPPED = "mapped_features"
"""Checkpoint name of the output of `linear`."""


def linear(
    nodes: Nodes,
    x: Features,
    kernel: jax.Array,
    bias: jax.Array | None = None,
    *,
    is_masked: bool = False,
) -> jax.Array:
    """y = x W + b

    The type is that of x: W is cast to it, and b is added before the sum is rounded.

    Args:
      nodes: the shard, under `spmd`, or the table of the nodes in the rows.
      x: float [rows, in_features], with or without aggregate, or sparse, or this device's columns
        of all nodes.
      kernel: float [in_features, out_features], W.
      bias: float [out_features], b, or None.
      is_masked: whether x is known to be 0 in the rows of padding.

    Returns:
      float [rows, out_features] of the own nodes; b in the rows of padding.

    Raises:
      ValueError: x has another number of features than W has rows.
    """
    nodes, x = nodes_on_device(nodes, x)
    is_masked |= features_of(x).is_masked
    features = plain_of(x)
    check_width(nodes, features, kernel)
    y = features.mapped(nodes, kernel, is_masked=is_masked)
    return checkpoint_name(add_bias(y, bias), MAPPED)


def product(by: str, x: Features, kernel: jax.Array) -> jax.Array:
    """Computes x W, which a checkpoint policy can save by the name `MAPPED`."""
    return checkpoint_name(features_of(x).times(by, kernel), MAPPED)


def products(
    by: str, x: Features, kernel: jax.Array, other: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Computes x W and x V, which a checkpoint policy can save by the name `MAPPED`."""
    y, z = features_of(x).times_both(by, kernel, other)
    return checkpoint_name(y, MAPPED), checkpoint_name(z, MAPPED)


def check_width(nodes: Nodes, x: Features, kernel: jax.Array) -> None:
    """Raises ValueError unless x has rows of nodes, and as many features as a kernel expects."""
    features = features_of(x)
    _check_rows(nodes, features)
    width = features.width
    if width != kernel.shape[0]:
        raise ValueError(
            f"x has {width} features, but the kernel has shape {kernel.shape}; make the layer with "
            f"in_features={width}"
        )


def _check_rows(nodes: Nodes, features: FeatureKind) -> None:
    shape = None if features.is_split else features.shape
    if shape is not None and (len(shape) != 2 or shape[0] != nodes.num_rows):
        raise ValueError(
            f"x has shape {shape}; expected one row per node of the shard, "
            f"[{nodes.num_rows}, features]"
        )


def add_bias(y: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Adds b to y, in the type of y."""
    return y if bias is None else rounded(y + bias[None], y)


@overload
def dropout(shard: Shard, x: jax.Array, key: jax.Array | None, *, rate: float) -> jax.Array: ...
@overload
def dropout(shard: Shard, x: Features, key: jax.Array | None, *, rate: float) -> Features: ...
def dropout(shard: Shard, x: Features, key: jax.Array | None, *, rate: float) -> Features:
    """y = x keep / (1 - rate), where keep is 0 with probability `rate` and else 1.

    The mask depends on the key, the set of nodes, the node's global id and the column alone, so
    that the partition does not change it.

    Args:
      shard: a graph, on one device, or the shard, under `spmd`.
      x: float [rows, features], with or without aggregate, sparse, or this device's columns of all
        nodes.
      key: scalar random key, the same on every device; may be None where the rate is 0.
      rate: probability of dropping, static, in [0, 1).

    Returns:
      Features of the kind of x, without the aggregate unless the rate is 0.

    Raises:
      ValueError: the rate is not in [0, 1), or there is no key.

    References:
      Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", 2014.
    """
    shard, x = nodes_on_device(shard, x)
    check_rate(rate)
    if rate == 0.0:
        return x
    if key is None:
        raise ValueError("dropout needs a random key: pass key=jax.random.key(...)")
    features = plain_of(x)
    _check_rows(shard, features)
    return features.dropped(shard, of_set(key, shard.set_number), rate)


def check_rate(rate: float) -> None:
    """Raises ValueError unless a rate of dropout is a number in [0, 1)."""
    if not isinstance(rate, Real) or isinstance(rate, bool) or not 0.0 <= rate < 1.0:
        raise ValueError(f"dropout is {rate!r}; expected a probability of dropping in [0, 1)")


def require_rows(x: Features, purpose: str) -> jax.Array:
    """Returns x without its aggregate, if it holds rows of the own nodes."""
    return plain_of(x).rows(purpose)
