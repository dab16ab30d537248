"""The dot-product attention of graph transformers, fused with the sum that it weights."""

from __future__ import annotations

import math
from functools import partial
from numbers import Real

import jax

from jaxgraph.ops.arguments import attention_reducer, check_block, check_rows, check_same_axes
from jaxgraph.ops.core.blocks import Block
from jaxgraph.ops.core.message_functions import dot_message
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.reducers import Softmax
from jaxgraph.ops.implementations import call_on_block, implementations_of, propagate_or_refuse
from jaxgraph.ops.self_check import check_dot_attention

__all__ = ["DOT_ATTENTION", "dot_attention"]


def dot_attention(
    block: Block,
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    key: jax.Array | None = None,
    implementation: str | None = None,
) -> jax.Array:
    """Sums the senders' values, weighted by dot-product attention over the edges.

    y_i = sum_j alpha_ij d_ij v_j,  alpha_ij = softmax_j(scale <q_i, k_j>),  per head

    No array of the size [edges, heads, features] is kept, forward or backward; dropout as in
    `gat_attention`.

    Args:
      block: the edges.
      queries: q [receiver rows, heads, features], floating.
      keys: k [sender rows, heads, features].
      values: v [sender rows, heads, features].
      scale: of the products; None: 1 / sqrt(features).
      dropout: probability with which a coefficient is dropped, in [0, 1).
      key: typed random key, needed where dropout > 0.
      implementation: "mosaic_gpu", "cpu" or "xla"; None takes the one that the graph was
        placed for, or the next that can.

    Returns:
      [receiver rows, heads, features], 0 where no edge enters.

    Raises:
      ValueError: an array has the wrong shape or type, scale, dropout or key do not fit, or a name
        is unknown.
      NotImplementedError: the implementation named cannot compute this.

    References:
      Vaswani et al., "Attention is all you need", 2017, equation 1; Shi et al., "Masked label
      prediction", 2021, equation 3.
    """
    check_block(block)
    check_rows(block, "receiver", "queries", queries, "heads, features")
    check_rows(block, "sender", "keys", keys, "heads, features")
    check_rows(block, "sender", "values", values, "heads, features")
    check_same_axes("queries", queries, "keys", keys)
    check_same_axes("keys", keys, "values", values)
    if scale is None:
        scale = 1 / math.sqrt(max(queries.shape[2], 1))
    if not isinstance(scale, Real) or isinstance(scale, bool):
        raise ValueError(
            f"scale is {scale!r}; expected a number, known before compilation, or None"
        )
    reducer = attention_reducer(queries.shape[1], dropout, key)
    return call_on_block(
        DOT_ATTENTION, implementation, block, queries, keys, values, float(scale), reducer
    )


@partial(jax.jit, static_argnames="scale")
def _attend(
    block: Block,
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    scale: float,
    reducer: Softmax,
) -> jax.Array:
    inputs = Inputs((), (keys, values), queries, ())
    return propagate_or_refuse(block, dot_message(scale), reducer, inputs)


DOT_ATTENTION = implementations_of("dot_attention", _attend, check_dot_attention)
