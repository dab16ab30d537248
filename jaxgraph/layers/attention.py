"""Graph convolutions that weigh neighbours by attention: GAT and GATv2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.layers.aggregated import Features
from jaxgraph.layers.dense import add_bias, at_use, check_width, linear
from jaxgraph.layers.derived import DerivedFeatures
from jaxgraph.layers.edge_data import check_edge_data
from jaxgraph.ops.core.messages import Inputs, MessageFn
from jaxgraph.ops.core.reducers import Softmax
from jaxgraph.ops.core.row_maps import map_rows, map_rows_twice
from jaxgraph.ops.gat import gat_reduction
from jaxgraph.ops.gatv2 import gatv2_reduction
from jaxgraph.parallel import Shard
from jaxgraph.parallel.propagate import aggregate_derived

__all__ = ["gat_conv", "gatv2_conv"]

Params = Mapping[str, jax.Array]


def gat_conv(
    params: Params,
    shard: Shard,
    x: Features | DerivedFeatures,
    *,
    concat: bool = True,
    negative_slope: float = 0.2,
    add_self_loops: bool = True,
    dropout: float = 0.0,
    key: jax.Array | None = None,
) -> jax.Array:
    """y_i = sum_{j -> i} alpha_ij z_j + b,  alpha_ij = softmax_j(leaky_relu(<a_s,z_j> + <a_r,z_i>))

    for every head, with z = x W. An edge carries z_j and one number per head; of the receiver it
    needs one number per head.

    Args:
      params: "kernel" float [in_features, heads * out_features], W; "attention_sender", a_s, and
        "attention_receiver", a_r, [heads, out_features]; optionally "bias", b, [heads *
        out_features] with `concat`, else [out_features].
      shard: the shard, under `spmd`.
      x: float [rows, in_features], or this device's columns of all nodes.
      concat: whether heads are joined; else their mean is taken.
      negative_slope: of the leaky ReLU.
      add_self_loops: whether a node without an edge to itself attends to itself all the same.
      dropout: probability of dropping a coefficient alpha_ij, by edge and head.
      key: scalar random key, needed where `dropout` is not 0.

    Returns:
      float [rows, heads * out_features] or [rows, out_features].

    Raises:
      ValueError: dropout without a key, or the graph has edge data, which would be ignored.

    References:
      Veličković et al., "Graph attention networks", 2018, equations 1 to 6.
    """
    check_edge_data(shard, "gat_conv")
    heads, _ = params["attention_sender"].shape
    options = {"dropout": dropout, "key": key, "mean_heads": not concat and heads > 1}
    message, reducer = gat_reduction(heads, negative_slope=negative_slope, **options)
    make = partial(_gat_inputs, is_derived=isinstance(x, DerivedFeatures))
    y = _attend(shard, message, reducer, make, params, x, add_self_loops)
    return _as_rows(params, y)


def _attend(
    shard: Shard,
    message: MessageFn,
    reducer: Softmax,
    make: Callable[[Params, Shard, Features], Inputs],
    params: Params,
    x: Features | DerivedFeatures,
    self_loops: bool,
) -> jax.Array:
    """The messages that are made from `make(params, shard, x)`, reduced."""
    if not isinstance(x, DerivedFeatures):
        inputs = make(params, shard, x)
        return shard.propagate(message, reducer, inputs, self_loops=self_loops)

    def made(shard: Shard, late: tuple[Params, tuple[Any, ...]]) -> Inputs:
        params, arguments = late
        return make(params, shard, x.function(shard, *arguments))

    return aggregate_derived(
        shard,
        message,
        reducer,
        made,
        x.shard,
        (params, x.arguments),
        keep=x.keeps_products,
        self_loops=self_loops,
    )


def _gat_inputs(params: Params, shard: Shard, x: Features, *, is_derived: bool) -> Inputs:
    heads, width = params["attention_sender"].shape
    # As one product, whose gradient is one as well.
    both = [_per_head(params[f"attention_{end}"]) for end in ("sender", "receiver")]
    vectors, by = jnp.concatenate(both, 1), shard.incoming.implementation
    if is_derived:
        assert isinstance(x, jax.Array)
        check_width(shard, x, params["kernel"])
        # Where z is no factor of a product, no gradient needs it once messages have theirs.
        few = map_rows(params["kernel"], vectors, by)
        kernel, few = at_use(params["kernel"], x), at_use(few, x)
        # Features are kept; and in parts XLA would hold copies of x that take more than they save.
        ends_x = x is not shard.nodes and shard.manifest.num_parts == 1
        flat, scores = map_rows_twice(shard.mask_rows(x), kernel, few, by, ends_x=ends_x)
    else:
        flat = linear(shard, x, params["kernel"])
        scores = map_rows(flat, at_use(vectors, flat), by)
    sender_score, receiver_score = scores[:, :heads], scores[:, heads:]
    return Inputs((), (flat.reshape(-1, heads, width), sender_score), receiver_score, ())


def _per_head(vectors: jax.Array) -> jax.Array:
    """[heads * features, heads]: the map that takes the inner product of each head with its vector.

    As a product of matrices nothing of the size of all rows is made beside the result.
    """
    heads, width = vectors.shape
    columns = jnp.eye(heads, dtype=vectors.dtype)[:, None, :] * vectors[:, :, None]
    return columns.reshape(heads * width, heads)


def gatv2_conv(
    params: Params,
    shard: Shard,
    x: Features | DerivedFeatures,
    *,
    concat: bool = True,
    negative_slope: float = 0.2,
    add_self_loops: bool = True,
    dropout: float = 0.0,
    key: jax.Array | None = None,
) -> jax.Array:
    """y_i = sum_{j -> i} alpha_ij s_j + b,  alpha_ij = softmax_j(<a, leaky_relu(s_j + r_i)>)

    for every head, with s = x W_s + b_s and r = x W_r + b_r.

    Args:
      params: "sender_kernel", W_s, and "receiver_kernel", W_r, float [in_features, heads *
        out_features]; "attention", a, [heads, out_features]; optionally "sender_bias" and
        "receiver_bias" [heads * out_features], and "bias", b, [heads * out_features] with `concat`,
        else [out_features].
      shard: the shard, under `spmd`.
      x: float [rows, in_features], or this device's columns of all nodes.
      concat, negative_slope, add_self_loops, dropout, key: as for `gat_conv`.

    Returns:
      float [rows, heads * out_features] or [rows, out_features].

    Raises:
      ValueError: dropout without a key, or the graph has edge data, which would be ignored.

    References:
      Brody et al., "How attentive are graph attention networks?", 2022, equation 7.
    """
    check_edge_data(shard, "gatv2_conv")
    heads, _ = params["attention"].shape
    options = {"dropout": dropout, "key": key, "mean_heads": not concat and heads > 1}
    message, reducer = gatv2_reduction(heads, negative_slope=negative_slope, **options)
    y = _attend(shard, message, reducer, _gatv2_inputs, params, x, add_self_loops)
    return _as_rows(params, y)


def _gatv2_inputs(params: Params, shard: Shard, x: Features) -> Inputs:
    heads, width = params["attention"].shape

    def projected(end: str) -> jax.Array:
        flat = linear(shard, x, params[f"{end}_kernel"], params.get(f"{end}_bias"))
        return flat.reshape(-1, heads, width)

    sender, receiver = projected("sender"), projected("receiver")
    return Inputs(at_use(params["attention"], sender), sender, receiver, ())


def _as_rows(params: Params, y: jax.Array) -> jax.Array:
    return add_bias(y.reshape(y.shape[0], -1), params.get("bias"))
