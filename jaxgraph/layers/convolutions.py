"""Graph convolutions whose messages are the senders' features: GCN, GraphSAGE and GIN.

A linear map and a sum over neighbours commute, so a convolution maps its features before it sums
them where that makes them narrower, and after it where not. Features that are split by column are
always mapped first: that brings them together. Features that come with what the convolution would
sum of them (`AggregatedFeatures`) leave the map alone to be done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from jaxgraph.layers.aggregated import (
    AggregatedFeatures,
    Aggregation,
    Features,
    FirstAggregation,
    plain_features,
)
from jaxgraph.layers.dense import add_bias, linear, require_rows, rounded
from jaxgraph.ops.message_functions import sum_message, weighted_message
from jaxgraph.ops.messages import Inputs
from jaxgraph.ops.reducers import Extremum, Sum
from jaxgraph.parallel import FeatureColumns, Shard
from jaxgraph.parallel.propagate import aggregate_messages, mean_over_edges

__all__ = [
    "REDUCTIONS",
    "NeighborReduction",
    "SymmetricSum",
    "check_reduction",
    "first_aggregation",
    "gcn_conv",
    "gin_conv",
    "sage_conv",
]

Params = Mapping[str, jax.Array]
REDUCTIONS = ("mean", "sum", "max")
"""How GraphSAGE can reduce the neighbours."""


def _sum_over_neighbors(shard: Shard, x: jax.Array) -> jax.Array:
    return aggregate_messages(shard, sum_message, Sum(), Inputs((), x, (), ()))


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
    def is_linear(self) -> bool:
        """Whether features may as well be mapped before."""
        return True

    def __call__(self, shard: Shard, x: jax.Array, /) -> jax.Array:
        """float [rows, features] of x [rows, features]."""
        degree = shard.in_degree if shard.edge_weight is None else shard.weighted_in_degree
        assert degree is not None
        missing = shard.missing_self_loop & shard.node_mask
        if self.add_self_loops:
            degree = degree + missing
        some = degree > 0
        root = jnp.where(some, jax.lax.rsqrt(jnp.where(some, degree, 1)), 0)[:, None]
        scaled = rounded(root * x, x)
        if shard.edge_weight is None:
            total = _sum_over_neighbors(shard, scaled)
        else:
            inputs = Inputs((), scaled, (), shard.edge_weight)
            total = aggregate_messages(shard, weighted_message, Sum(scaled.dtype), inputs)
        if self.add_self_loops:
            total = total + jnp.where(missing[:, None], scaled, 0)
        return rounded(root * total, x)


@dataclasses.dataclass(frozen=True)
class NeighborReduction:
    """y_i = reduce_{j -> i}(x_j), the reduction of nothing being 0.

    Attributes:
      reduce: "mean", "sum" or "max".
    """

    reduce: str

    @property
    def is_linear(self) -> bool:
        """Whether features may as well be mapped before."""
        return self.reduce != "max"

    def __call__(self, shard: Shard, x: jax.Array, /) -> jax.Array:
        """float [rows, features] of x [rows, features]."""
        if self.reduce == "max":
            return aggregate_messages(shard, sum_message, Extremum(), Inputs((), x, (), ()))
        total = _sum_over_neighbors(shard, x)
        return mean_over_edges(shard, total, False) if self.reduce == "mean" else total


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


def _map_aggregate(
    shard: Shard, x: Features, kernel: jax.Array, aggregation: Aggregation
) -> jax.Array:
    """The aggregation of x times W, in the order that aggregates fewer columns, if any."""
    aggregate = _known_aggregate(x, aggregation)
    if aggregate is not None:
        return linear(shard, aggregate, kernel, is_masked=True)
    x = plain_features(x)
    if isinstance(x, FeatureColumns) or _narrows(aggregation, kernel):
        return aggregation(shard, linear(shard, x, kernel))
    rows = require_rows(x, "aggregating over neighbours")
    return linear(shard, aggregation(shard, rows), kernel)


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

    References:
      Kipf and Welling, "Semi-supervised classification with graph convolutional networks", 2017,
      equation 8.
    """
    y = _map_aggregate(shard, x, params["kernel"], SymmetricSum(add_self_loops))
    return add_bias(y, params.get("bias"))


def sage_conv(params: Params, shard: Shard, x: Features, *, reduce: str = "mean") -> jax.Array:
    """y_i = x_i W_self + reduce_{j -> i}(x_j) W_neighbor + b, the reduction of nothing being 0.

    Args:
      params: "self_kernel", "neighbor_kernel" float [in_features, out_features]; optionally "bias"
        [out_features], b.
      shard: the shard, under `spmd`.
      x: float [rows, in_features], or, not for "max", this device's columns of all nodes.
      reduce: "mean", "sum" or "max"; equal winners of the maximum share its gradient.

    Returns:
      float [rows, out_features].

    Raises:
      TypeError: x is split by column and the reduction is the maximum.
      ValueError: the reduction is unknown.

    References:
      Hamilton et al., "Inductive representation learning on large graphs", 2017, algorithm 1.
    """
    check_reduction(reduce)
    if reduce == "max":
        require_rows(x, "reduce='max'")
    aggregation = NeighborReduction(reduce)
    if isinstance(x, AggregatedFeatures) and x.is_behind_features and x.aggregation == aggregation:
        kernel = jnp.concatenate((params["self_kernel"], params["neighbor_kernel"]))
        return linear(shard, x.aggregate, kernel, params.get("bias"), is_masked=True)
    neighbors = _map_aggregate(shard, x, params["neighbor_kernel"], aggregation)
    return linear(shard, x, params["self_kernel"], params.get("bias")) + neighbors


def check_reduction(reduce: str) -> None:
    """Raises ValueError for a reduction that GraphSAGE does not have."""
    if reduce not in REDUCTIONS:
        raise ValueError(f"reduce is {reduce!r}; expected one of {', '.join(REDUCTIONS)}")


def gin_conv(params: Params, shard: Shard, x: Features) -> jax.Array:
    """y_i = relu(((1 + eps) x_i + sum_{j -> i} x_j) W_1 + b_1) W_2 + b_2

    Args:
      params: "eps" float []; "first_kernel" [in_features, hidden_features], W_1; "second_kernel"
        [hidden_features, out_features], W_2; optionally "first_bias" and "second_bias".
      shard: the shard, under `spmd`.
      x: float [rows, in_features], or this device's columns of all nodes.

    Returns:
      float [rows, out_features].

    References:
      Xu et al., "How powerful are graph neural networks?", 2019, equation 4.1.
    """
    kernel, neighbors = params["first_kernel"], NeighborReduction("sum")
    own = plain_features(x)
    if isinstance(own, FeatureColumns) or _narrows(neighbors, kernel):
        mapped = linear(shard, own, kernel)
        hidden = _with_own(params, mapped, neighbors(shard, mapped))
    else:
        own = shard.mask_rows(require_rows(own, "summing over neighbours"))
        total = _known_aggregate(x, neighbors)
        total = neighbors(shard, own) if total is None else total
        hidden = linear(shard, _with_own(params, own, total), kernel)
    hidden = add_bias(hidden, params.get("first_bias"))
    return linear(shard, jax.nn.relu(hidden), params["second_kernel"], params.get("second_bias"))


def _with_own(params: Params, own: jax.Array, total: jax.Array) -> jax.Array:
    return rounded((1 + params["eps"]) * own + total, own)
