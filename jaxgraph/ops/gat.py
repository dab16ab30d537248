"""The attention of GAT, fused with the sum that it weights."""

from __future__ import annotations

from functools import partial

import jax

from jaxgraph.ops.arguments import attention_reducer, check_block, check_rows, check_slope
from jaxgraph.ops.core.blocks import Block
from jaxgraph.ops.core.message_functions import gat_message
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.reducers import Softmax
from jaxgraph.ops.implementations import call_on_block, implementations_of, propagate_or_refuse
from jaxgraph.ops.self_check import check_gat_attention

__all__ = ["GAT_ATTENTION", "gat_attention"]


def gat_attention(
    block: Block,
    values: jax.Array,
    sender_logits: jax.Array,
    receiver_logits: jax.Array,
    *,
    negative_slope: float = 0.2,
    dropout: float = 0.0,
    key: jax.Array | None = None,
    implementation: str | None = None,
) -> jax.Array:
    """Sums the senders' values, weighted by additive attention.

    y_i = sum_j alpha_ij d_ij v_j,  alpha_ij = softmax_j(leaky_relu(l_j + r_i)),  per head

    No array of the size [edges, heads] is kept, forward or backward: the maximum runs with the
    edges, and the backward recomputes alpha from it and the normaliser. d_ij is 0 with probability
    `dropout` and else 1 / (1 - dropout), drawn from (key, receiver id, sender id, repetition,
    head).

    Args:
      block: the edges.
      values: v [sender rows, heads, features], floating.
      sender_logits: l [sender rows, heads].
      receiver_logits: r [receiver rows, heads].
      negative_slope: of the leaky ReLU.
      dropout: probability with which a coefficient is dropped, in [0, 1).
      key: typed random key, needed where dropout > 0.
      implementation: "mosaic_gpu", "cpu" or "xla"; None takes the one that the graph was
        placed for, or the next that can.

    Returns:
      [receiver rows, heads, features], 0 where no edge enters.

    Raises:
      ValueError: an array has the wrong shape or type, dropout or key do not fit, or a name is
        unknown.
      NotImplementedError: the implementation named cannot compute this.

    References:
      Velickovic et al., "Graph attention networks", 2018, equations 3 and 6; SAR, section 3.3.
    """
    check_block(block)
    check_rows(block, "sender", "values", values, "heads, features")
    check_rows(block, "sender", "sender_logits", sender_logits, "heads")
    check_rows(block, "receiver", "receiver_logits", receiver_logits, "heads")
    heads = {values.shape[1], sender_logits.shape[1], receiver_logits.shape[1]}
    if len(heads) > 1:
        raise ValueError(
            f"values {values.shape}, sender_logits {sender_logits.shape} and receiver_logits "
            f"{receiver_logits.shape} differ in the number of heads, their second axis"
        )
    check_slope(negative_slope)
    reducer = attention_reducer(values.shape[1], dropout, key)
    slope = float(negative_slope)
    return call_on_block(
        GAT_ATTENTION, implementation, block, values, sender_logits, receiver_logits, slope, reducer
    )


@partial(jax.jit, static_argnames="negative_slope")
def _attend(
    block: Block,
    values: jax.Array,
    sender_logits: jax.Array,
    receiver_logits: jax.Array,
    negative_slope: float,
    reducer: Softmax,
) -> jax.Array:
    inputs = Inputs((), (values, sender_logits), receiver_logits, ())
    return propagate_or_refuse(block, gat_message(negative_slope), reducer, inputs)


GAT_ATTENTION = implementations_of("gat_attention", _attend, check_gat_attention)
