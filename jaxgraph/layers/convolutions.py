"""Graph convolutions whose messages are the senders' features: GCN, SGC, GraphSAGE and GIN.

A linear map and a sum over neighbours commute. A convolution maps its features before the sum where
that makes them narrower, otherwise after it; for features that are split by column, this device's
columns count. Sparse features are always mapped first. `_Orders` states both orders once, and P3
runs them as shares of a sum (`jaxgraph.parallel.ptags`). Features with their aggregate
(`AggregatedFeatures`) take the map alone.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxgraph.layers.activations import keeping_output
from jaxgraph.layers.aggregations import (
    NeighborReduction,
    SymmetricPower,
    SymmetricSum,
    narrows,
    stored,
)
from jaxgraph.layers.dense import add_bias, check_width, linear, product, products, rounded
from jaxgraph.layers.edge_data import check_edge_data
from jaxgraph.layers.propagation import appnp_propagate, check_steps
from jaxgraph.ops.core.reductions import check_reduction
from jaxgraph.parallel import Shard
from jaxgraph.parallel.conv_stages import ConvStages, Pair, Rows, run_stages
from jaxgraph.parallel.feature_protocol import (
    Features,
    at_use,
    features_of,
    plain_features,
    plain_of,
)
from jaxgraph.parallel.neighborhood import Neighborhood, Nodes, two_ends
from jaxgraph.parallel.ptags import Shares, sync
from jaxgraph.parallel.whole_graph import on_device

if TYPE_CHECKING:
    from jaxgraph.graph import Graph

Params = Mapping[str, jax.Array]


class _Orders(NamedTuple):
    """A convolution up to its first non-linearity, in the two orders of map and aggregation.

    `by` is the implementation of the maps.

    Attributes:
      kernels: names of the parameters that it uses; the first is a matrix with a row per feature.
      map: `(by, kernels, x) -> (own, sent)`, the linear map of all rows, before the aggregation.
      combine: `(kernels, own, aggregated) -> y`, the step after the aggregation.
      map_after: `(by, kernels, x, aggregated) -> y`, map and step after the aggregation of x.
      finish: `(params, nodes, y) -> y`, all later steps.
    """

    kernels: tuple[str, ...]
    map: Callable[[str, Params, jax.Array], tuple[jax.Array | None, jax.Array]]
    combine: Callable[[Params, Any, jax.Array], jax.Array]
    map_after: Callable[[str, Params, jax.Array, jax.Array], jax.Array]
    finish: Callable[[Params, Nodes, jax.Array], jax.Array]

    def at_use(self, params: Params, x: Features) -> Params:
        """Casts kernels to the type of x, but not scalars: their results are cast."""
        chosen = {name: params[name] for name in self.kernels}
        return {name: at_use(k, x) if jnp.ndim(k) else k for name, k in chosen.items()}


def _stages(
    aggregation: Any, orders: _Orders, dtype: Any, *, is_weighted: bool, maps_first: bool
) -> ConvStages:
    """The stages of a convolution; a map comes first where it leaves fewer columns to aggregate."""
    message, reducer = aggregation.fold(dtype, is_weighted=is_weighted)

    def map_nodes(params: Params, nodes: Nodes, x: Any) -> Rows:
        if maps_first:
            own = nodes.mask_rows(x)
            own, sent = orders.map(nodes.implementation, orders.at_use(params, x), own)
        else:
            sent = features_of(x).rows("an aggregation")
            own = nodes.mask_rows(sent)
        return Rows(aggregation.send(nodes, sent), own=own)

    def update(params: Params, nodes: Nodes, rows: Rows, total: jax.Array) -> jax.Array:
        kernels = orders.at_use(params, rows.sent)
        aggregated = aggregation.finish(nodes, rows.sent, total)
        if maps_first:
            y = orders.combine(kernels, rows.own, aggregated)
        else:
            y = orders.map_after(nodes.implementation, kernels, rows.own, aggregated)
        return orders.finish(params, nodes, y)

    return ConvStages(
        map_nodes, message, reducer, update, edge="edge_weight" if is_weighted else None
    )


def gcn_stages(
    params: Params, dtype: Any, *, is_weighted: bool = False, add_self_loops: bool = True
) -> ConvStages:
    """The stages of `gcn_conv`, for dense rows."""
    aggregation = SymmetricSum(add_self_loops)
    first = narrows(aggregation, params["kernel"])
    return _stages(aggregation, _GCN, dtype, is_weighted=is_weighted, maps_first=first)


def sage_stages(
    params: Params, dtype: Any, *, is_weighted: bool = False, reduce: str = "mean"
) -> ConvStages:
    """The stages of `sage_conv`, for dense rows."""
    aggregation = NeighborReduction(reduce)
    first = narrows(aggregation, params["neighbor_kernel"])
    return _stages(aggregation, _SAGE, dtype, is_weighted=is_weighted, maps_first=first)


def _convolve(
    params: Params, neighborhood: Any, x: Any, aggregation: Any, orders: _Orders
) -> jax.Array:
    """Runs the convolution in stages; of split features and stored aggregates, by `sync`."""
    kernel, nodes = params[orders.kernels[0]], neighborhood.receivers
    of_senders, of_receivers = two_ends(x)
    known, features = stored(neighborhood, of_senders, aggregation), plain_of(of_senders)
    check_width(neighborhood.senders, features, kernel)
    if not aggregation.is_linear:
        features.check_dense(f"reduce={aggregation.reduce!r}")
    rows = neighborhood.senders.num_rows, nodes.num_rows
    # Receivers of their own are mapped apart, so that their number decides nothing.
    is_narrower = features.narrows(kernel, *(rows if of_receivers is None else ()))
    maps_first = aggregation.is_linear and is_narrower
    if known or features.is_split:
        kernels, by = orders.at_use(params, features), nodes.implementation
        after = functools.partial(orders.map_after, by)
        shares = Shares(neighborhood, features.plain, kernels, aggregation, after)
        if known:
            shares = dataclasses.replace(shares, aggregate=known.aggregate_alone())
        elif maps_first:
            before = functools.partial(orders.map, by)
            shares = dataclasses.replace(shares, before=before, after=orders.combine)
        return orders.finish(params, nodes, sync(shares))
    dtype, weighted = activation_type(features, kernel), neighborhood.edge_weight is not None
    # Weights make the sum of integers a floating one.
    given = features.astype(dtype) if weighted else features.plain
    if of_receivers is not None:
        check_width(nodes, of_receivers, kernel)
        given = given, of_receivers.astype(dtype) if weighted else of_receivers
    stages = _stages(aggregation, orders, dtype, is_weighted=weighted, maps_first=maps_first)
    return run_stages(stages, params, neighborhood, given)


def activation_type(x: Features, kernel: jax.Array) -> Any:
    """Returns the type of activations: that of x, promoted by W unless it is a floating type."""
    is_floating = jnp.issubdtype(x.dtype, jnp.floating)
    return x.dtype if is_floating else jnp.result_type(x.dtype, kernel)


def _with_bias(params: Params, nodes: Nodes, y: jax.Array) -> jax.Array:
    return add_bias(y, params.get("bias"))


def gcn_conv(
    params: Params,
    neighborhood: Graph | Neighborhood,
    x: Features | Pair,
    *,
    add_self_loops: bool = True,
) -> jax.Array:
    """y_i = sum_{j -> i} w_ij (x_j W) / sqrt(d_j d_i) + b,  d_i = sum_{j -> i} w_ij

    A node with d_i <= 0 receives b alone; see `SymmetricSum`.

    Args:
      params: "kernel" float [in_features, out_features], W; optionally "bias" [out_features], b.
      neighborhood: a graph, on one device; the shard, under `spmd`; or another neighbourhood.
      x: float [senders, in_features]; or a pair of the senders' and the receivers' rows, where
        these are different nodes; or this device's columns of all nodes.
      add_self_loops: whether a node without a self-loop counts as having one, of weight 1.

    Returns:
      float [receivers, out_features].

    Raises:
      ValueError: the graph has `edges` or `edge_type`, which would be ignored, or the shard has
        lost its weights.

    References:
      Kipf and Welling, "Semi-supervised classification with graph convolutional networks", 2017,
      equation 8.
    """
    aggregation = SymmetricSum(add_self_loops)
    neighborhood, x = on_device(neighborhood, x)
    check_edge_data(neighborhood, "gcn_conv", aggregation.edge_data)
    return _convolve(params, neighborhood, x, aggregation, _GCN)


_GCN = _Orders(
    kernels=("kernel",),
    map=lambda by, kernels, x: (None, product(by, x, kernels["kernel"])),
    combine=lambda kernels, own, aggregated: aggregated,
    map_after=lambda by, kernels, x, aggregated: product(by, aggregated, kernels["kernel"]),
    finish=_with_bias,
)


def sgc_conv(
    params: Params,
    shard: Graph | Shard,
    x: Features,
    *,
    steps: int = 2,
    add_self_loops: bool = True,
) -> jax.Array:
    """y = A^steps (x W) + b

    where A is the aggregation of `gcn_conv` (`SymmetricSum`).

    Args:
      params: "kernel" float [in_features, out_features], W; optionally "bias" [out_features], b.
      shard: a graph, on one device; or the shard, under `spmd`.
      x: float [rows, in_features]; or this device's columns of all nodes.
      steps: number of steps.
      add_self_loops: whether a node without a self-loop counts as having one, of weight 1.

    Returns:
      float [rows, out_features].

    Raises:
      ValueError: `steps` is out of range, senders and receivers are different nodes, or the graph
        has `edges` or `edge_type`, which would be ignored.

    References:
      Wu et al., "Simplifying graph convolutional networks", 2019, equation 8.
    """
    aggregation = SymmetricPower(add_self_loops, steps)
    shard, x = on_device(shard, x)
    check_edge_data(shard, "sgc_conv", aggregation.edge_data)
    check_steps(shard, "sgc_conv", steps)
    if stored(shard, x, aggregation):
        return _convolve(params, shard, x, aggregation, _GCN)
    y = linear(shard, plain_features(x), params["kernel"])
    y = appnp_propagate(shard, y, steps=steps, alpha=0.0, add_self_loops=add_self_loops)
    return add_bias(y, params.get("bias"))


def sage_conv(
    params: Params, neighborhood: Graph | Neighborhood, x: Features | Pair, *, reduce: str = "mean"
) -> jax.Array:
    """y_i = x_i W_self + reduce_{j -> i}(w_ij x_j) W_neighbor + b

    A mean divides by the number of edges; see `NeighborReduction`.

    Args:
      params: "self_kernel", "neighbor_kernel" float [in_features, out_features]; optionally "bias"
        [out_features], b.
      neighborhood: a graph, on one device; the shard, under `spmd`; or another neighbourhood.
      x: float [senders, in_features]; or a pair of the senders' and the receivers' rows, where
        these are different nodes; or this device's columns of all nodes.
      reduce: "sum", "mean", "max" or "min"; ties of the last two share the gradient.

    Returns:
      float [receivers, out_features].

    Raises:
      ValueError: the reduction is unknown, the graph has `edges` or `edge_type`, which would be
        ignored, or the shard has lost weights that x depends on.

    References:
      Hamilton et al., "Inductive representation learning on large graphs", 2017, algorithm 1.
    """
    check_reduction(reduce)
    neighborhood, x = on_device(neighborhood, x)
    aggregation = NeighborReduction(reduce)
    check_edge_data(neighborhood, "sage_conv", ("edge_weight",))
    joined = stored(neighborhood, x, aggregation, joined=True)
    if joined:
        kernel = jnp.concatenate((params["self_kernel"], params["neighbor_kernel"]))
        return linear(
            neighborhood.receivers, joined.aggregate, kernel, params.get("bias"), is_masked=True
        )
    return _convolve(params, neighborhood, x, aggregation, _SAGE)


_SAGE = _Orders(
    kernels=("neighbor_kernel", "self_kernel"),
    map=lambda by, kernels, x: products(by, x, kernels["self_kernel"], kernels["neighbor_kernel"]),
    combine=lambda kernels, own, aggregated: own + aggregated,
    map_after=lambda by, kernels, x, aggregated: (
        product(by, x, kernels["self_kernel"]) + product(by, aggregated, kernels["neighbor_kernel"])
    ),
    finish=_with_bias,
)


def gin_conv(params: Params, neighborhood: Graph | Neighborhood, x: Features | Pair) -> jax.Array:
    """y_i = relu(((1 + eps) x_i + sum_{j -> i} w_ij x_j) W_1 + b_1) W_2 + b_2

    Args:
      params: "eps" float []; "first_kernel" [in_features, hidden_features], W_1; "second_kernel"
        [hidden_features, out_features], W_2; optionally "first_bias" and "second_bias".
      neighborhood: a graph, on one device; the shard, under `spmd`; or another neighbourhood.
      x: float [senders, in_features]; or a pair of the senders' and the receivers' rows, where
        these are different nodes; or this device's columns of all nodes.

    Returns:
      float [receivers, out_features].

    Raises:
      ValueError: the graph has `edges` or `edge_type`, which would be ignored, or the shard has
        lost weights that x depends on.

    References:
      Xu et al., "How powerful are graph neural networks?", 2019, equation 4.1.
    """
    neighborhood, x = on_device(neighborhood, x)
    neighbors = NeighborReduction("sum")
    check_edge_data(neighborhood, "gin_conv", ("edge_weight",))
    if narrows(neighbors, params["first_kernel"]) and not plain_of(x).is_split:
        # A sum of mapped rows has fewer columns than the stored aggregate.
        x = plain_features(x)
    return _convolve(params, neighborhood, x, neighbors, _GIN)


def perceptron(params: Params, nodes: Nodes, hidden: jax.Array) -> jax.Array:
    """relu(hidden + b_1) W_2 + b_2"""
    hidden = add_bias(hidden, params.get("first_bias"))
    # With several parts the layer is recomputed from smaller residuals.
    alone = not isinstance(nodes, Shard) or nodes.num_parts == 1
    activation = keeping_output(jax.nn.relu) if alone else jax.nn.relu
    return linear(nodes, activation(hidden), params["second_kernel"], params.get("second_bias"))


def with_own(kernels: Params, own: jax.Array, total: jax.Array) -> jax.Array:
    return rounded((1 + kernels["eps"]) * own + total, own)


def _map_alone(by: str, kernels: Params, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    mapped = product(by, x, kernels["first_kernel"])
    return mapped, mapped


_GIN = _Orders(
    kernels=("first_kernel", "eps"),
    map=_map_alone,
    combine=with_own,
    map_after=lambda by, kernels, x, aggregated: product(
        by, with_own(kernels, x, aggregated), kernels["first_kernel"]
    ),
    finish=perceptron,
)
