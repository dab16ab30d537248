"""A linear map of every node's features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
from flax import nnx

from jaxgraph import layers
from jaxgraph.layers.aggregated import Features
from jaxgraph.nn import parameters
from jaxgraph.nn.module import SizedModule
from jaxgraph.parallel import Shard
from jaxgraph.parallel.whole_graph import nodes_on_device

if TYPE_CHECKING:
    from jaxgraph.graph import Graph


@dataclass(eq=False, repr=False)
class Linear(SizedModule):
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

    use_bias: bool = True

    def _make(self, rngs: nnx.Rngs) -> None:
        self.kernel = self._kernel(rngs, self.in_features, self.out_features)
        if self.use_bias:
            self.bias = self._zeros(self.out_features)

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
