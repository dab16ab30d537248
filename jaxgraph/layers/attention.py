"""Graph convolutions that weigh neighbours by attention: GAT and GATv2."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxgraph.layers.dense import add_bias, check_width, linear
from jaxgraph.layers.edge_data import check_edge_features
from jaxgraph.layers.edge_messages import EdgeGatMessage, EdgeGatV2Message
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.row_maps import map_rows, map_rows_twice
from jaxgraph.ops.gat import gat_reduction
from jaxgraph.ops.gatv2 import gatv2_reduction
from jaxgraph.parallel import Shard
from jaxgraph.parallel.conv_stages import ConvStages, Pair, Rows, run_stages
from jaxgraph.parallel.feature_protocol import Features, at_use, features_of
from jaxgraph.parallel.neighborhood import Neighborhood, Nodes, two_ends
from jaxgraph.parallel.propagate import aggregate_derived
from jaxgraph.parallel.whole_graph import on_device

if TYPE_CHECKING:
    from jaxgraph.graph import Graph

Params = Mapping[str, jax.Array]


def gat_conv(
    params: Params,
    neighborhood: Graph | Neighborhood,
    x: Features | Pair,
    *,
    concat: bool = True,
    negative_slope: float = 0.2,
    add_self_loops: bool = True,
    dropout: float = 0.0,
    key: jax.Array | None = None,
) -> jax.Array:
    """y_i = sum_{j -> i} alpha_ij z_j + b,  alpha_ij = softmax_j(leaky_relu(<a_s,z_j> + <a_r,z_i>))

    for every head, with z = x W. A message reads z_j and one number per head from the sender, and
    one number per head from the receiver. Edge features add <a_e, e_ij W_e> inside the leaky ReLU;
    an added self-loop has the mean of the features of the node's incoming edges.

    Args:
      params: "kernel" float [in_features, heads * out_features], W; "attention_sender", a_s, and
        "attention_receiver", a_r, [heads, out_features]; optionally "bias", b, [heads *
        out_features] with `concat`, else [out_features]; for a graph with `edges`, "edge_kernel"
        [edge_features, heads * out_features], W_e, and "attention_edge", a_e, as a_s.
      neighborhood: a graph, on one device; the shard, under `spmd`; or another neighbourhood.
      x: float [senders, in_features]; or a pair of the senders' and the receivers' rows, where
        these are different nodes; or this device's columns of all nodes.
      concat: whether heads are concatenated; otherwise they are averaged.
      negative_slope: of the leaky ReLU.
      add_self_loops: whether a node without a self-loop attends to itself as well.
      dropout: probability of dropping a coefficient alpha_ij, by edge and head.
      key: scalar random key, needed where `dropout` is not 0.

    Returns:
      float [receivers, heads * out_features] or [receivers, out_features].

    Raises:
      ValueError: dropout has no key, the graph has edge data that would be ignored, or its `edges`
        do not fit W_e.

    References:
      Veličković et al., "Graph attention networks", 2018, equations 1 to 6.
    """
    neighborhood, x = on_device(neighborhood, x)
    check_edge_features(neighborhood, "gat_conv", params.get("edge_kernel"))
    stages = gat_stages(
        params,
        concat=concat,
        negative_slope=negative_slope,
        add_self_loops=add_self_loops,
        dropout=dropout,
        key=key,
    )
    return _attend(stages, params, neighborhood, x, dataclasses.replace(stages, map=_map_gat_late))


def gat_stages(
    params: Params,
    *,
    concat: bool = True,
    negative_slope: float = 0.2,
    add_self_loops: bool = True,
    dropout: float = 0.0,
    key: jax.Array | None = None,
) -> ConvStages:
    """The stages of `gat_conv`."""
    heads, _ = params["attention_sender"].shape
    options = {"dropout": dropout, "key": key, "mean_heads": not concat and heads > 1}
    message, reducer = gat_reduction(heads, negative_slope=negative_slope, **options)
    stages = ConvStages(_map_gat, message, reducer, _update, self_loops=add_self_loops)
    if "edge_kernel" not in params:
        return stages
    return dataclasses.replace(
        stages,
        message=EdgeGatMessage(float(negative_slope)),
        message_params=lambda params, sent: at_use(_edge_vectors(params), sent[0]),
        edge="edges",
    )


def _attend(
    stages: ConvStages,
    params: Params,
    neighborhood: Any,
    given: Features | Pair,
    late_stages: ConvStages,
) -> jax.Array:
    """Runs the stages; or those for features whose rows the backward recomputes."""
    x = features_of(two_ends(given)[0]).derivation
    if x is None:
        return run_stages(stages, params, neighborhood, given)
    stages = late_stages
    if stages.edge is not None:
        raise ValueError(
            "DerivedFeatures go with layers without edge features; pass this one the features"
        )

    saved, late = ((), x.arguments) if x.waits else (x.arguments, ())

    def made(given: tuple[Shard, tuple[Any, ...]], late: tuple[Params, tuple[Any, ...]]) -> Inputs:
        shard, saved = given
        params, waiting = late
        rows = stages.map(params, shard, x.function(shard, *saved, *waiting))
        received = jax.tree.map(neighborhood.own_rows, rows.received)
        return stages.inputs(params, rows.sent, received, ())

    y = aggregate_derived(
        neighborhood,
        stages.message,
        stages.reducer,
        made,
        (x.shard, saved),
        (params, late),
        keep=x.keeps_products,
        self_loops=stages.self_loops,
    )
    return stages.update(params, neighborhood.receivers, Rows(()), y)


def _map_gat(params: Params, nodes: Nodes, x: Features) -> Rows:
    flat = linear(nodes, x, params["kernel"])
    scores = map_rows(flat, at_use(_score_vectors(params), flat), nodes.implementation)
    return _rows_of_gat(params, flat, scores)


def _map_gat_late(params: Params, nodes: Any, x: jax.Array) -> Rows:
    """Maps features that the backward recomputes."""
    vectors, by = _score_vectors(params), nodes.implementation
    check_width(nodes, x, params["kernel"])
    # Scores are a product of x instead of z: no gradient needs z after that of the messages.
    few = map_rows(params["kernel"], vectors, by)
    kernel, few = at_use(params["kernel"], x), at_use(few, x)
    flat, scores = map_rows_twice(nodes.mask_rows(x), kernel, few, by)
    return _rows_of_gat(params, flat, scores)


def _edge_vectors(params: Params) -> jax.Array:
    """W_e a_e [edge_features, heads], the map of an edge's features to its scores."""
    return params["edge_kernel"] @ _per_head(params["attention_edge"])


def _score_vectors(params: Params) -> jax.Array:
    """[heads * features, 2 heads]: both maps to scores, joined to take one product."""
    both = [_per_head(params[f"attention_{end}"]) for end in ("sender", "receiver")]
    return jnp.concatenate(both, 1)


def _rows_of_gat(params: Params, flat: jax.Array, scores: jax.Array) -> Rows:
    heads, width = params["attention_sender"].shape
    return Rows((flat.reshape(-1, heads, width), scores[:, :heads]), scores[:, heads:])


def _per_head(vectors: jax.Array) -> jax.Array:
    """[heads * features, heads]: the map that takes the inner product of each head with its vector.

    A matrix product needs no other array of all rows than its result.
    """
    heads, width = vectors.shape
    columns = jnp.eye(heads, dtype=vectors.dtype)[:, None, :] * vectors[:, :, None]
    return columns.reshape(heads * width, heads)


def gatv2_conv(
    params: Params,
    neighborhood: Graph | Neighborhood,
    x: Features | Pair,
    *,
    concat: bool = True,
    negative_slope: float = 0.2,
    add_self_loops: bool = True,
    dropout: float = 0.0,
    key: jax.Array | None = None,
) -> jax.Array:
    """y_i = sum_{j -> i} alpha_ij s_j + b,  alpha_ij = softmax_j(<a, leaky_relu(s_j + r_i)>)

    for every head, with s = x W_s + b_s and r = x W_r + b_r. Edge features add e_ij W_e inside the
    leaky ReLU; an added self-loop has the mean of the features of the node's incoming edges.

    Args:
      params: "sender_kernel", W_s, and "receiver_kernel", W_r, float [in_features, heads *
        out_features]; "attention", a, [heads, out_features]; optionally "sender_bias" and
        "receiver_bias" [heads * out_features], and "bias", b, [heads * out_features] with `concat`,
        else [out_features]; for a graph with `edges`, "edge_kernel" [edge_features, heads *
        out_features], W_e.
      neighborhood: a graph, on one device; the shard, under `spmd`; or another neighbourhood.
      x: float [senders, in_features]; or a pair of the senders' and the receivers' rows, where
        these are different nodes; or this device's columns of all nodes.
      concat, negative_slope, add_self_loops, dropout, key: as for `gat_conv`.

    Returns:
      float [receivers, heads * out_features] or [receivers, out_features].

    Raises:
      ValueError: dropout has no key, the graph has edge data that would be ignored, or its `edges`
        do not fit W_e.

    References:
      Brody et al., "How attentive are graph attention networks?", 2022, equation 7.
    """
    neighborhood, x = on_device(neighborhood, x)
    check_edge_features(neighborhood, "gatv2_conv", params.get("edge_kernel"))
    stages = gatv2_stages(
        params,
        concat=concat,
        negative_slope=negative_slope,
        add_self_loops=add_self_loops,
        dropout=dropout,
        key=key,
    )
    return _attend(stages, params, neighborhood, x, stages)


def gatv2_stages(
    params: Params,
    *,
    concat: bool = True,
    negative_slope: float = 0.2,
    add_self_loops: bool = True,
    dropout: float = 0.0,
    key: jax.Array | None = None,
) -> ConvStages:
    """The stages of `gatv2_conv`."""
    heads, _ = params["attention"].shape
    options = {"dropout": dropout, "key": key, "mean_heads": not concat and heads > 1}
    message, reducer = gatv2_reduction(heads, negative_slope=negative_slope, **options)
    stages = ConvStages(
        _map_gatv2,
        message,
        reducer,
        _update,
        message_params=lambda params, sent: at_use(params["attention"], sent),
        self_loops=add_self_loops,
    )
    if "edge_kernel" not in params:
        return stages
    return dataclasses.replace(
        stages,
        message=EdgeGatV2Message(float(negative_slope)),
        message_params=_gatv2_edge_params,
        edge="edges",
    )


def _gatv2_edge_params(params: Params, sent: jax.Array) -> tuple[jax.Array, jax.Array]:
    """a [heads, out_features], and W_e [edge_features, heads, out_features]."""
    kernel = params["edge_kernel"].reshape(-1, *params["attention"].shape)
    return at_use(params["attention"], sent), at_use(kernel, sent)


def _map_gatv2(params: Params, nodes: Nodes, x: Features) -> Rows:
    heads, width = params["attention"].shape

    def projected(end: str) -> jax.Array:
        flat = linear(nodes, x, params[f"{end}_kernel"], params.get(f"{end}_bias"))
        return flat.reshape(-1, heads, width)

    return Rows(projected("sender"), projected("receiver"))


def _update(params: Params, nodes: Nodes, rows: Rows, y: jax.Array) -> jax.Array:
    return add_bias(y.reshape(y.shape[0], -1), params.get("bias"))
