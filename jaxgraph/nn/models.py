"""Ready models, each a `Stack` of one kind of convolution.

All are called as `model(shard, x, key=key, train=train) -> [rows, out_features]`, where x is
`shard.nodes`, or the rows of a `NodeEmbedding` where the graph has no features.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import jax
from flax import nnx

from jaxgraph.nn import parameters
from jaxgraph.nn.convolutions import GATConv, GATv2Conv, GCNConv, GINConv, SAGEConv
from jaxgraph.nn.stack import Stack, layer_widths

__all__ = ["GAT", "GCN", "GIN", "DeepGCN", "GATv2", "GraphSAGE"]

Activation = Callable[[jax.Array], jax.Array]


class GCN(Stack):
    """Layers of `GCNConv`.

    Args:
      in_features, hidden_features, out_features: features of the input, between layers and put out.
      num_layers: number of convolutions.
      dropout: probability of dropping an input feature of a layer in training.
      norm: "batch", "layer" or None, after every convolution but the last.
      residual: whether a layer before the last adds its input to its output, through a linear map
        where their widths differ.
      activation: elementwise function after every layer but the last.
      add_self_loops: whether a node without an edge to itself counts as having one.
      rngs: source of the initial parameters.

    Raises:
      ValueError: a size, a rate or a name is not one of those allowed.

    References:
      Kipf and Welling, "Semi-supervised classification with graph convolutional networks", 2017.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        num_layers: int = 2,
        dropout: float = 0.0,
        norm: str | None = None,
        residual: bool = False,
        activation: Activation = jax.nn.relu,
        add_self_loops: bool = True,
        rngs: nnx.Rngs,
    ) -> None:
        widths = layer_widths(in_features, hidden_features, out_features, num_layers)
        convolutions = [
            GCNConv(*pair, add_self_loops=add_self_loops, rngs=rngs) for pair in pairwise(widths)
        ]
        super().__init__(
            convolutions,
            widths,
            dropout=dropout,
            norm=norm,
            residual=residual,
            activation=activation,
            rngs=rngs,
        )


class DeepGCN(Stack):
    """GCN for many layers: H' = relu(GCN(H)) + H, or + H W where the widths differ.

    Every layer has the residual connection; the last has no activation.

    Args:
      in_features, hidden_features, out_features: features of the input, between layers and put out.
      num_layers: number of convolutions.
      dropout: probability of dropping an input feature of a layer in training.
      norm: "batch", "layer" or None, between a convolution and its activation.
      activation: elementwise function after every convolution but the last.
      add_self_loops: whether a node without an edge to itself counts as having one.
      rngs: source of the initial parameters.

    Raises:
      ValueError: a size, a rate or a name is not one of those allowed.

    References:
      Jia et al., "Improving the accuracy, scalability, and performance of graph neural networks
      with ROC", 2020, section 7.5.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        num_layers: int = 8,
        dropout: float = 0.0,
        norm: str | None = None,
        activation: Activation = jax.nn.relu,
        add_self_loops: bool = True,
        rngs: nnx.Rngs,
    ) -> None:
        widths = layer_widths(in_features, hidden_features, out_features, num_layers)
        convolutions = [
            GCNConv(*pair, add_self_loops=add_self_loops, rngs=rngs) for pair in pairwise(widths)
        ]
        super().__init__(
            convolutions,
            widths,
            dropout=dropout,
            norm=norm,
            outer_residual=True,
            activation=activation,
            rngs=rngs,
        )


class GraphSAGE(Stack):
    """Layers of `SAGEConv`.

    Args:
      in_features, hidden_features, out_features: features of the input, between layers and put out.
      num_layers: number of convolutions.
      reduce: "mean", "sum" or "max".
      dropout: probability of dropping an input feature of a layer in training.
      norm: "batch", "layer" or None, after every convolution but the last.
      residual: whether a layer before the last adds its input to its output, through a linear map
        where their widths differ.
      activation: elementwise function after every layer but the last.
      rngs: source of the initial parameters.

    Raises:
      ValueError: a size, a rate or a name is not one of those allowed.

    References:
      Hamilton et al., "Inductive representation learning on large graphs", 2017.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        num_layers: int = 2,
        reduce: str = "mean",
        dropout: float = 0.0,
        norm: str | None = None,
        residual: bool = False,
        activation: Activation = jax.nn.relu,
        rngs: nnx.Rngs,
    ) -> None:
        widths = layer_widths(in_features, hidden_features, out_features, num_layers)
        convolutions = [SAGEConv(*pair, reduce=reduce, rngs=rngs) for pair in pairwise(widths)]
        super().__init__(
            convolutions,
            widths,
            dropout=dropout,
            norm=norm,
            residual=residual,
            activation=activation,
            rngs=rngs,
        )


class GIN(Stack):
    """Layers of `GINConv`.

    Args:
      in_features, hidden_features, out_features: features of the input, between layers and put out.
      num_layers: number of convolutions.
      dropout: probability of dropping an input feature of a layer in training.
      norm: "batch", "layer" or None, after every convolution but the last.
      residual: whether a layer before the last adds its input to its output, through a linear map
        where their widths differ.
      activation: elementwise function after every layer but the last.
      rngs: source of the initial parameters.

    Raises:
      ValueError: a size, a rate or a name is not one of those allowed.

    References:
      Xu et al., "How powerful are graph neural networks?", 2019.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        num_layers: int = 2,
        dropout: float = 0.0,
        norm: str | None = None,
        residual: bool = False,
        activation: Activation = jax.nn.relu,
        rngs: nnx.Rngs,
    ) -> None:
        widths = layer_widths(in_features, hidden_features, out_features, num_layers)
        convolutions = [GINConv(*pair, rngs=rngs) for pair in pairwise(widths)]
        super().__init__(
            convolutions,
            widths,
            dropout=dropout,
            norm=norm,
            residual=residual,
            activation=activation,
            rngs=rngs,
        )


class _AttentionStack(Stack):
    """Layers of attention: all but the last join their heads, the last averages them."""

    def __init__(
        self,
        convolution: type[GATConv] | type[GATv2Conv],
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        num_layers: int,
        num_heads: int,
        dropout: float,
        norm: str | None,
        residual: bool,
        activation: Activation,
        negative_slope: float,
        add_self_loops: bool,
        rngs: nnx.Rngs,
    ) -> None:
        parameters.check_sizes(num_heads=num_heads)
        per_head = layer_widths(in_features, hidden_features, out_features, num_layers)[1:]
        widths = [in_features, *(num_heads * width for width in per_head[:-1]), out_features]
        convolutions = [
            convolution(
                width_in,
                width,
                num_heads=num_heads,
                concat=index < num_layers - 1,
                negative_slope=negative_slope,
                dropout=dropout,
                add_self_loops=add_self_loops,
                rngs=rngs,
            )
            for index, (width_in, width) in enumerate(zip(widths, per_head, strict=False))
        ]
        super().__init__(
            convolutions,
            widths,
            dropout=dropout,
            norm=norm,
            residual=residual,
            activation=activation,
            rngs=rngs,
        )


class GAT(_AttentionStack):
    """Layers of `GATConv`.

    Args:
      in_features: features of the input.
      hidden_features: features between layers, per head; heads are joined.
      out_features: features put out; the mean over the heads.
      num_layers: number of convolutions.
      num_heads: attention heads of every layer.
      dropout: probability of dropping an input feature of a layer, and a coefficient of attention,
        in training.
      norm: "batch", "layer" or None, after every convolution but the last.
      residual: whether a layer before the last adds its input to its output, through a linear map
        where their widths differ.
      activation: elementwise function after every layer but the last.
      negative_slope: of the leaky ReLU in the attention.
      add_self_loops: whether a node without an edge to itself attends to itself all the same.
      rngs: source of the initial parameters.

    Raises:
      ValueError: a size, a rate or a name is not one of those allowed.

    References:
      Veličković et al., "Graph attention networks", 2018.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        num_layers: int = 2,
        num_heads: int = 1,
        dropout: float = 0.0,
        norm: str | None = None,
        residual: bool = False,
        activation: Activation = jax.nn.elu,
        negative_slope: float = 0.2,
        add_self_loops: bool = True,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(
            GATConv,
            in_features,
            hidden_features,
            out_features,
            num_layers=num_layers,
            num_heads=num_heads,
            dropout=dropout,
            norm=norm,
            residual=residual,
            activation=activation,
            negative_slope=negative_slope,
            add_self_loops=add_self_loops,
            rngs=rngs,
        )


class GATv2(_AttentionStack):
    """Layers of `GATv2Conv`.

    Args:
      in_features: features of the input.
      hidden_features: features between layers, per head; heads are joined.
      out_features: features put out; the mean over the heads.
      num_layers: number of convolutions.
      num_heads: attention heads of every layer.
      dropout: probability of dropping an input feature of a layer, and a coefficient of attention,
        in training.
      norm: "batch", "layer" or None, after every convolution but the last.
      residual: whether a layer before the last adds its input to its output, through a linear map
        where their widths differ.
      activation: elementwise function after every layer but the last.
      negative_slope: of the leaky ReLU in the attention.
      add_self_loops: whether a node without an edge to itself attends to itself all the same.
      rngs: source of the initial parameters.

    Raises:
      ValueError: a size, a rate or a name is not one of those allowed.

    References:
      Brody et al., "How attentive are graph attention networks?", 2022.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        num_layers: int = 2,
        num_heads: int = 1,
        dropout: float = 0.0,
        norm: str | None = None,
        residual: bool = False,
        activation: Activation = jax.nn.relu,
        negative_slope: float = 0.2,
        add_self_loops: bool = True,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(
            GATv2Conv,
            in_features,
            hidden_features,
            out_features,
            num_layers=num_layers,
            num_heads=num_heads,
            dropout=dropout,
            norm=norm,
            residual=residual,
            activation=activation,
            negative_slope=negative_slope,
            add_self_loops=add_self_loops,
            rngs=rngs,
        )
