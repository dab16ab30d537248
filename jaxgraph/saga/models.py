"""Ready layers and models of two functions, each with its hand-written equation.

All models are stacks, called as those of `jaxgraph.nn`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxgraph.layers.edge_data import check_edge_data
from jaxgraph.nn import parameters
from jaxgraph.nn.models import StackedModel
from jaxgraph.nn.protocol import Convolution
from jaxgraph.saga.stages import Edge, Layer


@dataclass(frozen=True)
class _Sizes:
    """Makes the parameters of the stages of the ready models."""

    param_dtype: DTypeLike
    rngs: nnx.Rngs

    def kernel(self, rows: int, columns: int) -> nnx.Param:
        return parameters.kernel(self.rngs, rows, columns, self.param_dtype)

    def bias(self, columns: int, is_used: bool) -> nnx.Param | None:
        return parameters.zeros(columns, self.param_dtype) if is_used else None


def _mapped(x: jax.Array, kernel: nnx.Param, bias: nnx.Param | None = None) -> jax.Array:
    """x W + b in the type of x."""
    y = x @ kernel.get_value().astype(x.dtype)
    return y if bias is None else y + bias.get_value().astype(x.dtype)


class _Gate(nnx.Module):
    """m = sigmoid(x_i W_H + x_j W_C) * x_j"""

    def __init__(self, features: int, sizes: _Sizes) -> None:
        self.receiver, self.sender = (sizes.kernel(features, features) for _ in range(2))

    def __call__(self, edge: Edge) -> jax.Array:
        total = _mapped(edge.receiver, self.receiver) + _mapped(edge.sender, self.sender)
        return jax.nn.sigmoid(total) * edge.sender


class _Map(nnx.Module):
    """y = a W + b, and + x W_H where the node itself counts."""

    def __init__(self, ins: int, outs: int, use_bias: bool, sizes: _Sizes, *, own: bool) -> None:
        self.kernel, self.bias = sizes.kernel(ins, outs), sizes.bias(outs, use_bias)
        self.own = sizes.kernel(ins, outs) if own else None

    def __call__(self, vertex: jax.Array, accumulated: jax.Array) -> jax.Array:
        y = _mapped(accumulated, self.kernel, self.bias)
        return y if self.own is None else y + _mapped(vertex, self.own)


class _OfType(nnx.Module):
    """m = h_j A_t for an edge of type t"""

    def __init__(self, features: int, num_types: int, sizes: _Sizes) -> None:
        self.features, self.num_types = features, num_types
        self.kernel = sizes.kernel(features, num_types * features)

    def __call__(self, edge: Edge) -> jax.Array:
        # One product for all types, which moves to the senders; edges choose among its columns.
        of_all = _mapped(edge.sender, self.kernel)
        if self.num_types == 1:
            return of_all
        # Not 0: where the types of all edges are not known, another type must not go unnoticed.
        total = jnp.full_like(of_all[:, : self.features], jnp.nan)
        for t in range(self.num_types):
            columns = of_all[:, t * self.features : (t + 1) * self.features]
            total = jnp.where(edge.data[:, None] == t, columns, total)
        return total


class _GRU(nnx.Module):
    """h' = (1 - z) h + z tanh(a W + b + (r * h) U), with gates z and r of a and h."""

    def __init__(self, features: int, sizes: _Sizes) -> None:
        self.features = features
        self.of_accumulated = sizes.kernel(features, 3 * features)
        self.of_gates = sizes.kernel(features, 2 * features)
        self.of_reset = sizes.kernel(features, features)
        self.bias = sizes.bias(3 * features, True)

    def __call__(self, vertex: jax.Array, accumulated: jax.Array) -> jax.Array:
        of_gates, of_new = jnp.split(
            _mapped(accumulated, self.of_accumulated, self.bias), [2 * self.features], 1
        )
        gates = jax.nn.sigmoid(of_gates + _mapped(vertex, self.of_gates))
        update, reset = jnp.split(gates, 2, 1)
        new = jnp.tanh(of_new + _mapped(reset * vertex, self.of_reset))
        return (1 - update) * vertex + update * new


class _Checked(Layer):
    """A layer that refuses a graph with edge data that it does not use."""

    def _check(self, shard: Any) -> None:
        check_edge_data(shard, type(self).__name__, () if self.data is None else (self.data,))


class _ReadyLayer(_Checked):
    """A layer whose stages are made from the sizes of its input and output."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        parameters.check_sizes(in_features=in_features, out_features=out_features)
        parameters.checked_dtype(dtype, param_dtype)
        stages = self._stages(in_features, out_features, use_bias, _Sizes(param_dtype, rngs))
        super().__init__(*stages, "sum", data=self._data, dtype=dtype)

    _data: ClassVar[str | None] = None

    def _stages(self, ins: int, outs: int, use_bias: bool, sizes: _Sizes) -> tuple[Any, Any]:
        """`apply_edge` and `apply_vertex`."""
        raise NotImplementedError


class GatedConv(_ReadyLayer):
    """y_i = W sum_{j -> i} sigmoid(W_H x_i + W_C x_j) * x_j + b

    Args:
      in_features, out_features: features of x and of y.
      use_bias: whether there is b.
      dtype: type to compute in; None: that of x.
      param_dtype: type of the parameters.
      rngs: source of the initial parameters.

    References:
      NeuGraph, figure 3; Marcheggiani and Titov, "Encoding sentences with graph convolutional
      networks for semantic role labeling", 2017.
    """

    def _stages(self, ins: int, outs: int, use_bias: bool, sizes: _Sizes) -> tuple[Any, Any]:
        return _Gate(ins, sizes), _Map(ins, outs, use_bias, sizes, own=False)


class CommConv(_ReadyLayer):
    """y_i = W_H x_i + W_C sum_{j -> i} x_j + b

    The arguments are those of `GatedConv`.

    References:
      NeuGraph, figure 10; Sukhbaatar et al., "Learning multiagent communication with
      backpropagation", 2016.
    """

    def _stages(self, ins: int, outs: int, use_bias: bool, sizes: _Sizes) -> tuple[Any, Any]:
        return _sent, _Map(ins, outs, use_bias, sizes, own=True)


class WeightedConv(_ReadyLayer):
    """y_i = W sum_{e: j -> i} w_e x_j + b, with the edges' weights.

    The arguments are those of `GatedConv`.

    References:
      NeuGraph, figure 11; Kipf and Welling, "Semi-supervised classification with graph
      convolutional networks", 2017, with w_e = 1 / sqrt(d_i d_j).
    """

    _data = "edge_weight"

    def _stages(self, ins: int, outs: int, use_bias: bool, sizes: _Sizes) -> tuple[Any, Any]:
        return _weighted, _Map(ins, outs, use_bias, sizes, own=False)


class GatedGraphConv(_Checked):
    """y_i = GRU(h_i, sum_{e: j -> i} h_j A_t), t the type of edge e; h = x W_0 where widths differ.

    Args:
      in_features, out_features: features of x and of y.
      num_edge_types: number of edge types, from 0. A graph with others is refused, or gives NaN
        where an earlier version wrote its parts. With 1 the graph has no types.
      dtype, param_dtype, rngs: as of `GatedConv`.

    References:
      NeuGraph, figure 12; Li et al., "Gated graph sequence neural networks", 2016.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        num_edge_types: int = 1,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        parameters.check_sizes(
            in_features=in_features, out_features=out_features, num_edge_types=num_edge_types
        )
        parameters.checked_dtype(dtype, param_dtype)
        sizes = _Sizes(param_dtype, rngs)
        stages = _OfType(out_features, num_edge_types, sizes), _GRU(out_features, sizes)
        data = "edge_type" if num_edge_types > 1 else None
        super().__init__(*stages, "sum", data=data, dtype=dtype)
        widens = in_features != out_features
        self.lift = sizes.kernel(in_features, out_features) if widens else None
        self.num_edge_types = num_edge_types

    def _check(self, shard: Any) -> None:
        super()._check(shard)
        manifest = getattr(shard.receivers, "manifest", None)
        known, own = getattr(manifest, "num_edge_types", 0), self.num_edge_types
        if known > own:
            raise ValueError(
                f"{type(self).__name__} has num_edge_types={own}, types 0 to {own - 1}, and edges "
                f"of the graph have types up to {known - 1}. Make it with num_edge_types={known}, "
                "or number the types that there are from 0: types, edge_type = numpy.unique("
                "graph.edge_type, return_inverse=True); graph.replace(edge_type=edge_type)"
            )

    def lifted(self, x: jax.Array) -> jax.Array:
        return x if self.lift is None else _mapped(x, self.lift)


def _sent(edge: Edge) -> jax.Array:
    return edge.sender


def _weighted(edge: Edge) -> jax.Array:
    return edge.sender * edge.data[:, None].astype(edge.sender.dtype)


class _Model(StackedModel):
    """A `StackedModel` of one class of layers here."""

    _conv: ClassVar[Callable[..., Layer]]

    def _convolution(
        self, in_features: int, out_features: int, *, is_last: bool, use_bias: bool, **shared: Any
    ) -> Convolution:
        return type(self)._conv(in_features, out_features, use_bias=use_bias, **shared)


@dataclass(eq=False, repr=False, kw_only=True)
class GatedGCN(_Model):
    """G-GCN: layers of `GatedConv`. The arguments are those of `jaxgraph.nn.StackedModel`."""

    _conv = GatedConv


@dataclass(eq=False, repr=False, kw_only=True)
class CommNet(_Model):
    """Layers of `CommConv`. The arguments are those of `jaxgraph.nn.StackedModel`."""

    _conv = CommConv


@dataclass(eq=False, repr=False, kw_only=True)
class GCN(_Model):
    """Layers of `WeightedConv`. The arguments are those of `jaxgraph.nn.StackedModel`."""

    _conv = WeightedConv


@dataclass(eq=False, repr=False, kw_only=True)
class GGNN(StackedModel):
    """Layers of `GatedGraphConv`.

    Args:
      num_edge_types: number of edge types.

    All other arguments are those of `jaxgraph.nn.StackedModel`.
    """

    num_edge_types: int = 1

    def _convolution(
        self, in_features: int, out_features: int, *, is_last: bool, use_bias: bool, **shared: Any
    ) -> Convolution:
        types = self.num_edge_types
        return GatedGraphConv(in_features, out_features, num_edge_types=types, **shared)
