"""The graph transformer: its convolution and its model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
from flax import nnx

from jaxgraph import layers
from jaxgraph.layers.aggregated import Features
from jaxgraph.layers.dense import check_rate
from jaxgraph.layers.transformer import transformer_stages
from jaxgraph.nn import parameters
from jaxgraph.nn.convolutions import has_output_bias
from jaxgraph.nn.models import StackedModel
from jaxgraph.nn.module import Params, SizedModule
from jaxgraph.parallel import Shard

if TYPE_CHECKING:
    from jaxgraph.graph import Graph


@dataclass(eq=False, repr=False, kw_only=True)
class TransformerConv(SizedModule):
    """y_i = r_i + sum_{j -> i} softmax_j(<q_i, k_j> / sqrt(out_features)) v_j

    for every head, with q, k, v and r linear maps of x, see `jaxgraph.layers.transformer_conv`.

    Args:
      in_features: features of x.
      out_features: features of y per head.
      num_heads: number of attention heads.
      concat: whether heads are concatenated; otherwise they are averaged.
      dropout: probability of dropping a coefficient in training.
      root_weight: whether there is r, the map of the node's own row.
      beta: whether a gate weighs r against the attention.
      use_bias: whether there are the biases of q, v and r.
      use_output_bias: whether there are those of v and r; None: as `use_bias`. Pass False before a
        batch norm.
      dtype: type to compute in, such as jnp.bfloat16; None: that of x.
      param_dtype: type of the parameters.
      rngs: source of the initial kernels (Glorot uniform); biases start at 0.

    Raises:
      ValueError: a size or a rate is not one of those allowed, or `beta` without `root_weight`.

    References:
      Shi et al., "Masked label prediction: unified message passing model for semi-supervised
      classification", 2021.
    """

    num_heads: int = 1
    concat: bool = True
    dropout: float = 0.0
    root_weight: bool = True
    beta: bool = False
    use_output_bias: bool | None = None

    def _make(self, rngs: nnx.Rngs) -> None:
        parameters.check_sizes(num_heads=self.num_heads)
        check_rate(self.dropout)
        if self.beta and not self.root_weight:
            raise ValueError(
                "beta=True weighs the map of the node's own row, which root_weight=False leaves "
                "out; pass root_weight=True"
            )
        joined = self.num_heads * self.out_features
        width = joined if self.concat else self.out_features
        widths = {"query": joined, "key": joined, "value": joined}
        if self.root_weight:
            widths["skip"] = width
        with_bias = {"query"} if self.use_bias else set()
        if has_output_bias(self.use_bias, self.use_output_bias):
            with_bias |= {"value", "skip"}
        for name, columns in widths.items():
            setattr(self, f"{name}_kernel", self._kernel(rngs, self.in_features, columns))
            if name in with_bias:
                setattr(self, f"{name}_bias", self._zeros(columns))
        if self.beta:
            self.gate = self._kernel(rngs, 3, width)

    def attention_weights(self, shard: Graph | Shard, x: Features) -> jax.Array:
        """Computes the coefficients alpha_ij of all edges, without dropout.

        Args:
          shard: a graph, on one device; the shard, under `spmd`; or another neighbourhood.
          x: as for a call.

        Returns:
          float [slots, heads] (`jaxgraph.parallel.gather_edges` puts them into the graph's order),
          or for a graph [num_edges, heads] in that order.
        """
        params = parameters.values(self)
        stages = transformer_stages(params, num_heads=self.num_heads)
        return layers.attention_weights(stages, params, shard, parameters.in_dtype(x, self.dtype))

    def _compute(
        self, params: Params, shard: Shard, x: Any, key: jax.Array | None, train: bool
    ) -> jax.Array:
        return layers.transformer_conv(
            params,
            shard,
            x,
            num_heads=self.num_heads,
            concat=self.concat,
            dropout=self.dropout if train else 0.0,
            key=key,
        )


@dataclass(eq=False, repr=False, kw_only=True)
class Transformer(StackedModel):
    """Layers of `TransformerConv`; they concatenate their heads, and the last averages them.

    Args:
      in_features: features of the input.
      hidden_features: features between layers, per head; heads are concatenated.
      out_features: features of the output, the mean over the heads.
      num_heads: number of attention heads of every layer.
      dropout: probability of dropping an input feature of a layer, and a coefficient of attention,
        in training.
      beta: whether gates weigh the nodes' own rows against the attention.

    All other arguments are those of `StackedModel`.

    References:
      Shi et al., "Masked label prediction: unified message passing model for semi-supervised
      classification", 2021.
    """

    num_heads: int = 1
    beta: bool = False

    _kind = TransformerConv
