"""GIN with messages that read edge features."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxgraph.layers.convolutions import activation_type, perceptron, with_own
from jaxgraph.layers.dense import check_width, product
from jaxgraph.layers.edge_data import check_edge_features
from jaxgraph.layers.edge_messages import gine_message
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.reducers import Sum
from jaxgraph.parallel.conv_stages import ConvStages, Pair, Rows, run_stages
from jaxgraph.parallel.feature_protocol import Features, at_use, features_of, plain_features
from jaxgraph.parallel.neighborhood import Neighborhood, Nodes, two_ends
from jaxgraph.parallel.whole_graph import on_device

if TYPE_CHECKING:
    from jaxgraph.graph import Graph

Params = Mapping[str, jax.Array]


def gine_conv(params: Params, neighborhood: Graph | Neighborhood, x: Features | Pair) -> jax.Array:
    """y_i = relu(((1 + eps) x_i + sum_{j -> i} relu(x_j + e_ij W_e + b_e)) W_1 + b_1) W_2 + b_2

    Args:
      params: those of `gin_conv`; "edge_kernel" float [edge_features, in_features], W_e; optionally
        "edge_bias" [in_features], b_e.
      neighborhood: a graph, on one device; the shard, under `spmd`; or another neighbourhood.
      x: float [senders, in_features]; or a pair of the senders' and the receivers' rows, where
        these are different nodes; or this device's columns of all nodes.

    Returns:
      float [receivers, out_features].

    Raises:
      ValueError: the graph has no `edges`, or of another width, or it has other edge data, which
        would be ignored.

    References:
      Hu et al., "Strategies for pre-training graph neural networks", 2020, section 5.1.
    """
    neighborhood, x = on_device(neighborhood, x)
    check_edge_features(neighborhood, "gine_conv", params["edge_kernel"])
    x = plain_features(x)
    of_senders, of_receivers = two_ends(x)
    features = features_of(of_senders)
    features.check_dense("gine_conv")
    check_width(neighborhood.senders, features, params["first_kernel"])
    if of_receivers is not None:
        check_width(neighborhood.receivers, of_receivers, params["first_kernel"])
    if features.is_split:
        return _of_columns(params, neighborhood, features)
    dtype = activation_type(features, params["first_kernel"])
    return run_stages(gine_stages(params, dtype), params, neighborhood, x)


def gine_stages(params: Params, dtype: Any) -> ConvStages:
    """The stages of `gine_conv`."""
    return ConvStages(
        partial(_map, dtype), gine_message, Sum(dtype), _update, _of_messages, edge="edges"
    )


def _map(dtype: Any, params: Params, nodes: Nodes, x: Features) -> Rows:
    rows = nodes.mask_rows(features_of(x).rows("gine_conv").astype(dtype))
    return Rows(rows, own=rows)


def _update(params: Params, nodes: Nodes, rows: Rows, total: jax.Array) -> jax.Array:
    kernel = at_use(params["first_kernel"], rows.own)
    mixed = with_own(params, rows.own, total)
    return perceptron(params, nodes, product(nodes.implementation, mixed, kernel))


def _of_messages(params: Params, sent: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    bias = params.get("edge_bias")
    return at_use(params["edge_kernel"], sent), None if bias is None else at_use(bias, sent)


def _of_columns(params: Params, neighborhood: Neighborhood, x: Any) -> jax.Array:
    """Sums this device's columns of messages: each reads the same column of x alone."""
    like = jnp.zeros((), x.dtype)
    kernel, bias = _of_messages(params, like)
    kernels = {
        "first_kernel": x.rows_of(at_use(params["first_kernel"], like)),
        "edge_kernel": x.rows_of(kernel.T).T,
        "eps": params["eps"],
    }
    if bias is not None:
        kernels["edge_bias"] = x.rows_of(bias)

    def share(kernels: Params, rows: jax.Array, nodes: Any) -> jax.Array:
        messages = kernels["edge_kernel"], kernels.get("edge_bias")
        total = nodes.propagate(
            gine_message, Sum(rows.dtype), Inputs(messages, rows, (), nodes.edges)
        )
        mixed = with_own(kernels, nodes.own_rows(rows), total)
        return product(nodes.implementation, mixed, kernels["first_kernel"])

    y = x.sum_of_shares(neighborhood, share, kernels)
    return perceptron(params, neighborhood.receivers, y)
