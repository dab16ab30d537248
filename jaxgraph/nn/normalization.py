"""Normalisation with learned scale and bias."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxgraph import layers
from jaxgraph.nn import parameters
from jaxgraph.nn.module import Module
from jaxgraph.parallel import Shard
from jaxgraph.parallel.whole_graph import nodes_on_device

if TYPE_CHECKING:
    from jaxgraph.graph import Graph


@dataclass(eq=False, repr=False)
class _Norm(Module):
    """A norm with the scale and bias of every feature."""

    features: int
    _: KW_ONLY
    epsilon: float = 1e-5
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        parameters.check_sizes(features=self.features)
        self.dtype = parameters.checked_dtype(self.dtype, self.param_dtype)
        self.bias = parameters.zeros(self.features, self.param_dtype)
        self.scale = nnx.Param(jnp.ones((self.features,), self.param_dtype))


@dataclass(eq=False, repr=False, kw_only=True)
class BatchNorm(_Norm):
    """y = (x - mean) / sqrt(var + epsilon) * scale + bias, by feature over all nodes of the graph.

    Training uses mean and variance (divided by the number of nodes) of this pass, and the running
    ones become momentum * old + (1 - momentum) * new; inference uses the running ones. Statistics
    have at least 32 bits, whatever the type of x. A bias that is added to x has no effect, and its
    gradient is rounding error, which Adam turns into steps: make the previous layer with
    `use_bias=False`. The same holds one linear map earlier, for the bias of a hidden unit that is
    active for every node.

    Args:
      features: features of x.
      momentum: weight of the old running statistics.
      epsilon: added to the variance.
      dtype: type of y, to which x is cast first, such as jnp.bfloat16; None: that of x.
      param_dtype: type of scale and bias.

    References:
      Ioffe and Szegedy, "Batch normalization", 2015; SAR, section 3.4.
    """

    momentum: float = 0.9

    reads_all_nodes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        of_statistics = jnp.promote_types(self.param_dtype, jnp.float32)
        self.mean = nnx.BatchStat(jnp.zeros((self.features,), of_statistics))
        self.var = nnx.BatchStat(jnp.ones((self.features,), of_statistics))

    def __call__(self, shard: Graph | Shard, x: jax.Array, train: bool = False) -> jax.Array:
        """Normalises x, float [rows, features]; updates the statistics if `train`."""
        shard, x = nodes_on_device(shard, x)
        y, statistics = self.normalize(shard, x, train)
        if train:
            self.update(*statistics)
        return y

    def update(self, mean: jax.Array, var: jax.Array) -> None:
        """Moves the running statistics towards `mean` and `var` [features]."""
        for running, new in ((self.mean, mean), (self.var, var)):
            old = running.get_value()
            new = jax.lax.stop_gradient(new).astype(old.dtype)
            running.set_value(self.momentum * old + (1 - self.momentum) * new)

    def normalize(
        self, shard: Shard, x: jax.Array, train: bool
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """Returns normalised x, float [rows, features], and the statistics used, [features].

        The statistics are those of x if `train`, otherwise the running ones.
        """
        x = parameters.in_dtype(x, self.dtype)
        scale, bias = self.scale.get_value(), self.bias.get_value()
        if train:
            return layers.batch_norm(shard, x, scale, bias, epsilon=self.epsilon)
        running = self.mean.get_value(), self.var.get_value()
        return layers.normalize(shard, x, *running, scale, bias, epsilon=self.epsilon), running


@dataclass(eq=False, repr=False, kw_only=True)
class RestrictedBatchNorm(BatchNorm):
    """`BatchNorm` over the nodes that a layer computes, where message flow leaves others out.

    Training then differs from that of the whole graph: mean and variance are those of the nodes
    that the loss needs, and the running ones follow them. Results do not depend on the number of
    devices. Without message flow, and in inference, it is `BatchNorm`.

    Args:
      features, momentum, epsilon, dtype, param_dtype: as of `BatchNorm`.

    References:
      SAR, section 3.4 and appendix B, which trains so on ogbn-papers100M.
    """

    reads_all_nodes: ClassVar[bool] = False


@dataclass(eq=False, repr=False)
class LayerNorm(_Norm):
    """y_i = (x_i - mean(x_i)) / sqrt(var(x_i) + epsilon) * scale + bias, node by node.

    Args:
      features: features of x.
      epsilon: added to the variance.
      dtype: type of y, to which x is cast first, such as jnp.bfloat16; None: that of x.
      param_dtype: type of scale and bias.

    References:
      Ba et al., "Layer normalization", 2016.
    """

    def __call__(self, shard: Graph | Shard, x: jax.Array, train: bool = False) -> jax.Array:
        """Normalises x, float [rows, features]; training and inference are the same."""
        shard, x = nodes_on_device(shard, x)
        x = parameters.in_dtype(x, self.dtype)
        scale, bias = self.scale.get_value(), self.bias.get_value()
        return layers.layer_norm(shard, x, scale, bias, epsilon=self.epsilon)

    def normalize(self, shard: Shard, x: jax.Array, train: bool) -> tuple[jax.Array, None]:
        """Returns normalised x, float [rows, features], and no statistics."""
        return self(shard, x), None
