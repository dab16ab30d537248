"""Linear maps, bias and dropout, which act on each node separately, for all kinds of `Features`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, overload

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from jaxgraph.layers.aggregated import AggregatedFeatures, Features, plain_features
from jaxgraph.ops.core.derivatives import custom_vjp
from jaxgraph.ops.core.edges import match_variation
from jaxgraph.ops.core.precision import to_accumulation
from jaxgraph.ops.core.randomness import entry_keep_mask, node_keep_mask
from jaxgraph.ops.core.row_maps import kernel_gradient, map_rows, map_rows_once, map_rows_twice
from jaxgraph.parallel import Shard, SparseFeatures
from jaxgraph.parallel.features import FeatureColumns
from jaxgraph.parallel.neighborhood import Nodes
from jaxgraph.parallel.ptags import Shares, sync
from jaxgraph.parallel.sparse_features import refuse_sparse
from jaxgraph.parallel.whole_graph import nodes_on_device

MAPPED = "mapped_features"
"""Checkpoint name of the output of `linear`."""

_ROWS_AT_ONCE = 64
"""The number of padding rows that are checked together."""


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
    is_masked |= isinstance(x, AggregatedFeatures)
    x = plain_features(x)
    check_width(nodes, x, kernel)
    by = nodes.implementation
    is_placed = isinstance(nodes, Shard) and x is nodes.nodes
    if isinstance(x, FeatureColumns):
        assert isinstance(nodes, Shard)
        kernels, alone = {"kernel": at_use(kernel, x.values)}, functools.partial(_alone, by)
        shares = Shares(nodes, x, kernels, None, alone)
        if isinstance(x.values, SparseFeatures):
            shares = dataclasses.replace(shares, before=_before, after=_mapped_before)
        y = sync(shares)
    elif isinstance(x, SparseFeatures):
        y = x @ at_use(kernel, x)
    elif is_placed and nodes.has_padding and not is_masked:
        y: jax.Array = _map_features(by, x, nodes.node_mask, at_use(kernel, x))
    else:
        # The kernel's gradient multiplies the rows of padding by 0, and 0 times NaN is NaN.
        rows = x if is_masked else nodes.mask_rows(x)
        y = map_rows(rows, at_use(kernel, x), by)
    return checkpoint_name(add_bias(y, bias), MAPPED)


def _alone(by: str, kernels: Mapping[str, jax.Array], x: jax.Array, _: None) -> jax.Array:
    return map_rows(x, kernels["kernel"], by)


def _before(kernels: Mapping[str, jax.Array], x: SparseFeatures) -> tuple[jax.Array, None]:
    return x @ kernels["kernel"], None


def _mapped_before(kernels: Mapping[str, jax.Array], y: jax.Array, _: None) -> jax.Array:
    return y


def product(by: str, x: jax.Array | SparseFeatures, kernel: jax.Array) -> jax.Array:
    """Computes x W, which a checkpoint policy can save by the name `MAPPED`."""
    y = x @ kernel if isinstance(x, SparseFeatures) else map_rows(x, kernel, by)
    return checkpoint_name(y, MAPPED)


def products(
    by: str, x: jax.Array | SparseFeatures, kernel: jax.Array, other: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Computes x W and x V, which a checkpoint policy can save by the name `MAPPED`."""
    if isinstance(x, SparseFeatures):
        # One product reads the non-zeros once.
        both = x @ jnp.concatenate((kernel, other), axis=1)
        y, z = both[:, : kernel.shape[1]], both[:, kernel.shape[1] :]
    else:
        y, z = map_rows_twice(x, kernel, other, by)
    return checkpoint_name(y, MAPPED), checkpoint_name(z, MAPPED)


def check_width(
    nodes: Nodes, x: jax.Array | SparseFeatures | FeatureColumns, kernel: jax.Array
) -> None:
    """Raises ValueError unless x has rows of nodes, and as many features as a kernel expects."""
    width = x.num_features if isinstance(x, FeatureColumns) else _width(nodes, x)
    if width != kernel.shape[0]:
        raise ValueError(
            f"x has {width} features, but the kernel has shape {kernel.shape}; make the layer with "
            f"in_features={width}"
        )


@functools.partial(custom_vjp, nondiff_argnums=(0,), loops=False)
def _map_features(by: str, x: jax.Array, mask: jax.Array, kernel: jax.Array) -> jax.Array:
    """x W with 0 in the rows of padding, for x that is an input of the program.

    No earlier computation can write these zeros, so that they take a copy of x.
    """
    return _without_padding(x, mask, lambda x: map_rows(x, kernel, by))


def _map_features_forward(by, x, mask, kernel):
    y = _without_padding(x, mask, lambda x: map_rows_once(x, kernel, by))
    return y, (x, mask, kernel)


def _map_features_backward(by, residuals, gradient):
    x, mask, kernel = residuals
    of_x = jnp.where(mask[:, None], map_rows_once(gradient, kernel.T, by), 0)
    return of_x, None, _without_padding(x, mask, lambda x: kernel_gradient(x, gradient, by))


_map_features.defvjp(_map_features_forward, _map_features_backward)


def _without_padding(
    x: jax.Array, mask: jax.Array, function: Callable[[jax.Array], jax.Array]
) -> jax.Array:
    """Applies `function` to x with 0 in the rows of padding; copies x only where it has others."""
    rows = min(x.shape[0], _ROWS_AT_ONCE)
    padding = x.shape[0] - jnp.sum(mask, dtype=jnp.int32)

    def still_zero(chunk: jax.Array, so_far: jax.Array) -> jax.Array:
        # Padding comes last; the topmost chunk may overlap the next.
        start = jnp.maximum(x.shape[0] - (chunk + 1) * rows, 0)
        some = lax.dynamic_slice_in_dim(x, start, rows)
        real = lax.dynamic_slice_in_dim(mask, start, rows)
        return so_far & jnp.all(real[:, None] | (some == 0))

    chunks = (padding + rows - 1) // rows
    is_zero = lax.fori_loop(0, chunks, still_zero, match_variation(jnp.bool_(True), (x, mask)))
    return lax.cond(is_zero, function, lambda x: function(jnp.where(mask[:, None], x, 0)), x)


def at_use(parameter: jax.Array, x: jax.Array | SparseFeatures) -> jax.Array:
    """Casts a parameter to the type of the activations, so that 16 bits stay 16 bits."""
    return rounded(match_variation(parameter, x), x)


def add_bias(y: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Adds b to y, in the type of y."""
    return y if bias is None else rounded(y + bias[None], y)


def rounded(values: jax.Array, like: jax.Array | SparseFeatures) -> jax.Array:
    """Casts `values` to the type of `like`, if that is a floating type."""
    return values.astype(like.dtype) if jnp.issubdtype(like.dtype, jnp.floating) else values


def _width(nodes: Nodes, x: jax.Array | SparseFeatures) -> int:
    _check_given(x)
    if len(x.shape) != 2 or x.shape[0] != nodes.num_rows:
        raise ValueError(
            f"x has shape {x.shape}; expected one row per node of the shard, "
            f"[{nodes.num_rows}, features]"
        )
    return x.shape[1]


@overload
def dropout(shard: Shard, x: jax.Array, key: jax.Array | None, *, rate: float) -> jax.Array: ...
@overload
def dropout(shard: Shard, x: Features, key: jax.Array | None, *, rate: float) -> Features: ...
def dropout(shard: Shard, x: Features, key: jax.Array | None, *, rate: float) -> Features:
    """y = x keep / (1 - rate), where keep is 0 with probability `rate` and else 1.

    The mask depends on the key, the node's global id and the column alone, so that the partition
    does not change it.

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
    x = plain_features(x)
    if isinstance(x, FeatureColumns):
        values = _drop(x.values, key, shard.require_columns().nodes.node_ids, rate, x.offset)
        return dataclasses.replace(x, values=values)
    _width(shard, x)
    return _drop(x, key, shard.node_ids, rate, 0)


def check_rate(rate: float) -> None:
    """Raises ValueError unless a rate of dropout is a number in [0, 1)."""
    if not isinstance(rate, Real) or isinstance(rate, bool) or not 0.0 <= rate < 1.0:
        raise ValueError(f"dropout is {rate!r}; expected a probability of dropping in [0, 1)")


def _drop(x: Any, key: jax.Array, node_ids: jax.Array, rate: float, offset: jax.Array | int) -> Any:
    if isinstance(x, SparseFeatures):

        def drop(values: jax.Array, rows: jax.Array, columns: jax.Array) -> jax.Array:
            keep = entry_keep_mask(key, x.node_ids, rows, columns, rate, offset)
            return _scaled(values, keep, rate)

        return x.map_values(drop)
    keep = node_keep_mask(key, node_ids, x.shape[1], rate, offset)
    return _scaled(x, keep, rate)


def _scaled(x: jax.Array, keep: jax.Array, rate: float) -> jax.Array:
    # A factor of 16 bits would make all kept values wrong by up to 2^-9 of themselves.
    scaled = rounded(to_accumulation(x) * (1.0 / (1.0 - rate)), x)
    return jnp.where(keep, scaled, jnp.zeros((), scaled.dtype))


def require_rows(x: Features, purpose: str) -> jax.Array:
    """Returns x without its aggregate, if it holds rows of the own nodes."""
    rows: Any = plain_features(x)
    _check_given(rows)
    refuse_sparse(rows, purpose)
    if isinstance(rows, FeatureColumns):
        raise TypeError(
            f"{purpose} needs all features of a node, but x is FeatureColumns (this device's "
            "columns of all nodes); pass it through jaxgraph.nn.Linear first, or gather the rows "
            "with shard.to_nodes(x)"
        )
    return rows


def _check_given(x: jax.Array | SparseFeatures | FeatureColumns | None) -> None:
    if x is None:
        raise ValueError(
            "x is None: the graph has no node features; use jaxgraph.nn.NodeEmbedding, or make "
            "some with jaxgraph.transforms.degree_features"
        )
