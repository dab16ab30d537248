"""The attention of GATv2, fused with the sum that it weights."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.arguments import (
    attention_reducer,
    check_neighborhood,
    check_rows,
    check_same_axes,
    check_slope,
)
from jaxgraph.ops.core.message_functions import GatV2Message
from jaxgraph.ops.core.messages import Inputs, MessageFn
from jaxgraph.ops.core.propagation import Neighborhood
from jaxgraph.ops.core.reducers import Softmax
from jaxgraph.ops.dispatch import reduce_by


def gatv2_attention(
    neighborhood: Neighborhood,
    sender: jax.Array,
    receiver: jax.Array,
    attention: jax.Array,
    *,
    negative_slope: float = 0.2,
    dropout: float = 0.0,
    key: jax.Array | None = None,
    self_loops: bool = False,
    mean_heads: bool = False,
    implementation: str | None = None,
) -> jax.Array:
    """Sums the senders' values, weighted by dynamic attention.

    y_i = sum_j alpha_ij d_ij s_j,  alpha_ij = softmax_j(<a, leaky_relu(s_j + r_i)>),  per head

    Neither forward nor backward stores an array of size [edges, heads]; dropout as in
    `gat_attention`.

    Args:
      neighborhood: the edges: a shard under `jaxgraph.parallel.spmd`.
      sender: s [sender rows, heads, features], floating.
      receiver: r [receiver rows, heads, features].
      attention: a [heads, features].
      negative_slope, dropout, key, self_loops, mean_heads, implementation: as for
        `jaxgraph.ops.gat_attention`.

    Returns:
      As `jaxgraph.ops.gat_attention`.

    Raises:
      ValueError: an array has the wrong shape or type, dropout or key do not fit, or a name is
        unknown.
      NotImplementedError: the named implementation cannot compute this.

    References:
      Brody, Alon and Yahav, "How attentive are graph attention networks?", 2022, equation 7.
    """
    check_neighborhood(neighborhood)
    check_rows(neighborhood, "sender", "sender", sender, "heads, features")
    check_rows(neighborhood, "receiver", "receiver", receiver, "heads, features")
    check_same_axes("sender", sender, "receiver", receiver)
    shape, dtype = jnp.shape(attention), jnp.result_type(attention)
    if shape != sender.shape[1:] or not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(
            f"attention is {dtype} {shape}; expected floating numbers [heads, features], "
            f"{sender.shape[1:]}"
        )
    options = {"dropout": dropout, "key": key, "mean_heads": mean_heads}
    reduction = gatv2_reduction(sender.shape[1], negative_slope, **options)
    inputs = Inputs(attention, sender, receiver, ())
    return reduce_by(
        implementation, "gatv2_attention", neighborhood, *reduction, inputs, self_loops=self_loops
    )


def gatv2_reduction(heads: int, negative_slope: float, **options: Any) -> tuple[MessageFn, Softmax]:
    """The message and reducer of `gatv2_attention`, with those `options` of `attention_reducer`."""
    check_slope(negative_slope)
    return GatV2Message(float(negative_slope)), attention_reducer(heads, **options)
