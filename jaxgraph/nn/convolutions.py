"""Graph convolutions that own their parameters; all are called as `(shard, x, key, train)`.

`key` is needed in training where a layer has attention dropout; the other layers ignore it. See
`jaxgraph.nn.protocol` for the attributes that they may declare.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxgraph import layers
from jaxgraph.layers.aggregated import Features, FirstAggregation
from jaxgraph.layers.aggregations import NeighborReduction, SymmetricSum, first_aggregation
from jaxgraph.layers.attention import gat_stages, gatv2_stages
from jaxgraph.layers.convolutions import check_reduction
from jaxgraph.layers.dense import check_rate
from jaxgraph.layers.derived import DerivedFeatures
from jaxgraph.nn import parameters
from jaxgraph.nn.module import Module
from jaxgraph.parallel import Shard
from jaxgraph.parallel.conv_stages import ConvStages
from jaxgraph.parallel.whole_graph import on_device

if TYPE_CHECKING:
    from jaxgraph.graph import Graph


class GCNConv(Module):
    """y_i = sum_{j -> i} w_ij (x_j W) / sqrt(d_j d_i) + b, see `jaxgraph.layers.gcn_conv`.

    Args:
      in_features: features of x.
      out_features: features of y.
      add_self_loops: whether a node without a self-loop counts as having one, of weight 1.
      use_bias: whether there is b.
      dtype: type to compute in, such as jnp.bfloat16; None: that of x.
      param_dtype: type of the parameters.
      rngs: source of the initial W (Glorot uniform); b starts at 0.

    References:
      Kipf and Welling, "Semi-supervised classification with graph convolutional networks", 2017.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        add_self_loops: bool = True,
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        parameters.check_sizes(in_features=in_features, out_features=out_features)
        self.dtype = parameters.checked_dtype(dtype, param_dtype)
        self.kernel = parameters.kernel(rngs, in_features, out_features, param_dtype)
        if use_bias:
            self.bias = parameters.zeros(out_features, param_dtype)
        self.add_self_loops = add_self_loops

    @property
    def first_aggregation(self) -> FirstAggregation:
        """The aggregation of the features if this is a model's first layer."""
        aggregation = SymmetricSum(self.add_self_loops)
        return first_aggregation(aggregation, self.kernel.get_value())

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
        params, x = parameters.values(self), parameters.in_dtype(x, self.dtype)
        return layers.gcn_conv(params, shard, x, add_self_loops=self.add_self_loops)


class SAGEConv(Module):
    """y_i = x_i W_self + reduce_{j -> i}(w_ij x_j) W_neighbor + b, see `jaxgraph.layers.sage_conv`.

    Args:
      in_features: features of x.
      out_features: features of y.
      reduce: "sum", "mean", "max" or "min".
      use_bias: whether there is b.
      dtype: type to compute in, such as jnp.bfloat16; None: that of x.
      param_dtype: type of the parameters.
      rngs: source of the initial W, uniform in +-1 / sqrt(in_features); b starts at 0.

    Raises:
      ValueError: the reduction is unknown.

    References:
      Hamilton et al., "Inductive representation learning on large graphs", 2017.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        reduce: str = "mean",
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        parameters.check_sizes(in_features=in_features, out_features=out_features)
        check_reduction(reduce)
        self.dtype = parameters.checked_dtype(dtype, param_dtype)
        self.self_kernel = parameters.fan_in_kernel(rngs, in_features, out_features, param_dtype)
        self.neighbor_kernel = parameters.fan_in_kernel(
            rngs, in_features, out_features, param_dtype
        )
        if use_bias:
            self.bias = parameters.zeros(out_features, param_dtype)
        self.reduce = reduce

    @property
    def first_aggregation(self) -> FirstAggregation:
        """The aggregation of the features if this is a model's first layer."""
        aggregation = NeighborReduction(self.reduce)
        found = first_aggregation(aggregation, self.neighbor_kernel.get_value())
        return dataclasses.replace(found, is_joined_with_features=True)

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
        x = parameters.in_dtype(x, self.dtype)
        return layers.sage_conv(parameters.values(self), shard, x, reduce=self.reduce)


class _AttentionConv(Module):
    """The shared code of GATConv and GATv2Conv, without parameters and score."""

    _layer: ClassVar[Callable[..., jax.Array]]
    _stages: ClassVar[Callable[..., ConvStages]]

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        num_heads: int = 1,
        edge_features: int | None = None,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        use_bias: bool = True,
        use_output_bias: bool | None = None,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        parameters.check_sizes(
            in_features=in_features, out_features=out_features, num_heads=num_heads
        )
        check_rate(dropout)
        self.dtype = parameters.checked_dtype(dtype, param_dtype)
        self._make_score(in_features, out_features, num_heads, use_bias, param_dtype, rngs)
        # The backward recomputes no features for messages that read edges.
        self.mapped_features = None if edge_features else num_heads * out_features
        if edge_features is not None:
            parameters.check_sizes(edge_features=edge_features)
            self._make_edge_score(edge_features, out_features, num_heads, param_dtype, rngs)
        if _has_output_bias(use_bias, use_output_bias):
            width = num_heads * out_features if concat else out_features
            self.bias = parameters.zeros(width, param_dtype)
        self.concat = concat
        self.negative_slope = negative_slope
        self.dropout = dropout
        self.add_self_loops = add_self_loops

    def _make_score(
        self,
        in_features: int,
        out_features: int,
        num_heads: int,
        use_bias: bool,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        raise NotImplementedError

    def _make_edge_score(
        self,
        edge_features: int,
        out_features: int,
        num_heads: int,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        width = num_heads * out_features
        self.edge_kernel = parameters.kernel(rngs, edge_features, width, param_dtype)

    def attention_weights(self, shard: Graph | Shard, x: Features) -> jax.Array:
        """Computes the coefficients alpha_ij of all edges, without dropout."""
        params = parameters.values(self)
        stages = type(self)._stages(
            params, negative_slope=self.negative_slope, add_self_loops=self.add_self_loops
        )
        x = parameters.in_dtype(x, self.dtype)
        return layers.attention_weights(stages, params, shard, x)

    def __call__(
        self,
        shard: Graph | Shard,
        x: Features | DerivedFeatures,
        *,
        key: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """Returns y [rows, heads * out_features], or [rows, out_features] without `concat`.

        x is float [rows, in_features], or this device's columns of all nodes.
        """
        shard, x = on_device(shard, x)
        return type(self)._layer(
            parameters.values(self),
            shard,
            _derived_in_dtype(x, self.dtype)
            if isinstance(x, DerivedFeatures)
            else parameters.in_dtype(x, self.dtype),
            concat=self.concat,
            negative_slope=self.negative_slope,
            add_self_loops=self.add_self_loops,
            dropout=self.dropout if train else 0.0,
            key=key,
        )


class GATConv(_AttentionConv):
    """y_i = sum_{j -> i} softmax_j(leaky_relu(<a_s, z_j> + <a_r, z_i>)) z_j + b,  z = x W

    for every head, see `jaxgraph.layers.gat_conv`.

    Args:
      in_features: features of x.
      out_features: features of y per head.
      num_heads: number of attention heads.
      edge_features: number of edge features, which the score reads; None: edges have none.
      concat: whether heads are concatenated; otherwise they are averaged.
      negative_slope: of the leaky ReLU.
      dropout: probability of dropping a coefficient in training.
      add_self_loops: whether a node without a self-loop attends to itself as well.
      use_bias: whether there is b.
      use_output_bias: whether there is b; None: as `use_bias`. Pass False before a batch norm.
      dtype: type to compute in, such as jnp.bfloat16; None: that of x.
      param_dtype: type of the parameters.
      rngs: source of the initial W and attention vectors (Glorot uniform); b starts at 0.

    References:
      Veličković et al., "Graph attention networks", 2018.
    """

    _layer = staticmethod(layers.gat_conv)
    _stages = staticmethod(gat_stages)

    def _make_score(
        self,
        in_features: int,
        out_features: int,
        num_heads: int,
        use_bias: bool,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        vector = (rngs, num_heads, out_features, param_dtype)
        self.kernel = parameters.kernel(rngs, in_features, num_heads * out_features, param_dtype)
        self.attention_sender = parameters.kernel(*vector)
        self.attention_receiver = parameters.kernel(*vector)

    def _make_edge_score(
        self,
        edge_features: int,
        out_features: int,
        num_heads: int,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        super()._make_edge_score(edge_features, out_features, num_heads, param_dtype, rngs)
        self.attention_edge = parameters.kernel(rngs, num_heads, out_features, param_dtype)


class GATv2Conv(_AttentionConv):
    """y_i = sum_{j -> i} softmax_j(<a, leaky_relu(s_j + r_i)>) s_j + b

    for every head, with s = x W_s + b_s and r = x W_r + b_r, see `jaxgraph.layers.gatv2_conv`.

    Args:
      in_features: features of x.
      out_features: features of y per head.
      num_heads: number of attention heads.
      edge_features: number of edge features, which the score reads; None: edges have none.
      concat: whether heads are concatenated; otherwise they are averaged.
      negative_slope: of the leaky ReLU.
      dropout: probability of dropping a coefficient in training.
      add_self_loops: whether a node without a self-loop attends to itself as well.
      use_bias: whether there are b, b_s and b_r.
      use_output_bias: whether there is b; None: as `use_bias`. Pass False before a batch norm.
      dtype: type to compute in, such as jnp.bfloat16; None: that of x.
      param_dtype: type of the parameters.
      rngs: source of the initial W and attention vectors (Glorot uniform); biases start at 0.

    References:
      Brody et al., "How attentive are graph attention networks?", 2022.
    """

    _layer = staticmethod(layers.gatv2_conv)
    _stages = staticmethod(gatv2_stages)

    def _make_score(
        self,
        in_features: int,
        out_features: int,
        num_heads: int,
        use_bias: bool,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        width = num_heads * out_features
        self.sender_kernel = parameters.kernel(rngs, in_features, width, param_dtype)
        self.receiver_kernel = parameters.kernel(rngs, in_features, width, param_dtype)
        self.attention = parameters.kernel(rngs, num_heads, out_features, param_dtype)
        if use_bias:
            self.sender_bias = parameters.zeros(width, param_dtype)
            self.receiver_bias = parameters.zeros(width, param_dtype)


class GINConv(Module):
    """y_i = relu(((1 + eps) x_i + sum_{j -> i} w_ij x_j) W_1 + b_1) W_2 + b_2

    See `jaxgraph.layers.gin_conv`; eps is learned.

    Args:
      in_features: features of x.
      out_features: features of y.
      hidden_features: features between W_1 and W_2; None takes `out_features`.
      eps: initial eps.
      use_bias: whether there are b_1 and b_2.
      use_output_bias: whether there is b_2; None: as `use_bias`. Pass False before a batch norm.
      dtype: type to compute in, such as jnp.bfloat16; None: that of x.
      param_dtype: type of the parameters.
      rngs: source of the initial W_1 and W_2 (Glorot uniform); biases start at 0.

    References:
      Xu et al., "How powerful are graph neural networks?", 2019.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        hidden_features: int | None = None,
        eps: float = 0.0,
        use_bias: bool = True,
        use_output_bias: bool | None = None,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        hidden = out_features if hidden_features is None else hidden_features
        parameters.check_sizes(
            in_features=in_features, out_features=out_features, hidden_features=hidden
        )
        self.dtype = parameters.checked_dtype(dtype, param_dtype)
        self.eps = nnx.Param(jnp.asarray(eps, param_dtype))
        self.first_kernel = parameters.kernel(rngs, in_features, hidden, param_dtype)
        self.second_kernel = parameters.kernel(rngs, hidden, out_features, param_dtype)
        if use_bias:
            self.first_bias = parameters.zeros(hidden, param_dtype)
        if _has_output_bias(use_bias, use_output_bias):
            self.second_bias = parameters.zeros(out_features, param_dtype)

    @property
    def first_aggregation(self) -> FirstAggregation | None:
        """The first layer's aggregation of the features; None if storing it saves nothing.

        The stored sum excludes (1 + eps) x, so that W_1 would map two arrays. That costs more than
        a sum of the narrower product over neighbours.
        """
        kernel = self.first_kernel.get_value()
        if kernel.shape[1] <= kernel.shape[0]:
            return None
        found = first_aggregation(NeighborReduction("sum"), kernel)
        return dataclasses.replace(found, is_followed_by_maps=False)

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
        return layers.gin_conv(parameters.values(self), shard, parameters.in_dtype(x, self.dtype))


class GINEConv(GINConv):
    """y_i = relu(((1 + eps) x_i + sum_{j -> i} relu(x_j + e_ij W_e + b_e)) W_1 + b_1) W_2 + b_2

    See `jaxgraph.layers.gine_conv`; eps is learned.

    Args:
      in_features: features of x.
      out_features: features of y.
      edge_features: number of edge features.
      use_bias: whether there are b_e, b_1 and b_2.
      param_dtype, rngs, options: as for `GINConv`; W_e is drawn like W_1.

    References:
      Hu et al., "Strategies for pre-training graph neural networks", 2020.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        edge_features: int,
        use_bias: bool = True,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        shared: dict[str, Any] = {"param_dtype": param_dtype, "rngs": rngs}
        super().__init__(in_features, out_features, use_bias=use_bias, **shared, **options)
        parameters.check_sizes(edge_features=edge_features)
        self.edge_kernel = parameters.kernel(rngs, edge_features, in_features, param_dtype)
        if use_bias:
            self.edge_bias = parameters.zeros(in_features, param_dtype)

    @property
    def first_aggregation(self) -> None:
        """None: messages have parameters."""
        return None

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
        return layers.gine_conv(parameters.values(self), shard, parameters.in_dtype(x, self.dtype))


def _derived_in_dtype(x: DerivedFeatures, dtype: DTypeLike | None) -> DerivedFeatures:
    def function(shard: Shard, *arguments: Any) -> Features:
        return parameters.in_dtype(x.function(shard, *arguments), dtype)

    return x if dtype is None else dataclasses.replace(x, function=function)


def _has_output_bias(use_bias: bool, use_output_bias: bool | None) -> bool:
    return use_bias if use_output_bias is None else use_output_bias
