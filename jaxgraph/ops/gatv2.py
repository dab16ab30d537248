"""The attention of GATv2, fused with the sum that it weights."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from jaxgraph.ops.arguments import (
    attention_reducer,
    check_block,
    check_rows,
    check_same_axes,
    check_slope,
)
from jaxgraph.ops.core.blocks import Block
from jaxgraph.ops.core.message_functions import gatv2_message
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.reducers import Softmax
from jaxgraph.ops.implementations import call_on_block, implementations_of, propagate_or_refuse
from jaxgraph.ops.self_check import check_gatv2_attention

__all__ = ["GATV2_ATTENTION", "gatv2_attention"]


def gatv2_attention(
    block: Block,
    sender: jax.Array,
    receiver: jax.Array,
    attention: jax.Array,
    *,
    negative_slope: float = 0.2,
    dropout: float = 0.0,
    key: jax.Array | None = None,
    implementation: str | None = None,
) -> jax.Array:
    """Sums the senders' values, weighted by dynamic attention.

    y_i = sum_j alpha_ij d_ij s_j,  alpha_ij = softmax_j(<a, leaky_relu(s_j + r_i)>),  per head

    No array of the size [edges, heads] is kept, forward or backward; dropout as in `gat_attention`.

    Args:
      block: the edges.
      sender: s [sender rows, heads, features], floating.
      receiver: r [receiver rows, heads, features].
      attention: a [heads, features].
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
      Brody, Alon and Yahav, "How attentive are graph attention networks?", 2022, equation 7.
    """
    check_block(block)
    check_rows(block, "sender", "sender", sender, "heads, features")
    check_rows(block, "receiver", "receiver", receiver, "heads, features")
    check_same_axes("sender", sender, "receiver", receiver)
    shape, dtype = jnp.shape(attention), jnp.result_type(attention)
    if shape != sender.shape[1:] or not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(
            f"attention is {dtype} {shape}; expected floating numbers [heads, features], "
            f"{sender.shape[1:]}"
        )
    check_slope(negative_slope)
    reducer = attention_reducer(sender.shape[1], dropout, key)
    slope = float(negative_slope)
    return call_on_block(
        GATV2_ATTENTION, implementation, block, sender, receiver, attention, slope, reducer
    )


@partial(jax.jit, static_argnames="negative_slope")
def _attend(
    block: Block,
    sender: jax.Array,
    receiver: jax.Array,
    attention: jax.Array,
    negative_slope: float,
    reducer: Softmax,
) -> jax.Array:
    inputs = Inputs(attention, sender, receiver, ())
    return propagate_or_refuse(block, gatv2_message(negative_slope), reducer, inputs)


GATV2_ATTENTION = implementations_of("gatv2_attention", _attend, check_gatv2_attention)
