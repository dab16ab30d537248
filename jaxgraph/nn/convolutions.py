"""Graph convolutions that own their parameters; all are called as `(shard, x, key, train)`.

`key` is needed in training where a layer has attention dropout; the other layers ignore it. See
`jaxgraph.nn.protocol` for the attributes that they may declare.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from jaxgraph import layers
from jaxgraph.layers.aggregated import FirstAggregation
from jaxgraph.layers.aggregations import NeighborReduction, SymmetricSum, first_aggregation
from jaxgraph.layers.attention import gat_stages, gatv2_stages
from jaxgraph.layers.convolutions import check_reduction
from jaxgraph.layers.dense import check_rate
from jaxgraph.nn import parameters
from jaxgraph.nn.module import SizedModule
from jaxgraph.parallel import Shard
from jaxgraph.parallel.conv_stages import ConvStages
from jaxgraph.parallel.feature_protocol import Features

if TYPE_CHECKING:
    from jaxgraph.graph import Graph


@dataclass(eq=False, repr=False, kw_only=True)
class GCNConv(SizedModule):
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

    _layer = staticmethod(layers.gcn_conv)
    _options = ("add_self_loops",)

    add_self_loops: bool = True

    def _make(self, rngs: nnx.Rngs) -> None:
        self.kernel = self._kernel(rngs, self.in_features, self.out_features)
        if self.use_bias:
            self.bias = self._zeros(self.out_features)

    @property
    def first_aggregation(self) -> FirstAggregation:
        """The aggregation of the features if this is a model's first layer."""
        aggregation = SymmetricSum(self.add_self_loops)
        return first_aggregation(aggregation, self.kernel.get_value())


@dataclass(eq=False, repr=False, kw_only=True)
class SAGEConv(SizedModule):
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

    _layer = staticmethod(layers.sage_conv)
    _options = ("reduce",)

    reduce: str = "mean"

    def _make(self, rngs: nnx.Rngs) -> None:
        check_reduction(self.reduce)
        shape = (rngs, self.in_features, self.out_features, self.param_dtype)
        self.self_kernel = parameters.fan_in_kernel(*shape)
        self.neighbor_kernel = parameters.fan_in_kernel(*shape)
        if self.use_bias:
            self.bias = self._zeros(self.out_features)

    @property
    def first_aggregation(self) -> FirstAggregation:
        """The aggregation of the features if this is a model's first layer."""
        aggregation = NeighborReduction(self.reduce)
        found = first_aggregation(aggregation, self.neighbor_kernel.get_value())
        return dataclasses.replace(found, is_joined_with_features=True)


@dataclass(eq=False, repr=False, kw_only=True)
class RGCNConv(SizedModule):
    """y_i = x_i W_self + sum_r reduce_{j -r-> i}(w_ij x_j) W_r + b

    It takes a relation whose edges have types, `shard.relation(name)`; see
    `jaxgraph.layers.rgcn_conv`.

    Args:
      in_features: features of x.
      out_features: features of y.
      num_types: edge types, each with a matrix W_r.
      num_bases: matrices V_b of which each W_r is a sum, W_r = sum_b a_rb V_b; None: W_r is free.
      num_blocks: blocks on the diagonal of W_r, which is 0 elsewhere; None: W_r is full.
      reduce: "mean" or "sum" over the edges of a type.
      use_bias: whether there is b.
      dtype: type to compute in, such as jnp.bfloat16; None: that of x.
      param_dtype: type of the parameters.
      rngs: source of the initial W_r, W_self, V_b and a_rb (Glorot uniform); b starts at 0.

    Raises:
      ValueError: a number is not positive, both bases and blocks are given, or the blocks do not
        divide the features.

    References:
      Schlichtkrull et al., "Modeling relational data with graph convolutional networks", 2018.
    """

    _layer = staticmethod(layers.rgcn_conv)
    _options = ("reduce",)

    num_types: int
    num_bases: int | None = None
    num_blocks: int | None = None
    reduce: str = "mean"

    def _make(self, rngs: nnx.Rngs) -> None:
        bases, blocks, ends = self.num_bases, self.num_blocks, (self.in_features, self.out_features)
        parameters.check_sizes(num_types=self.num_types)
        self.self_kernel = self._kernel(rngs, *ends)
        if self.use_bias:
            self.bias = self._zeros(self.out_features)
        if bases is not None and blocks is not None:
            raise ValueError(
                f"num_bases={bases} and num_blocks={blocks}: expected one of them, or none"
            )
        if bases is not None:
            parameters.check_sizes(num_bases=bases)
            self.bases = parameters.kernels(rngs, (bases, *ends), self.param_dtype)
            self.coefficients = self._kernel(rngs, self.num_types, bases)
        elif blocks is not None:
            parameters.check_sizes(num_blocks=blocks)
            if any(end % blocks for end in ends):
                raise ValueError(
                    f"num_blocks={blocks} does not divide in_features={ends[0]} and "
                    f"out_features={ends[1]}"
                )
            shape = (self.num_types, blocks, *(end // blocks for end in ends))
            self.blocks = parameters.kernels(rngs, shape, self.param_dtype)
        else:
            self.kernel = parameters.kernels(rngs, (self.num_types, *ends), self.param_dtype)


@dataclass(eq=False, repr=False, kw_only=True)
class _AttentionConv(SizedModule):
    """The shared code of GATConv and GATv2Conv, without parameters and score."""

    _options = ("concat", "negative_slope", "dropout", "add_self_loops")

    _stages: ClassVar[Callable[..., ConvStages]]

    num_heads: int = 1
    edge_features: int | None = None
    concat: bool = True
    negative_slope: float = 0.2
    dropout: float = 0.0
    add_self_loops: bool = True
    use_output_bias: bool | None = None

    def _make(self, rngs: nnx.Rngs) -> None:
        parameters.check_sizes(num_heads=self.num_heads)
        check_rate(self.dropout)
        width = self.num_heads * self.out_features
        self._make_score(width, rngs)
        # The backward recomputes no features for messages that read edges.
        self.mapped_features = None if self.edge_features else width
        if self.edge_features is not None:
            parameters.check_sizes(edge_features=self.edge_features)
            self._make_edge_score(self.edge_features, width, rngs)
        if has_output_bias(self.use_bias, self.use_output_bias):
            self.bias = self._zeros(width if self.concat else self.out_features)

    def _make_score(self, width: int, rngs: nnx.Rngs) -> None:
        raise NotImplementedError

    def _make_edge_score(self, edge_features: int, width: int, rngs: nnx.Rngs) -> None:
        self.edge_kernel = self._kernel(rngs, edge_features, width)

    def attention_weights(self, shard: Graph | Shard, x: Features) -> jax.Array:
        """Computes the coefficients alpha_ij of all edges, without dropout."""
        params = parameters.values(self)
        stages = type(self)._stages(
            params, negative_slope=self.negative_slope, add_self_loops=self.add_self_loops
        )
        x = parameters.in_dtype(x, self.dtype)
        return layers.attention_weights(stages, params, shard, x)


@dataclass(eq=False, repr=False, kw_only=True)
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

    def _make_score(self, width: int, rngs: nnx.Rngs) -> None:
        self.kernel = self._kernel(rngs, self.in_features, width)
        self.attention_sender = self._kernel(rngs, self.num_heads, self.out_features)
        self.attention_receiver = self._kernel(rngs, self.num_heads, self.out_features)

    def _make_edge_score(self, edge_features: int, width: int, rngs: nnx.Rngs) -> None:
        super()._make_edge_score(edge_features, width, rngs)
        self.attention_edge = self._kernel(rngs, self.num_heads, self.out_features)


@dataclass(eq=False, repr=False, kw_only=True)
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

    def _make_score(self, width: int, rngs: nnx.Rngs) -> None:
        self.sender_kernel = self._kernel(rngs, self.in_features, width)
        self.receiver_kernel = self._kernel(rngs, self.in_features, width)
        self.attention = self._kernel(rngs, self.num_heads, self.out_features)
        if self.use_bias:
            self.sender_bias = self._zeros(width)
            self.receiver_bias = self._zeros(width)


@dataclass(eq=False, repr=False, kw_only=True)
class GINConv(SizedModule):
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

    _layer = staticmethod(layers.gin_conv)

    hidden_features: int | None = None
    eps: Any = 0.0
    use_output_bias: bool | None = None

    def _make(self, rngs: nnx.Rngs) -> None:
        hidden = self.out_features if self.hidden_features is None else self.hidden_features
        parameters.check_sizes(hidden_features=hidden)
        # The field holds the number until here: `nnx.data` makes it one of the parameters.
        self.eps = nnx.data(nnx.Param(jnp.asarray(self.eps, self.param_dtype)))
        self.first_kernel = self._kernel(rngs, self.in_features, hidden)
        self.second_kernel = self._kernel(rngs, hidden, self.out_features)
        if self.use_bias:
            self.first_bias = self._zeros(hidden)
        if has_output_bias(self.use_bias, self.use_output_bias):
            self.second_bias = self._zeros(self.out_features)

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


@dataclass(eq=False, repr=False, kw_only=True)
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

    _layer = staticmethod(layers.gine_conv)

    edge_features: int

    def _make(self, rngs: nnx.Rngs) -> None:
        super()._make(rngs)
        parameters.check_sizes(edge_features=self.edge_features)
        self.edge_kernel = self._kernel(rngs, self.edge_features, self.in_features)
        if self.use_bias:
            self.edge_bias = self._zeros(self.in_features)

    @property
    def first_aggregation(self) -> None:
        """None: messages have parameters."""
        return None


def has_output_bias(use_bias: bool, use_output_bias: bool | None) -> bool:
    return use_bias if use_output_bias is None else use_output_bias
