"""Ready models, each a `Stack` of one kind of convolution.

All are called as `model(shard, x, key=key, train=train) -> [rows, out_features]`, where x is
`shard.nodes`, or the rows of a `NodeEmbedding` where the graph has no features.

A convolution before a batch norm has no bias: the norm has one.

Models are dataclasses: each argument of a constructor is a field, inherited or the model's own. A
model adds its convolution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass, field, fields
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxgraph import layers
from jaxgraph.nn import parameters
from jaxgraph.nn.convolutions import (
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GINEConv,
    RGCNConv,
    SAGEConv,
)
from jaxgraph.nn.layer import BATCH_NORMS, joined_width
from jaxgraph.nn.linear import Linear
from jaxgraph.nn.module import SizedModule
from jaxgraph.nn.protocol import Convolution
from jaxgraph.nn.remat import Policies
from jaxgraph.nn.stack import Stack

Activation = Callable[[jax.Array], jax.Array]


@dataclass(eq=False, repr=False)
class StackedModel(Stack):
    """A `Stack` of one kind of convolution, with the arguments that all models share.

    A model of your own is a dataclass that adds its fields and states its kind of convolution,
    `_kind`, or makes each, `_convolution`.

    Args:
      in_features, hidden_features, out_features: widths of input, layers between and output.
      num_layers: number of convolutions.
      dropout: probability of dropping an input feature of a layer in training.
      norm: "batch", "layer", "restricted-batch" or None, after every convolution but the last.
      residual: whether a layer before the last adds its input to its output, through a linear map
        where their widths differ.
      activation: elementwise function after every layer but the last.
      jumping: "cat" or "max": the last layer is a linear map of the outputs of all convolutions,
        concatenated or their maximum, and the backward saves these outputs; None: it is the last
        convolution.
      policy: the tensors that layers save for the backward, as for `Stack`; None: the default.
      dtype: type of activations and messages, such as jnp.bfloat16; outputs then have at least 32
        bits, for the loss. None: that of x.
      param_dtype: type of the parameters.
      rngs: source of the initial parameters.

    Raises:
      ValueError: a size, a rate or a name is not one of those allowed.
    """

    in_features: int
    hidden_features: int
    out_features: int
    _: KW_ONLY
    num_layers: int = 2
    dropout: float = 0.0
    norm: str | None = None
    residual: bool = False
    activation: Activation = jax.nn.relu
    jumping: str | None = None
    policy: Policies = None
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32
    rngs: InitVar[nnx.Rngs]

    _kind: ClassVar[type[SizedModule]]
    _outer_residual: ClassVar[bool] = False

    def __post_init__(self, rngs: nnx.Rngs) -> None:
        shared: dict[str, Any] = {
            "dtype": self.dtype,
            "param_dtype": self.param_dtype,
            "rngs": rngs,
        }
        convolutions, widths = self._convolutions(shared)
        super().__init__(
            convolutions,
            widths,
            dropout=self.dropout,
            norm=self.norm,
            residual=self.residual,
            outer_residual=self._outer_residual,
            activation=self.activation,
            jumping=self.jumping,
            policy=self.policy,
            **shared,
        )

    def _convolutions(self, shared: dict[str, Any]) -> tuple[list[Convolution], list[int]]:
        """The convolutions, and the features of the input and of the output of each."""
        self._check_sizes()
        # With jumping knowledge the last layer is a linear map.
        last = self.num_layers - (self.jumping is None)
        heads = getattr(self, "num_heads", 1)
        parameters.check_heads(heads)
        # Layers before the last concatenate their heads.
        hidden = heads * self.hidden_features
        widths = [self.in_features, *[hidden] * last, self.out_features]
        convolutions = [
            self._convolution(
                widths[index],
                self.out_features if index == last else self.hidden_features,
                is_last=index == last,
                # A batch norm cancels a bias. The gradient of the bias is rounding error, which
                # Adam turns into steps that depend on the number of devices.
                use_bias=index == last or self.norm not in BATCH_NORMS,
                **shared,
            )
            for index in range(self.num_layers)
        ]
        if self.jumping is not None:
            width = joined_width(self.jumping, widths[1:-1])
            convolutions.append(Linear(width, self.out_features, **shared))
        return convolutions, widths

    def _check_sizes(self) -> None:
        names = ("in_features", "hidden_features", "out_features", "num_layers")
        parameters.check_sizes(**{name: getattr(self, name) for name in names})

    def _convolution(
        self, in_features: int, out_features: int, *, is_last: bool, use_bias: bool, **options: Any
    ) -> Convolution:
        """A convolution, with the fields that the model adds and that it has, too, and dropout."""
        takes, own, shared = (
            {field.name for field in fields(each)} for each in (self._kind, self, StackedModel)
        )
        chosen = takes & (own - shared | {"dropout"})
        options = {name: getattr(self, name) for name in chosen} | options
        options["use_output_bias" if "use_output_bias" in takes else "use_bias"] = use_bias
        if "concat" in takes:
            options["concat"] = not is_last
        return self._kind(in_features, out_features, **options)


@dataclass(eq=False, repr=False, kw_only=True)
class GCN(StackedModel):
    """Layers of `GCNConv`.

    Args:
      add_self_loops: whether a node without a self-loop counts as having one.

    All other arguments are those of `StackedModel`.

    References:
      Kipf and Welling, "Semi-supervised classification with graph convolutional networks", 2017.
    """

    add_self_loops: bool = True

    _kind = GCNConv


@dataclass(eq=False, repr=False, kw_only=True)
class DeepGCN(GCN):
    """GCN for many layers: H' = relu(GCN(H)) + H, or + H W where the widths differ.

    Every layer has the residual connection; the last has no activation.

    Args:
      norm: "batch", "layer", "restricted-batch" or None, between a convolution and its activation.
      activation: elementwise function after every convolution but the last.
      add_self_loops: whether a node without a self-loop counts as having one.

    All other arguments are those of `StackedModel`.

    References:
      Jia et al., "Improving the accuracy, scalability, and performance of graph neural networks
      with ROC", 2020, section 7.5.
    """

    num_layers: int = 8
    residual: bool = field(default=False, init=False)

    _outer_residual: ClassVar[bool] = True


@dataclass(eq=False, repr=False, kw_only=True)
class GraphSAGE(StackedModel):
    """Layers of `SAGEConv`.

    Args:
      reduce: "sum", "mean", "max" or "min".

    All other arguments are those of `StackedModel`.

    References:
      Hamilton et al., "Inductive representation learning on large graphs", 2017.
    """

    reduce: str = "mean"

    _kind = SAGEConv


@dataclass(eq=False, repr=False, kw_only=True)
class RGCN(StackedModel):
    """Layers of `RGCNConv`, for a graph of one set of nodes and one set of typed edges.

    Args:
      num_types: edge types.
      num_bases: matrices of which those of the types are sums; None: these are free.
      num_blocks: blocks on the diagonal of the matrix of a type; None: it is full.
      reduce: "mean" or "sum" over the edges of a type.

    All other arguments are those of `StackedModel`.

    References:
      Schlichtkrull et al., "Modeling relational data with graph convolutional networks", 2018.
    """

    num_types: int
    num_bases: int | None = None
    num_blocks: int | None = None
    reduce: str = "mean"

    _kind = RGCNConv


@dataclass(eq=False, repr=False, kw_only=True)
class GIN(StackedModel):
    """Layers of `GINConv`.

    The arguments are those of `StackedModel`.

    References:
      Xu et al., "How powerful are graph neural networks?", 2019.
    """

    _kind = GINConv


@dataclass(eq=False, repr=False, kw_only=True)
class GINE(StackedModel):
    """Layers of `GINEConv`.

    Args:
      edge_features: number of edge features, which every layer reads.

    All other arguments are those of `StackedModel`.

    References:
      Hu et al., "Strategies for pre-training graph neural networks", 2020.
    """

    edge_features: int

    _kind = GINEConv


@dataclass(eq=False, repr=False, kw_only=True)
class _AttentionModel(StackedModel):
    """A model whose layers concatenate their heads; the last averages them."""

    num_heads: int = 1
    edge_features: int | None = None
    negative_slope: float = 0.2
    add_self_loops: bool = True


@dataclass(eq=False, repr=False, kw_only=True)
class GAT(_AttentionModel):
    """Layers of `GATConv`.

    Args:
      in_features: features of the input.
      hidden_features: features between layers, per head; heads are concatenated.
      out_features: features of the output, the mean over the heads.
      num_heads: number of attention heads of every layer.
      edge_features: number of edge features, which every layer reads; None: edges have none.
      dropout: probability of dropping an input feature of a layer, and a coefficient of attention,
        in training.
      negative_slope: of the leaky ReLU in the attention.
      add_self_loops: whether a node without a self-loop attends to itself as well.

    All other arguments are those of `StackedModel`.

    References:
      Veličković et al., "Graph attention networks", 2018.
    """

    activation: Activation = layers.elu

    _kind = GATConv


@dataclass(eq=False, repr=False, kw_only=True)
class GATv2(_AttentionModel):
    """Layers of `GATv2Conv`.

    Args:
      in_features: features of the input.
      hidden_features: features between layers, per head; heads are concatenated.
      out_features: features of the output, the mean over the heads.
      num_heads: number of attention heads of every layer.
      edge_features: number of edge features, which every layer reads; None: edges have none.
      dropout: probability of dropping an input feature of a layer, and a coefficient of attention,
        in training.
      negative_slope: of the leaky ReLU in the attention.
      add_self_loops: whether a node without a self-loop attends to itself as well.

    All other arguments are those of `StackedModel`.

    References:
      Brody et al., "How attentive are graph attention networks?", 2022.
    """

    _kind = GATv2Conv
