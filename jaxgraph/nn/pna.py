"""Principal neighbourhood aggregation: the convolution and its model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from flax import nnx

from jaxgraph import layers
from jaxgraph.layers.pna import check_scaling
from jaxgraph.nn import parameters
from jaxgraph.nn.models import StackedModel
from jaxgraph.nn.module import Params, SizedModule
from jaxgraph.nn.protocol import Convolution
from jaxgraph.parallel import Shard


@dataclass(eq=False, repr=False, kw_only=True)
class PNAConv(SizedModule):
    """y_i = x_i W_0 + b + sum_{s, a} scale_s(d_i) a_{j -> i}(x_i W_r + x_j W_s + c) W_{s, a}

    over scalers s and aggregators a, see `jaxgraph.layers.pna_conv`.

    Args:
      in_features: features of x.
      out_features: features of y.
      delta: mean of log(d + 1) over the nodes of the training graphs, as
        `jaxgraph.transforms.mean_log_degree` computes it.
      message_features: features of a message; None takes `in_features`.
      aggregators: names among "sum", "mean", "max", "min" and "std".
      scalers: names among "identity", "amplification" and "attenuation".
      use_bias: whether there are b and c.
      dtype: type to compute in, such as jnp.bfloat16; None: that of x.
      param_dtype: type of the parameters.
      rngs: source of the initial W, uniform in +-1 / sqrt(rows); biases start at 0.

    Raises:
      ValueError: a size or a name is not one of those allowed, or delta is no positive number.

    References:
      Corso et al., "Principal neighbourhood aggregation for graph nets", 2020.
    """

    delta: float
    message_features: int | None = None
    aggregators: Sequence[str] = ("mean", "max", "min", "std")
    scalers: Sequence[str] = layers.SCALERS

    def _make(self, rngs: nnx.Rngs) -> None:
        messages = self.in_features if self.message_features is None else self.message_features
        parameters.check_sizes(message_features=messages)
        check_scaling(self.aggregators, self.scalers, self.delta)
        self.delta = float(self.delta)
        self.aggregators, self.scalers = tuple(self.aggregators), tuple(self.scalers)
        rows = len(self.scalers) * len(self.aggregators) * messages
        sizes = {
            "sender_kernel": (self.in_features, messages),
            "receiver_kernel": (self.in_features, messages),
            "self_kernel": (self.in_features, self.out_features),
            "kernel": (rows, self.out_features),
        }
        for name, size in sizes.items():
            setattr(self, name, parameters.fan_in_kernel(rngs, *size, self.param_dtype))
        if self.use_bias:
            self.message_bias = self._zeros(messages)
            self.bias = self._zeros(self.out_features)

    def _compute(
        self, params: Params, shard: Shard, x: Any, key: jax.Array | None, train: bool
    ) -> jax.Array:
        return layers.pna_conv(
            params,
            shard,
            x,
            delta=self.delta,
            aggregators=self.aggregators,
            scalers=self.scalers,
        )


@dataclass(eq=False, repr=False, kw_only=True)
class PNA(StackedModel):
    """Layers of `PNAConv`, with messages of `hidden_features`.

    Args:
      delta: mean of log(d + 1) over the nodes of the training graphs, as
        `jaxgraph.transforms.mean_log_degree` computes it.
      aggregators: names among "sum", "mean", "max", "min" and "std".
      scalers: names among "identity", "amplification" and "attenuation".

    All other arguments are those of `StackedModel`.

    References:
      Corso et al., "Principal neighbourhood aggregation for graph nets", 2020.
    """

    delta: float
    aggregators: Sequence[str] = ("mean", "max", "min", "std")
    scalers: Sequence[str] = layers.SCALERS

    _kind = PNAConv

    def _convolution(self, *sizes: int, **options: Any) -> Convolution:
        return super()._convolution(*sizes, message_features=self.hidden_features, **options)
