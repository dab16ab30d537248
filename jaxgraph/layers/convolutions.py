"""Graph convolutions whose messages are the senders' features: GCN, GraphSAGE and GIN.

A linear map and a sum over neighbours commute, so a convolution maps its features before it sums
them where that makes them narrower, and after it where not; of features that are split by column,
those of this device count. It is written once for both, as shares of a sum
(`jaxgraph.parallel.ptags`). Features that come with what the convolution would sum of them
(`AggregatedFeatures`) leave the map alone to be done.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxgraph.layers.activations import keeping_output
from jaxgraph.layers.aggregated import (
    AggregatedFeatures,
    Aggregation,
    Features,
    FirstAggregation,
    plain_features,
)
from jaxgraph.layers.dense import add_bias, at_use, check_width, linear, product, products, rounded
from jaxgraph.layers.edge_data import check_edge_data
from jaxgraph.ops.core.message_functions import sum_message, weighted_message
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.reducers import Sum
from jaxgraph.ops.core.reductions import REDUCTIONS, check_reduction
from jaxgraph.parallel import FeatureColumns, Shard
from jaxgraph.parallel.columns import AllNodes, Piece
from jaxgraph.parallel.propagate import mean_over_edges
from jaxgraph.parallel.ptags import Shares, sync

__all__ = [
    "NeighborReduction",
    "SymmetricSum",
    "check_reduction",
    "first_aggregation",
    "gcn_conv",
    "gin_conv",
    "sage_conv",
]

Params = Mapping[str, jax.Array]


def _sum_over_neighbors(receivers: Shard | Piece, sent: jax.Array) -> jax.Array:
    return receivers.propagate(sum_message, Sum(), Inputs((), sent, (), ()))


@dataclasses.dataclass(frozen=True)
class SymmetricSum:
    """y_i = sum_{j -> i} w_ij x_j / sqrt(d_j d_i),  d_i = sum_{j -> i} w_ij

    The factors are s (A (s x)) with s = d^-1/2, so that messages carry a weight only where the
    graph has `edge_weight`; else w_ij = 1. A node with d_i <= 0 receives 0.

    Attributes:
      add_self_loops: whether a node without an edge to itself counts as having one, of weight 1.
    """

    add_self_loops: bool = True

    @property
    def edge_data(self) -> tuple[str, ...]:
        """Names of the edge data that it uses."""
        return ("edge_weight",)

    @property
    def is_linear(self) -> bool:
        """Whether features may as well be mapped before."""
        return True

    def __call__(self, shard: Shard, x: jax.Array, /) -> jax.Array:
        """float [rows, features] of x [rows, features]."""
        return self.receive(shard, self.send(shard, x))

    def send(self, nodes: Shard | AllNodes, x: jax.Array, /) -> jax.Array:
        """s x, what nodes send, [rows, features]."""
        return rounded(self._factors(nodes, x) * x, x)

    def receive(self, receivers: Shard | Piece, sent: jax.Array, /) -> jax.Array:
        """s (A (s x)) of s x, [receivers, features]."""
        if receivers.edge_weight is None:
            total = _sum_over_neighbors(receivers, sent)
        else:
            inputs = Inputs((), sent, (), receivers.edge_weight)
            total = receivers.propagate(weighted_message, Sum(sent.dtype), inputs)
        if self.add_self_loops:
            missing = receivers.missing_self_loop & receivers.node_mask
            own = receivers.own_rows(sent)
            total = total + jnp.where(missing[:, None], own, jnp.zeros((), own.dtype))
        return rounded(self._factors(receivers, sent) * total, sent)

    def _factors(self, nodes: Shard | AllNodes | Piece, like: jax.Array) -> jax.Array:
        """s [rows, 1], in the type of `like`, but of 32 bits at least."""
        weighted = nodes.weighted_in_degree
        degree = nodes.in_degree if weighted is None else weighted
        degree = degree.astype(jnp.promote_types(like.dtype, jnp.float32))
        if self.add_self_loops:
            degree = degree + (nodes.missing_self_loop & nodes.node_mask)
        some = degree > 0
        return jnp.where(some, jax.lax.rsqrt(jnp.where(some, degree, 1)), 0)[:, None]


@dataclasses.dataclass(frozen=True)
class NeighborReduction:
    """y_i = reduce_{j -> i}(x_j), the reduction of nothing being 0.

    Attributes:
      reduce: "sum", "mean", "max" or "min".
    """

    reduce: str

    @property
    def edge_data(self) -> tuple[str, ...]:
        """Names of the edge data that it uses: none."""
        return ()

    @property
    def is_linear(self) -> bool:
        """Whether features may as well be mapped before."""
        return self.reduce in ("sum", "mean")

    def __call__(self, shard: Shard, x: jax.Array, /) -> jax.Array:
        """float [rows, features] of x [rows, features]."""
        return self.receive(shard, x)

    def send(self, nodes: Shard | AllNodes, x: jax.Array, /) -> jax.Array:
        """x as it is."""
        return x

    def receive(self, receivers: Shard | Piece, sent: jax.Array, /) -> jax.Array:
        """float [receivers, features]."""
        if not self.is_linear:
            inputs = Inputs((), sent, (), ())
            return receivers.propagate(sum_message, REDUCTIONS[self.reduce].reducer(), inputs)
        total = _sum_over_neighbors(receivers, sent)
        return mean_over_edges(receivers, total, False) if self.reduce == "mean" else total


def first_aggregation(aggregation: Aggregation, kernel: jax.Array) -> FirstAggregation:
    """What a model aggregates whose first layer maps the aggregation of its features.

    Args:
      aggregation: of the first layer.
      kernel: float [in_features, out_features], W.

    Returns:
      The aggregation, and how many columns a pass takes of it if its result is not at hand.
    """
    return FirstAggregation(aggregation, kernel.shape[1 if _narrows(aggregation, kernel) else 0])


def _narrows(aggregation: Aggregation, kernel: jax.Array) -> bool:
    return aggregation.is_linear and kernel.shape[1] <= kernel.shape[0]


def _known_aggregate(x: Features, aggregation: Aggregation) -> jax.Array | None:
    if isinstance(x, AggregatedFeatures) and x.aggregation == aggregation:
        return x.aggregate_alone()
    return None


class _Orders(NamedTuple):
    """A convolution up to its first non-linearity, in the two orders of map and aggregation.

    `by` is the implementation of the maps.

    Attributes:
      map: `(by, kernels, x) -> (own, sent)`, the linear map of all rows, in front.
      combine: `(kernels, own, aggregated) -> y`, what is then left to do behind the aggregation.
      map_behind: `(by, kernels, x, aggregated) -> y`, both of what is aggregated first.
    """

    map: Callable[[str, Params, jax.Array], tuple[jax.Array | None, jax.Array]]
    combine: Callable[[Params, Any, jax.Array], jax.Array]
    map_behind: Callable[[str, Params, jax.Array, jax.Array], jax.Array]


def _map_aggregate(
    shard: Shard, x: Features, kernels: Params, aggregation: Aggregation, orders: _Orders
) -> jax.Array:
    """The convolution in the order that aggregates fewer columns, if it aggregates any."""
    aggregate, features = _known_aggregate(x, aggregation), plain_features(x)
    (kernel, *_) = [kernel for kernel in kernels.values() if jnp.ndim(kernel)]
    check_width(shard, features, kernel)
    values = features.values if isinstance(features, FeatureColumns) else features
    # What is no matrix is not cast, but the result it is used for.
    kernels = {
        name: at_use(kernel, values) if jnp.ndim(kernel) else kernel
        for name, kernel in kernels.items()
    }
    by = shard.incoming.implementation
    after = functools.partial(orders.map_behind, by)
    shares = Shares(shard, features, kernels, aggregation, after, aggregate=aggregate)
    is_narrower = aggregation.is_linear and kernel.shape[1] <= values.shape[1]
    if aggregate is None and is_narrower:
        before = functools.partial(orders.map, by)
        shares = dataclasses.replace(shares, before=before, after=orders.combine)
    return sync(shares)


def gcn_conv(
    params: Params, shard: Shard, x: Features, *, add_self_loops: bool = True
) -> jax.Array:
    """y_i = sum_{j -> i} w_ij (x_j W) / sqrt(d_j d_i) + b,  d_i = sum_{j -> i} w_ij

    A node with d_i <= 0 receives b alone; see `SymmetricSum`.

    Args:
      params: "kernel" float [in_features, out_features], W; optionally "bias" [out_features], b.
      shard: the shard, under `spmd`.
      x: float [rows, in_features], or this device's columns of all nodes.
      add_self_loops: whether a node without an edge to itself counts as having one, of weight 1.

    Returns:
      float [rows, out_features].

    Raises:
      ValueError: the graph has `edges` or `edge_type`, which would be ignored, or the shard has
        lost its weights.

    References:
      Kipf and Welling, "Semi-supervised classification with graph convolutional networks", 2017,
      equation 8.
    """
    aggregation = SymmetricSum(add_self_loops)
    check_edge_data(shard, "gcn_conv", aggregation.edge_data)
    if shard.edge_weight is None and shard.weighted_in_degree is not None:
        raise ValueError(
            "gcn_conv got a shard without edge_weight, but with weighted_in_degree; drop the "
            "weights with graph.replace(edge_weight=None) before jaxgraph.parallel.shard"
        )
    y = _map_aggregate(shard, x, {"kernel": params["kernel"]}, aggregation, _GCN)
    return add_bias(y, params.get("bias"))


_GCN = _Orders(
    map=lambda by, kernels, x: (None, product(by, x, kernels["kernel"])),
    combine=lambda kernels, own, aggregated: aggregated,
    map_behind=lambda by, kernels, x, aggregated: product(by, aggregated, kernels["kernel"]),
)


def sage_conv(params: Params, shard: Shard, x: Features, *, reduce: str = "mean") -> jax.Array:
    """y_i = x_i W_self + reduce_{j -> i}(x_j) W_neighbor + b, the reduction of nothing being 0.

    Args:
      params: "self_kernel", "neighbor_kernel" float [in_features, out_features]; optionally "bias"
        [out_features], b.
      shard: the shard, under `spmd`.
      x: float [rows, in_features], or this device's columns of all nodes.
      reduce: "sum", "mean", "max" or "min"; equal winners of the last two share its gradient.

    Returns:
      float [rows, out_features].

    Raises:
      ValueError: the reduction is unknown, or the graph has edge data, which would be ignored.

    References:
      Hamilton et al., "Inductive representation learning on large graphs", 2017, algorithm 1.
    """
    check_reduction(reduce)
    check_edge_data(shard, "sage_conv")
    aggregation = NeighborReduction(reduce)
    if isinstance(x, AggregatedFeatures) and x.is_behind_features and x.aggregation == aggregation:
        kernel = jnp.concatenate((params["self_kernel"], params["neighbor_kernel"]))
        return linear(shard, x.aggregate, kernel, params.get("bias"), is_masked=True)
    kernels = {name: params[name] for name in ("self_kernel", "neighbor_kernel")}
    y = _map_aggregate(shard, x, kernels, aggregation, _SAGE)
    return add_bias(y, params.get("bias"))


_SAGE = _Orders(
    map=lambda by, kernels, x: products(by, x, kernels["self_kernel"], kernels["neighbor_kernel"]),
    combine=lambda kernels, own, aggregated: own + aggregated,
    map_behind=lambda by, kernels, x, aggregated: (
        product(by, x, kernels["self_kernel"]) + product(by, aggregated, kernels["neighbor_kernel"])
    ),
)


def gin_conv(params: Params, shard: Shard, x: Features) -> jax.Array:
    """y_i = relu(((1 + eps) x_i + sum_{j -> i} x_j) W_1 + b_1) W_2 + b_2

    Args:
      params: "eps" float []; "first_kernel" [in_features, hidden_features], W_1; "second_kernel"
        [hidden_features, out_features], W_2; optionally "first_bias" and "second_bias".
      shard: the shard, under `spmd`.
      x: float [rows, in_features], or this device's columns of all nodes.

    Returns:
      float [rows, out_features].

    Raises:
      ValueError: the graph has edge data, which would be ignored.

    References:
      Xu et al., "How powerful are graph neural networks?", 2019, equation 4.1.
    """
    check_edge_data(shard, "gin_conv")
    kernels = {"first_kernel": params["first_kernel"], "eps": params["eps"]}
    neighbors = NeighborReduction("sum")
    if _narrows(neighbors, params["first_kernel"]) and not isinstance(
        plain_features(x), FeatureColumns
    ):
        # Mapped in front, what is summed is narrower than what has been summed already.
        x = plain_features(x)
    hidden = _map_aggregate(shard, x, kernels, neighbors, _GIN)
    hidden = add_bias(hidden, params.get("first_bias"))
    # In parts the layer is computed again from less.
    activation = keeping_output(jax.nn.relu) if shard.manifest.num_parts == 1 else jax.nn.relu
    return linear(shard, activation(hidden), params["second_kernel"], params.get("second_bias"))


def _with_own(kernels: Params, own: jax.Array, total: jax.Array) -> jax.Array:
    return rounded((1 + kernels["eps"]) * own + total, own)


def _map_alone(by: str, kernels: Params, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    mapped = product(by, x, kernels["first_kernel"])
    return mapped, mapped


_GIN = _Orders(
    map=_map_alone,
    combine=_with_own,
    map_behind=lambda by, kernels, x, aggregated: product(
        by, _with_own(kernels, x, aggregated), kernels["first_kernel"]
    ),
)
