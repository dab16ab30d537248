"""Products or sums of sender and receiver along edges: sampled dense-dense matrix multiplication.

"mosaic_gpu" has kernels for both, "cpu" for products only.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxgraph.ops.arguments import check_neighborhood, check_rows, check_same_axes
from jaxgraph.ops.core.derivatives import custom_vjp, forward_of
from jaxgraph.ops.core.edge_outputs import edge_outputs, sum_of_outputs
from jaxgraph.ops.core.edges import match_variation
from jaxgraph.ops.core.implementations import check_name
from jaxgraph.ops.core.message_functions import sum_of_ends, weighted_message
from jaxgraph.ops.core.messages import Inputs, MessageFn, Wanted
from jaxgraph.ops.core.propagation import Neighborhood
from jaxgraph.ops.core.reducers import Sum
from jaxgraph.ops.dispatch import placed_for


def sddmm(
    neighborhood: Neighborhood,
    sender: jax.Array,
    receiver: jax.Array,
    op: str = "dot",
    *,
    implementation: str | None = None,
) -> jax.Array:
    """Multiplies, or adds, the two ends of every edge.

    y_e = <s_j, r_i>  or  y_e = s_j + r_i  for e: j -> i

    Differentiable in both. For products, ds_j = sum_{e: j -> i} g_e r_i and dr_i = sum_{e: j -> i}
    g_e s_j, each an `aggregate` with weights; for sums, ds_j = sum_{e: j -> i} g_e and dr_i =
    sum_{e: j -> i} g_e.

    Args:
      neighborhood: the edges: a shard under `jaxgraph.parallel.spmd`.
      sender: [sender rows, features] or [sender rows, heads, features], floating.
      receiver: [receiver rows, ...], of the same axes after the first.
      op: "dot" or "add".
      implementation: as for `jaxgraph.ops.aggregate`.

    Returns:
      Products [slots] or [slots, heads], as `weight` of `aggregate` and `logits` of `edge_softmax`,
      or sums [slots, ...], of the axes of `sender`; 0 in slots without an edge.

    Raises:
      ValueError: an array has the wrong shape or type, or a name is unknown.
      NotImplementedError: the named implementation cannot compute this.

    References:
      Wang et al., "Deep Graph Library", 2019, section 3.1 (generalised SDDMM).
    """
    check_neighborhood(neighborhood)
    axes = "features" if len(jnp.shape(sender)) == 2 else "heads, features"
    check_rows(neighborhood, "sender", "sender", sender, axes)
    check_rows(neighborhood, "receiver", "receiver", receiver, axes)
    check_same_axes("sender", sender, "receiver", receiver)
    check_name("op", op, ("dot", "add"))
    if op == "dot":
        reduction = _weighted_sum(neighborhood, sender, receiver)
        neighborhood = placed_for(implementation, "sddmm", neighborhood, *reduction)
        ends = match_variation((sender, receiver), (neighborhood, sender, receiver))
        return _products(neighborhood, *ends)
    inputs = Inputs((), sender, receiver, ())
    reduction = sum_of_outputs(neighborhood, sum_of_ends, inputs)
    neighborhood = placed_for(implementation, "sddmm", neighborhood, *reduction)
    return edge_outputs(neighborhood, sum_of_ends, inputs)


def _weighted_sum(
    neighborhood: Neighborhood, sender: jax.Array, receiver: jax.Array
) -> tuple[MessageFn, Sum, Inputs]:
    """y_i = sum_j w_e s_j, whose gradient by w_e, given r_i as that of y_i, is <s_j, r_i>."""
    shape = (neighborhood.edge_slots, *sender.shape[1:-1])
    unread = jnp.zeros(shape, jnp.result_type(sender, receiver))
    return weighted_message, Sum(receiver.dtype), Inputs((), sender, (), unread)


@custom_vjp
def _products(neighborhood: Neighborhood, sender: jax.Array, receiver: jax.Array) -> jax.Array:
    message, reducer, inputs = _weighted_sum(neighborhood, sender, receiver)
    wanted = Wanted(params=False, sender=False, receiver=False, edge=True)
    return neighborhood.pull_sum(message, reducer, inputs, receiver, wanted).edge[0]


def _forward(neighborhood, sender, receiver):
    return _products.value(neighborhood, sender, receiver), (neighborhood, sender, receiver)


def _backward(residuals, gradient):
    neighborhood, sender, receiver = residuals

    def by_receiver(sender: jax.Array, gradient: jax.Array) -> jax.Array:
        inputs = Inputs((), sender, (), gradient)
        return neighborhood.propagate(weighted_message, Sum(receiver.dtype), inputs)

    inputs = Inputs((), sender.astype(gradient.dtype), (), gradient)
    wanted = Wanted(params=False, sender=True, receiver=False, edge=False)
    pulled = neighborhood.pull_sum(weighted_message, Sum(), inputs, receiver, wanted)
    of_receiver = forward_of(by_receiver, inputs.sender, gradient)
    return None, pulled.sender[0].astype(sender.dtype), of_receiver


_products.defvjp(_forward, _backward)
