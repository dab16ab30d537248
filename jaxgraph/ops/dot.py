"""The dot-product attention of graph transformers, fused with the sum that it weights."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import jax

from jaxgraph.ops.arguments import (
    attention_reducer,
    check_neighborhood,
    check_rows,
    check_same_axes,
)
from jaxgraph.ops.core.message_functions import DotMessage
from jaxgraph.ops.core.messages import Inputs, MessageFn
from jaxgraph.ops.core.propagation import Neighborhood
from jaxgraph.ops.core.reducers import Softmax
from jaxgraph.ops.dispatch import reduce_by


def dot_attention(
    neighborhood: Neighborhood,
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    key: jax.Array | None = None,
    self_loops: bool = False,
    mean_heads: bool = False,
    implementation: str | None = None,
) -> jax.Array:
    """Sums the senders' values, weighted by dot-product attention over the edges.

    y_i = sum_j alpha_ij d_ij v_j,  alpha_ij = softmax_j(scale <q_i, k_j>),  per head

    Neither forward nor backward stores an array of size [edges, heads, features]; dropout as in
    `gat_attention`.

    Args:
      neighborhood: the edges: a shard under `jaxgraph.parallel.spmd`.
      queries: q [receiver rows, heads, features], floating.
      keys: k [sender rows, heads, features].
      values: v [sender rows, heads, features].
      scale: factor of the products; None: 1 / sqrt(features).
      dropout, key, self_loops, mean_heads, implementation: as for `jaxgraph.ops.gat_attention`.

    Returns:
      As `jaxgraph.ops.gat_attention`.

    Raises:
      ValueError: an array has the wrong shape or type, scale, dropout or key do not fit, or a name
        is unknown.
      NotImplementedError: the named implementation cannot compute this.

    References:
      Vaswani et al., "Attention is all you need", 2017, equation 1; Shi et al., "Masked label
      prediction", 2021, equation 3.
    """
    check_neighborhood(neighborhood)
    check_rows(neighborhood, "receiver", "queries", queries, "heads, features")
    check_rows(neighborhood, "sender", "keys", keys, "heads, features")
    check_rows(neighborhood, "sender", "values", values, "heads, features")
    check_same_axes("queries", queries, "keys", keys)
    check_same_axes("keys", keys, "values", values)
    _, heads, features = queries.shape
    options = {"dropout": dropout, "key": key, "mean_heads": mean_heads}
    reduction = dot_reduction(heads, features, scale, **options)
    inputs = Inputs((), (keys, values), queries, ())
    return reduce_by(
        implementation, "dot_attention", neighborhood, *reduction, inputs, self_loops=self_loops
    )


def dot_reduction(
    heads: int, features: int, scale: float | None, **options: Any
) -> tuple[MessageFn, Softmax]:
    """The message and reducer of `dot_attention`, with those `options` of `attention_reducer`."""
    if scale is None:
        scale = 1 / math.sqrt(max(features, 1))
    if not isinstance(scale, Real) or isinstance(scale, bool):
        raise ValueError(
            f"scale is {scale!r}; expected a number, known before compilation, or None"
        )
    return DotMessage(float(scale)), attention_reducer(heads, **options)
