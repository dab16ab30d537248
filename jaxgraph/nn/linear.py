"""A linear map of every node's features."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxgraph import layers
from jaxgraph.layers.aggregated import Features
from jaxgraph.nn import parameters
from jaxgraph.nn.module import Module
from jaxgraph.parallel import Shard
from jaxgraph.parallel.whole_graph import nodes_on_device

if TYPE_CHECKING:
    from jaxgraph.graph import Graph


class Linear(Module):
    """y = x W + b

    W is one logical parameter [in_features, out_features], for x as rows of nodes and for x split
    by column, so that checkpoints move between the two.

    Args:
      in_features: features of x.
      out_features: features of y.
      use_bias: whether there is b.
      dtype: type to compute in, such as jnp.bfloat16; None: that of x.
      param_dtype: type of W and b.
      rngs: source of the initial W (Glorot uniform); b starts at 0.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        use_bias: bool = True,
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        parameters.check_sizes(in_features=in_features, out_features=out_features)
        self.dtype = parameters.checked_dtype(dtype, param_dtype)
        self.kernel = parameters.kernel(rngs, in_features, out_features, param_dtype)
        if use_bias:
            self.bias = parameters.zeros(out_features, param_dtype)

    def __call__(
        self,
        shard: Graph | Shard,
        x: Features,
        *,
        key: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """Returns y [rows, out_features] of x [rows, in_features] or this device's columns of x.

        `key` and `train` have no effect: models call it like a convolution.
        """
        shard, x = nodes_on_device(shard, x)
        x, values = parameters.in_dtype(x, self.dtype), parameters.values(self)
        return layers.linear(shard, x, values["kernel"], values.get("bias"))
