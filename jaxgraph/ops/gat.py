"""The attention of GAT, fused with the sum that it weights."""

from __future__ import annotations

from typing import Any

import jax

from jaxgraph.ops.arguments import attention_reducer, check_neighborhood, check_rows, check_slope
from jaxgraph.ops.core.message_functions import GatMessage
from jaxgraph.ops.core.messages import Inputs, MessageFn
from jaxgraph.ops.core.propagation import Neighborhood
from jaxgraph.ops.core.reducers import Softmax
from jaxgraph.ops.dispatch import reduce_by


def gat_attention(
    neighborhood: Neighborhood,
    values: jax.Array,
    sender_logits: jax.Array,
    receiver_logits: jax.Array,
    *,
    negative_slope: float = 0.2,
    dropout: float = 0.0,
    key: jax.Array | None = None,
    self_loops: bool = False,
    mean_heads: bool = False,
    implementation: str | None = None,
) -> jax.Array:
    """Sums the senders' values, weighted by additive attention.

    y_i = sum_j alpha_ij d_ij v_j,  alpha_ij = softmax_j(leaky_relu(l_j + r_i)),  per head

    Neither forward nor backward stores an array of size [edges, heads]: the maximum is a running
    one, and the backward recomputes alpha from it and the normaliser. d_ij is 0 with probability
    `dropout` and else 1 / (1 - dropout), drawn from (key, receiver id, sender id, repetition,
    head).

    Args:
      neighborhood: the edges: a shard under `jaxgraph.parallel.spmd`.
      values: v [sender rows, heads, features], floating.
      sender_logits: l [sender rows, heads].
      receiver_logits: r [receiver rows, heads].
      negative_slope: slope of the leaky ReLU.
      dropout: probability with which a coefficient is dropped, in [0, 1).
      key: typed random key, needed where dropout > 0.
      self_loops: whether nodes without an edge to themselves attend to themselves.
      mean_heads: whether the mean of the heads is taken.
      implementation: as for `jaxgraph.ops.aggregate`.

    Returns:
      [receiver rows, heads, features], or [receiver rows, features] with `mean_heads`; 0 where no
      edge enters.

    Raises:
      ValueError: an array has the wrong shape or type, dropout or key do not fit, or a name is
        unknown.
      NotImplementedError: the named implementation cannot compute this.

    References:
      Velickovic et al., "Graph attention networks", 2018, equations 3 and 6; SAR, section 3.3.
    """
    check_neighborhood(neighborhood)
    check_rows(neighborhood, "sender", "values", values, "heads, features")
    check_rows(neighborhood, "sender", "sender_logits", sender_logits, "heads")
    check_rows(neighborhood, "receiver", "receiver_logits", receiver_logits, "heads")
    heads = {values.shape[1], sender_logits.shape[1], receiver_logits.shape[1]}
    if len(heads) > 1:
        raise ValueError(
            f"values {values.shape}, sender_logits {sender_logits.shape} and receiver_logits "
            f"{receiver_logits.shape} differ in the number of heads, their second axis"
        )
    options = {"dropout": dropout, "key": key, "mean_heads": mean_heads}
    reduction = gat_reduction(values.shape[1], negative_slope, **options)
    inputs = Inputs((), (values, sender_logits), receiver_logits, ())
    return reduce_by(
        implementation, "gat_attention", neighborhood, *reduction, inputs, self_loops=self_loops
    )


def gat_reduction(heads: int, negative_slope: float, **options: Any) -> tuple[MessageFn, Softmax]:
    """The message and reducer of `gat_attention`, with those `options` of `attention_reducer`."""
    check_slope(negative_slope)
    return GatMessage(float(negative_slope)), attention_reducer(heads, **options)
