"""One layer of a `Stack`: a convolution, the residual connection around it, the norm after it."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxgraph import layers
from jaxgraph.layers import Features
from jaxgraph.nn.linear import Linear
from jaxgraph.nn.normalization import BatchNorm, LayerNorm
from jaxgraph.nn.protocol import Convolution
from jaxgraph.parallel import FeatureColumns, Shard, SparseFeatures

__all__ = ["NORMS", "Elementwise", "Layer", "Norm", "check_norm", "dropped", "layer_keys"]

NORMS = MappingProxyType({"batch": BatchNorm, "layer": LayerNorm})
"""The norms that may follow a convolution, by the name that models take."""

Norm = BatchNorm | LayerNorm
Elementwise = Callable[[Any], Any]


def check_norm(norm: str | None) -> None:
    """Raises ValueError for a name that is not one of `NORMS`."""
    if norm is not None and norm not in NORMS:
        raise ValueError(f"norm is {norm!r}; expected None or one of {', '.join(NORMS)}")


class Layer(nnx.Module):
    """A convolution with its residual connection, and the norm that follows.

    Args:
      convolution: see `jaxgraph.nn.protocol.Convolution`.
      in_features, out_features: of the convolution.
      norm: "batch", "layer" or None.
      residual: whether the input is added to the output, through a linear map where their widths
        differ.
      dtype: type to compute in; None: that of x.
      param_dtype: type of the parameters.
      rngs: source of the initial parameters.
    """

    def __init__(
        self,
        convolution: Convolution,
        in_features: int,
        out_features: int,
        *,
        norm: str | None,
        residual: bool,
        dtype: DTypeLike | None,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        types: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype}
        self.convolution = convolution
        self.norm = None if norm is None else NORMS[norm](out_features, **types)
        self.has_residual = residual
        self.residual = (
            Linear(in_features, out_features, use_bias=False, **types, rngs=rngs)
            if residual and in_features != out_features
            else None
        )

    def skip(self, shard: Shard, x: Features) -> jax.Array | None:
        """The residual connection's term of the output, [rows, out_features], or None."""
        if not self.has_residual:
            return None
        if self.residual is not None:
            return self.residual(shard, layers.plain_features(x))
        # No wider than the output of the layer: the one case in which columns are brought home.
        plain = layers.plain_features(x)
        if isinstance(plain, FeatureColumns) and not isinstance(plain.values, SparseFeatures):
            plain = shard.to_nodes(plain)
        return shard.mask_rows(layers.require_rows(plain, "a residual connection"))


def layer_keys(key: jax.Array, num_layers: int) -> list[tuple[jax.Array, jax.Array]]:
    """A key for the features and one for the attention of every layer.

    Made for all layers at once, and not recomputed in the backward: each costs a loop.
    """
    of_layers = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(num_layers))
    of_both = jax.vmap(jax.random.fold_in, (None, 0))
    keys = jax.vmap(of_both, (0, None))(of_layers, jnp.arange(2))
    return [(keys[layer, 0], keys[layer, 1]) for layer in range(num_layers)]


def dropped(
    before: Elementwise,
    rate: float,
    shard: Shard,
    y: Any,
    skip: jax.Array | None,
    key: jax.Array | None,
) -> Features:
    """h = dropout(before(y) + skip), the input of a convolution.

    Args:
      before: elementwise function, such as an activation.
      rate: probability of dropping.
      shard: whose rows these are.
      y: float [rows, features], or features before the first convolution.
      skip: float [rows, features] that a residual connection carried, or None.
      key: scalar random key; may be None where the rate is 0.

    Returns:
      What y is.
    """
    y = before(y)
    return layers.dropout(shard, y if skip is None else y + skip, key, rate=rate)
