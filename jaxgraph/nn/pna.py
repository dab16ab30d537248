"""Principal neighbourhood aggregation: the convolution and its model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxgraph import layers
from jaxgraph.layers.aggregated import Features
from jaxgraph.layers.pna import check_scaling
from jaxgraph.nn import parameters
from jaxgraph.nn.models import StackedModel
from jaxgraph.nn.module import Module
from jaxgraph.nn.protocol import Convolution
from jaxgraph.parallel import Shard
from jaxgraph.parallel.whole_graph import on_device

if TYPE_CHECKING:
    from jaxgraph.graph import Graph


class PNAConv(Module):
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

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        delta: float,
        message_features: int | None = None,
        aggregators: Sequence[str] = ("mean", "max", "min", "std"),
        scalers: Sequence[str] = layers.SCALERS,
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        messages = in_features if message_features is None else message_features
        parameters.check_sizes(
            in_features=in_features, out_features=out_features, message_features=messages
        )
        check_scaling(aggregators, scalers, delta)
        self.dtype = parameters.checked_dtype(dtype, param_dtype)
        rows = len(scalers) * len(aggregators) * messages
        sizes = {
            "sender_kernel": (in_features, messages),
            "receiver_kernel": (in_features, messages),
            "self_kernel": (in_features, out_features),
            "kernel": (rows, out_features),
        }
        for name, size in sizes.items():
            setattr(self, name, parameters.fan_in_kernel(rngs, *size, param_dtype))
        if use_bias:
            self.message_bias = parameters.zeros(messages, param_dtype)
            self.bias = parameters.zeros(out_features, param_dtype)
        self.delta = float(delta)
        self.aggregators = tuple(aggregators)
        self.scalers = tuple(scalers)

    def __call__(
        self,
        shard: Graph | Shard,
        x: Features,
        *,
        key: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """Returns y [rows, out_features] of x [rows, in_features] or this device's columns of x."""
        shard, x = on_device(shard, x)
        return layers.pna_conv(
            parameters.values(self),
            shard,
            parameters.in_dtype(x, self.dtype),
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

    def _convolution(
        self, in_features: int, out_features: int, *, is_last: bool, use_bias: bool, **shared: Any
    ) -> Convolution:
        return PNAConv(
            in_features,
            out_features,
            delta=self.delta,
            message_features=self.hidden_features,
            aggregators=self.aggregators,
            scalers=self.scalers,
            use_bias=use_bias,
            **shared,
        )
