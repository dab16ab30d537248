"""The graph transformer's convolution: dot-product attention with a map of the node's own row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from jaxgraph.layers.dense import linear, rounded
from jaxgraph.layers.edge_data import check_edge_data
from jaxgraph.ops.core.precision import to_accumulation
from jaxgraph.ops.dot import dot_reduction
from jaxgraph.parallel.conv_stages import ConvStages, Pair, Rows, run_stages
from jaxgraph.parallel.feature_protocol import Features, at_use
from jaxgraph.parallel.neighborhood import Neighborhood, Nodes
from jaxgraph.parallel.whole_graph import on_device

if TYPE_CHECKING:
    from jaxgraph.graph import Graph

Params = Mapping[str, jax.Array]


def transformer_conv(
    params: Params,
    neighborhood: Graph | Neighborhood,
    x: Features | Pair,
    *,
    num_heads: int = 1,
    concat: bool = True,
    dropout: float = 0.0,
    key: jax.Array | None = None,
) -> jax.Array:
    """y_i = r_i + m_i,  m_i = sum_{j -> i} alpha_ij v_j,  alpha_ij = softmax_j(<q_i, k_j> f^-1/2)

    for every head of f features, with q = x W_q + b_q, k = x W_k, v = x W_v + b_v and
    r = x W_r + b_r. A bias of k would change no alpha. With a gate, y_i = beta_i r_i +
    (1 - beta_i) m_i and beta_i = sigmoid(<g_1, m_i> + <g_2, r_i> + <g_3, m_i - r_i>).

    Args:
      params: "query_kernel", W_q, "key_kernel", W_k, and "value_kernel", W_v, float [in_features,
        heads * f]; optionally "query_bias" and "value_bias" [heads * f]; "skip_kernel", W_r,
        [in_features, width], without which r is 0, "skip_bias" [width], and "gate", g, [3, width];
        width is heads * f with `concat`, else f.
      neighborhood: a graph, on one device; the shard, under `spmd`; or another neighbourhood.
      x: float [senders, in_features]; or a pair of the senders' and the receivers' rows, where
        these are different nodes; or this device's columns of all nodes.
      num_heads: number of attention heads, a divisor of the kernels' columns.
      concat: whether heads are concatenated; otherwise they are averaged.
      dropout: probability of dropping a coefficient alpha_ij, by edge and head.
      key: scalar random key, needed where `dropout` is not 0.

    Returns:
      float [receivers, width].

    Raises:
      ValueError: heads do not divide the columns, a gate has no "skip_kernel", dropout has no key,
        or the graph has edge data, which would be ignored.

    References:
      Shi et al., "Masked label prediction: unified message passing model for semi-supervised
      classification", 2021, equations 1 to 5.
    """
    neighborhood, x = on_device(neighborhood, x)
    check_edge_data(neighborhood, "transformer_conv")
    stages = transformer_stages(
        params, num_heads=num_heads, concat=concat, dropout=dropout, key=key
    )
    return run_stages(stages, params, neighborhood, x)


def transformer_stages(
    params: Params,
    *,
    num_heads: int = 1,
    concat: bool = True,
    dropout: float = 0.0,
    key: jax.Array | None = None,
) -> ConvStages:
    """The stages of `transformer_conv`."""
    columns = params["query_kernel"].shape[1]
    if num_heads < 1 or columns % num_heads:
        raise ValueError(
            f"num_heads is {num_heads}, and query_kernel has {columns} columns; expected a number "
            "of heads that divides them"
        )
    if "gate" in params and "skip_kernel" not in params:
        raise ValueError(
            "params have a gate and no skip_kernel; a gate weighs the map of the node's own row "
            "against the attention: pass both, or neither"
        )
    width = columns // num_heads
    mean_heads = not concat and num_heads > 1
    message, reducer = dot_reduction(
        num_heads, width, scale=None, dropout=dropout, key=key, mean_heads=mean_heads
    )

    def map_nodes(params: Params, nodes: Nodes, x: Features) -> Rows:
        def mapped(name: str) -> jax.Array:
            return linear(nodes, x, params[f"{name}_kernel"], params.get(f"{name}_bias"))

        queries, keys, values = (
            mapped(name).reshape(-1, num_heads, width) for name in ("query", "key", "value")
        )
        own = mapped("skip") if "skip_kernel" in params else ()
        return Rows((keys, values), queries, own)

    return ConvStages(map_nodes, message, reducer, _update)


def _update(params: Params, nodes: Nodes, rows: Rows, y: jax.Array) -> jax.Array:
    y = y.reshape(y.shape[0], -1)
    if "skip_kernel" not in params:
        return y
    if "gate" not in params:
        return y + rows.own
    attended, own = to_accumulation(y), to_accumulation(rows.own)
    gate = to_accumulation(at_use(params["gate"], y))
    terms = attended * gate[0] + own * gate[1] + (attended - own) * gate[2]
    beta = jax.nn.sigmoid(jnp.sum(terms, -1, keepdims=True))
    return rounded(beta * own + (1 - beta) * attended, y)
