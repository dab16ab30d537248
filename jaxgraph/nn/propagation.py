"""Models with few or no parameters in their propagation: APPNP, SGC and GCNII."""

from __future__ import annotations

from dataclasses import KW_ONLY, InitVar, dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxgraph import layers
from jaxgraph.kinds import check_positive
from jaxgraph.layers.aggregated import FirstAggregation
from jaxgraph.layers.aggregations import SymmetricPower
from jaxgraph.layers.propagation import check_alpha, check_identity
from jaxgraph.nn import parameters
from jaxgraph.nn.layer import BATCH_NORMS, joined_width
from jaxgraph.nn.linear import Linear
from jaxgraph.nn.models import StackedModel
from jaxgraph.nn.module import Module, SizedModule
from jaxgraph.nn.protocol import Convolution
from jaxgraph.parallel import Shard
from jaxgraph.parallel.feature_protocol import Features

if TYPE_CHECKING:
    from jaxgraph.graph import Graph


@dataclass(eq=False, repr=False, kw_only=True)
class APPNP(StackedModel):
    """A perceptron on every node, whose outputs are propagated: predict, then propagate.

    See `jaxgraph.layers.appnp_propagate`.

    Args:
      num_layers: number of linear maps.
      steps: number of steps of propagation.
      alpha: probability of a jump back to the prediction.
      dropout: probability of dropping an input feature of a layer, and in each step an edge, in
        training.
      norm: "batch", "layer", "restricted-batch" or None, after every linear map but the last.
      add_self_loops: whether a node without a self-loop counts as having one.
      jumping: "cat" or "max": one more linear map takes the outputs of all others, concatenated or
        their maximum, and the backward saves these outputs; None: there is no other map.
      dtype: type of the layers' activations, such as jnp.bfloat16; predictions are propagated in 32
        bits at least. None: that of x.

    All other arguments are those of `StackedModel`.

    References:
      Gasteiger et al., "Predict then propagate: graph neural networks meet personalized PageRank",
      2019.
    """

    steps: int = 10
    alpha: float = 0.1
    add_self_loops: bool = True

    _kind = Linear

    def __post_init__(self, rngs: nnx.Rngs) -> None:
        check_alpha(self.alpha)
        super().__post_init__(rngs)

    def __call__(
        self,
        shard: Graph | Shard,
        x: Features,
        *,
        key: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """Returns y [rows, out_features] of x [rows, in_features], as `Stack` does."""
        predicted = super().__call__(shard, x, key=key, train=train)
        # The layers use keys 0 to num_layers - 1.
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


@dataclass(eq=False, repr=False, kw_only=True)
class SGC(SizedModule):
    """y = A^steps (x W) + b, see `jaxgraph.layers.sgc_conv`.

    `jaxgraph.train.fit` computes A^steps x once.

    Args:
      in_features: features of x.
      out_features: features of y.
      steps: number of steps.
      add_self_loops: whether a node without a self-loop counts as having one, of weight 1.
      use_bias: whether there is b.
      dtype: type to compute in, such as jnp.bfloat16; None: that of x.
      param_dtype: type of the parameters.
      rngs: source of the initial W (Glorot uniform); b starts at 0.

    Raises:
      ValueError: a size, or `steps`, is no positive integer.

    References:
      Wu et al., "Simplifying graph convolutional networks", 2019.
    """

    edge_layers = 0
    _layer = staticmethod(layers.sgc_conv)
    _options = ("steps", "add_self_loops")

    steps: int = 2
    add_self_loops: bool = True

    def _make(self, rngs: nnx.Rngs) -> None:
        check_positive("steps", self.steps)
        self.kernel = self._kernel(rngs, self.in_features, self.out_features)
        if self.use_bias:
            self.bias = self._zeros(self.out_features)

    @property
    def first_aggregation(self) -> FirstAggregation:
        """The aggregation of the features if this is a model's first layer."""
        aggregation = SymmetricPower(self.add_self_loops, self.steps)
        return FirstAggregation(aggregation, self.out_features, steps=self.steps)


@dataclass(eq=False, repr=False)
class GCN2Conv(Module):
    """y = (1 - beta) h + beta h W,  h = (1 - alpha) A x + alpha x_0,  beta = log(theta / layer + 1)

    See `jaxgraph.layers.gcn2_conv`.

    Args:
      features: features of x, of x_0 and of y.
      layer: number of the layer, from 1; the deeper, the closer to the identity.
      alpha: share of the initial rows, in [0, 1].
      theta: strength of W, greater than 0.
      add_self_loops: whether a node without a self-loop counts as having one, of weight 1.
      dtype: type to compute in, such as jnp.bfloat16; None: that of x.
      param_dtype: type of the parameters.
      rngs: source of the initial W (Glorot uniform).

    Raises:
      ValueError: a number is out of range.

    References:
      Chen et al., "Simple and deep graph convolutional networks", 2020.
    """

    takes_initial = True

    features: int
    _: KW_ONLY
    layer: int
    alpha: float = 0.1
    theta: float = 0.5
    add_self_loops: bool = True
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32
    rngs: InitVar[nnx.Rngs]

    def __post_init__(self, rngs: nnx.Rngs) -> None:
        parameters.check_sizes(features=self.features)
        check_alpha(self.alpha)
        check_identity(self.theta, self.layer)
        self.dtype = parameters.checked_dtype(self.dtype, self.param_dtype)
        self.kernel = parameters.kernel(rngs, self.features, self.features, self.param_dtype)

    def __call__(
        self,
        shard: Graph | Shard,
        x: jax.Array,
        *,
        key: jax.Array | None = None,
        train: bool = False,
        initial: jax.Array | None = None,
    ) -> jax.Array:
        """Returns y [rows, features] of x and of `initial`, x_0, both [rows, features].

        Raises:
          ValueError: `initial` is missing.
        """
        if initial is None:
            raise ValueError("GCN2Conv needs the first layer's output: conv(shard, x, initial=x_0)")
        return layers.gcn2_conv(
            parameters.values(self),
            shard,
            parameters.in_dtype(x, self.dtype),
            parameters.in_dtype(initial, self.dtype),
            alpha=self.alpha,
            theta=self.theta,
            layer=self.layer,
            add_self_loops=self.add_self_loops,
        )


@dataclass(eq=False, repr=False, kw_only=True)
class GCNII(StackedModel):
    """A linear map, layers of `GCN2Conv`, and a linear map; x_0 is the output of the first.

    Args:
      alpha: share of the initial rows in every convolution.
      theta: strength of the convolutions' maps, which falls with depth.
      norm: "batch", "layer", "restricted-batch" or None, after every layer but the last.
      add_self_loops: whether a node without a self-loop counts as having one.
      jumping: "cat" or "max": the last linear map takes the outputs of all layers, concatenated or
        their maximum, and the backward saves these outputs; None: that of the last convolution.

    All other arguments are those of `StackedModel`.

    References:
      Chen et al., "Simple and deep graph convolutional networks", 2020.
    """

    num_layers: int = 16
    alpha: float = 0.1
    theta: float = 0.5
    add_self_loops: bool = True

    def _convolutions(self, shared: dict[str, Any]) -> tuple[list[Convolution], list[int]]:
        self._check_sizes()
        hidden = self.hidden_features
        widths = [self.in_features, *[hidden] * (self.num_layers + 1), self.out_features]
        first = Linear(self.in_features, hidden, self.norm not in BATCH_NORMS, **shared)
        between = [
            GCN2Conv(
                hidden,
                layer=index + 1,
                alpha=self.alpha,
                theta=self.theta,
                add_self_loops=self.add_self_loops,
                **shared,
            )
            for index in range(self.num_layers)
        ]
        joined = hidden if self.jumping is None else joined_width(self.jumping, widths[1:-1])
        return [first, *between, Linear(joined, self.out_features, **shared)], widths
