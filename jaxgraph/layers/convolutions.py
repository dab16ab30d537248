"""Graph convolutions whose messages are the senders' features: GCN, GraphSAGE and GIN.

A linear map and a sum over neighbours commute, so a convolution maps its features before it sums
them where that makes them narrower, and after it where not. Features that are split by column are
always mapped first: that brings them together.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from jaxgraph.layers.dense import linear, require_rows
from jaxgraph.ops.message_functions import sum_message, weighted_message
from jaxgraph.ops.messages import Inputs
from jaxgraph.ops.reducers import Extremum, Sum
from jaxgraph.parallel import FeatureColumns, Shard
from jaxgraph.parallel.propagate import aggregate_messages, mean_over_edges

__all__ = ["REDUCTIONS", "check_reduction", "gcn_conv", "gin_conv", "sage_conv"]

Params = Mapping[str, jax.Array]
REDUCTIONS = ("mean", "sum", "max")
"""How GraphSAGE can reduce the neighbours."""


def _sum_over_neighbors(shard: Shard, x: jax.Array) -> jax.Array:
    return aggregate_messages(shard, sum_message, Sum(), Inputs((), x, (), ()))


def _maps_first(x: jax.Array | FeatureColumns, kernel: jax.Array) -> bool:
    return isinstance(x, FeatureColumns) or kernel.shape[1] <= kernel.shape[0]


def gcn_conv(
    params: Params, shard: Shard, x: jax.Array | FeatureColumns, *, add_self_loops: bool = True
) -> jax.Array:
    """y_i = sum_{j -> i} w_ij (x_j W) / sqrt(d_j d_i) + b,  d_i = sum_{j -> i} w_ij

    The factors are s (A (s x)) with s = d^-1/2, so that messages carry a weight only where the
    graph has `edge_weight`; else w_ij = 1. A node with d_i <= 0 receives b alone.

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
    kernel = params["kernel"]
    if _maps_first(x, kernel):
        y = _symmetric_sum(shard, linear(shard, x, kernel), add_self_loops)
    else:
        rows = require_rows(x, "summing over neighbours")
        y = linear(shard, _symmetric_sum(shard, rows, add_self_loops), kernel)
    return y + params["bias"] if "bias" in params else y


def _symmetric_sum(shard: Shard, x: jax.Array, add_self_loops: bool) -> jax.Array:
    """s (A (s x)), the self-loops that are missing added row by row."""
    degree = shard.in_degree if shard.edge_weight is None else shard.weighted_in_degree
    assert degree is not None
    missing = shard.missing_self_loop & shard.node_mask
    if add_self_loops:
        degree = degree + missing
    some = degree > 0
    root = jnp.where(some, jax.lax.rsqrt(jnp.where(some, degree, 1)), 0).astype(x.dtype)[:, None]
    scaled = root * x
    if shard.edge_weight is None:
        total = _sum_over_neighbors(shard, scaled)
    else:
        inputs = Inputs((), scaled, (), shard.edge_weight)
        total = aggregate_messages(shard, weighted_message, Sum(), inputs)
    if add_self_loops:
        total = total + jnp.where(missing[:, None], scaled, 0)
    return root * total


def sage_conv(
    params: Params, shard: Shard, x: jax.Array | FeatureColumns, *, reduce: str = "mean"
) -> jax.Array:
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
    kernel = params["neighbor_kernel"]
    if reduce != "max" and _maps_first(x, kernel):
        neighbors = _reduced(shard, linear(shard, x, kernel), reduce)
    else:
        rows = require_rows(x, f"reduce={reduce!r}")
        neighbors = linear(shard, _reduced(shard, rows, reduce), kernel)
    return linear(shard, x, params["self_kernel"], params.get("bias")) + neighbors


def check_reduction(reduce: str) -> None:
    """Raises ValueError for a reduction that GraphSAGE does not have."""
    if reduce not in REDUCTIONS:
        raise ValueError(f"reduce is {reduce!r}; expected one of {', '.join(REDUCTIONS)}")


def _reduced(shard: Shard, x: jax.Array, reduce: str) -> jax.Array:
    if reduce == "max":
        return aggregate_messages(shard, sum_message, Extremum(), Inputs((), x, (), ()))
    total = _sum_over_neighbors(shard, x)
    return mean_over_edges(shard, total, False) if reduce == "mean" else total


def gin_conv(params: Params, shard: Shard, x: jax.Array | FeatureColumns) -> jax.Array:
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
    kernel = params["first_kernel"]
    if _maps_first(x, kernel):
        hidden = _with_own(params, shard, linear(shard, x, kernel))
    else:
        rows = shard.mask_rows(require_rows(x, "summing over neighbours"))
        hidden = linear(shard, _with_own(params, shard, rows), kernel)
    if "first_bias" in params:
        hidden = hidden + params["first_bias"]
    return linear(shard, jax.nn.relu(hidden), params["second_kernel"], params.get("second_bias"))


def _with_own(params: Params, shard: Shard, x: jax.Array) -> jax.Array:
    return (1 + params["eps"]) * x + _sum_over_neighbors(shard, x)
