"""Models whose propagation has no parameters: APPNP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

from jaxgraph import layers
from jaxgraph.layers import Features
from jaxgraph.nn.linear import Linear
from jaxgraph.nn.models import StackedModel
from jaxgraph.nn.protocol import Convolution
from jaxgraph.parallel import Shard

if TYPE_CHECKING:
    from jaxgraph.graph import Graph

__all__ = ["APPNP"]


@dataclass(eq=False, repr=False)
class APPNP(StackedModel):
    """A perceptron on every node, whose outputs are propagated: predict, then propagate.

    See `jaxgraph.layers.appnp_propagate`.

    Args:
      in_features, hidden_features, out_features: widths of input, layers between and output.
      num_layers: number of linear maps.
      steps: number of steps of propagation.
      alpha: probability of a jump back to the prediction.
      dropout: probability of dropping an input feature of a layer, and in each step an edge, in
        training.
      norm: "batch", "layer" or None, after every linear map but the last.
      residual: whether a layer before the last adds its input to its output, through a linear map
        where their widths differ.
      activation: elementwise function after every layer but the last.
      add_self_loops: whether a node without an edge to itself counts as having one.
      policy: what layers save for the backward, as of `Stack`; None: the default.
      dtype: type of activations and messages, such as jnp.bfloat16; the outputs are then of 32 bits
        at least, for the loss. None: that of x.
      param_dtype: type of the parameters.
      rngs: source of the initial parameters.

    Raises:
      ValueError: a size, a rate or a name is not one of those allowed.

    References:
      Gasteiger et al., "Predict then propagate: graph neural networks meet personalized PageRank",
      2019.
    """

    steps: int = 10
    alpha: float = 0.1
    add_self_loops: bool = True

    def __post_init__(self, rngs: Any) -> None:
        layers.check_alpha(self.alpha)
        super().__post_init__(rngs)

    def _convolution(
        self, in_features: int, out_features: int, *, is_last: bool, use_bias: bool, **shared: Any
    ) -> Convolution:
        return Linear(in_features, out_features, use_bias, **shared)

    def __call__(
        self,
        shard: Graph | Shard,
        x: Features,
        *,
        key: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """float [rows, out_features] of x [rows, in_features], as of `Stack`."""
        predicted = super().__call__(shard, x, key=key, train=train)
        # The layers have the keys 0 to num_layers - 1.
        own = None if key is None else jax.random.fold_in(key, self.num_layers)
        return layers.appnp_propagate(
            shard,
            predicted,
            steps=self.steps,
            alpha=self.alpha,
            add_self_loops=self.add_self_loops,
            dropout=self.dropout if train else 0.0,
            key=own,
        )
