"""A linear map of every node's features."""

from __future__ import annotations

import jax
from flax import nnx

from jaxgraph import layers
from jaxgraph.nn import parameters
from jaxgraph.parallel import FeatureColumns, Shard

__all__ = ["Linear"]


class Linear(nnx.Module):
    """y = x W + b

    W is one logical parameter [in_features, out_features], whether x comes as rows of nodes or
    split by column, so that checkpoints move between the two.

    Args:
      in_features: features of x.
      out_features: features of y.
      use_bias: whether there is b.
      rngs: source of the initial W (Glorot uniform); b starts at 0.
    """

    def __init__(
        self, in_features: int, out_features: int, use_bias: bool = True, *, rngs: nnx.Rngs
    ) -> None:
        parameters.check_sizes(in_features=in_features, out_features=out_features)
        self.kernel = parameters.kernel(rngs, in_features, out_features)
        if use_bias:
            self.bias = parameters.zeros(out_features)

    def __call__(self, shard: Shard, x: jax.Array | FeatureColumns) -> jax.Array:
        """float [rows, out_features] of x [rows, in_features] or this device's columns of x."""
        return layers.linear(shard, x, **parameters.values(self))
