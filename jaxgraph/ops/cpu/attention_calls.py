"""The kinds of attention, GAT, GATv2 and dot product: their inputs and their gradients.

Arrays of senders come first, then those of receivers, then parameters.
`jaxgraph.ops.cpu.attention_passes.attention_state` is the forward of every kind. None is
differentiable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.edges import EdgeGroup
from jaxgraph.ops.core.precision import accumulation_dtype, to_accumulation
from jaxgraph.ops.core.reducers import Softmax
from jaxgraph.ops.core.self_messages import check_start
from jaxgraph.ops.cpu.attention_passes import (
    DOT,
    GAT,
    GATV2,
    Attention,
    edge_sum,
    hidden_gradient,
    sender_gradients,
)
from jaxgraph.ops.cpu.calls import neighbor_sum

__all__ = ["attention_gradients", "dot_attention", "gat_attention", "gatv2_attention"]

_Gradients = tuple[jax.Array | None, ...]


def gat_attention(
    values: jax.Array,
    sender_logits: jax.Array,
    receiver_logits: jax.Array,
    negative_slope: float,
    reducer: Softmax,
) -> Attention:
    """Messages (leaky_relu(l_j + r_i), v_j).

    Args:
      values: v [senders, heads, features], float32, bfloat16 or float64.
      sender_logits: l [senders, heads].
      receiver_logits: r [receivers, heads].
      negative_slope: slope of the leaky ReLU.
      reducer: the softmax, with the seed and rate of its dropout.

    Returns:
      The inputs of the passes.

    Raises:
      ValueError: there are too many heads.

    References:
      Velickovic et al., "Graph attention networks", 2018, equations 3 and 6.
    """
    dtype = accumulation_dtype(values.dtype)
    sender, receiver = sender_logits.astype(dtype), receiver_logits.astype(dtype)
    return Attention(GAT, negative_slope, sender, receiver, None, values, reducer)


def gatv2_attention(
    sender: jax.Array,
    receiver: jax.Array,
    vector: jax.Array,
    negative_slope: float,
    reducer: Softmax,
) -> Attention:
    """Messages (<a, leaky_relu(s_j + r_i)>, s_j).

    Args:
      sender: s [senders, heads, features], float32, bfloat16 or float64.
      receiver: r [receivers, heads, features], of the same type.
      vector: a [heads, features].
      negative_slope, reducer: as for `gat_attention`.

    Returns:
      The inputs of the passes.

    Raises:
      ValueError: there are too many heads, or s and r differ in type or shape.

    References:
      Brody, Alon and Yahav, "How attentive are graph attention networks?", 2022, equation 7.
    """
    vector = vector.astype(accumulation_dtype(sender.dtype))
    return Attention(GATV2, negative_slope, sender, receiver, vector, sender, reducer)


def dot_attention(
    keys: jax.Array, values: jax.Array, queries: jax.Array, scale: float, reducer: Softmax
) -> Attention:
    """Messages (scale <q_i, k_j>, v_j).

    Args:
      keys: k [senders, heads, features], float32, bfloat16 or float64.
      values: v [senders, heads, features], of the same type.
      queries: q [receivers, heads, features], of the same type.
      scale: factor of the products.
      reducer: as for `gat_attention`.

    Returns:
      The inputs of the passes.

    Raises:
      ValueError: there are too many heads, or k, v and q differ in type or shape.

    References:
      Vaswani et al., "Attention is all you need", 2017, equation 1.
    """
    return Attention(DOT, scale, keys, queries, None, values, reducer)


def attention_gradients(
    over: EdgeGroup,
    attention: Attention,
    adjoint: Sequence[jax.Array],
    *,
    wanted: Sequence[bool] = (True, True, True),
    before: _Gradients = (None, None, None),
) -> _Gradients:
    """The gradients of the three arrays of `attention`.

    With g the gradient of the output, p the probabilities, d the dropout of attention and
    de_ij = p_ij (d_ij <g_i, v_j> - inner_i):

      GAT    dv_j = sum_i d_ij p_ij g_i,  dl_j = sum_i de_ij leaky',  dr_i = sum_j de_ij leaky'
      GATv2  ds_j = sum_i d_ij p_ij g_i + a de_ij leaky'(h_ij),  dr_i = a sum_j de_ij leaky'(h_ij),
             da = sum_ij de_ij leaky(h_ij),  with h_ij = s_j + r_i
      dot    dk_j = scale sum_i de_ij q_i,  dv_j = sum_i d_ij p_ij g_i,
             dq_i = scale sum_j de_ij k_j

    Args:
      over: the edges.
      attention: the inputs of the forward.
      adjoint: g [receivers, heads, features], or [receivers, 1, features] where heads share it,
        peak and inner [receivers, heads], as the reducer's `adjoint` returns them; or, where g has
        not been divided by the total, 1 / total [receivers, heads] after them.
      wanted: which gradients.
      before: the arrays to which they are added (their memory is reused); both sums at senders or
        neither, and none with `over.missing`.

    Returns:
      Of the shapes of the arrays, in the accumulation type; None where not wanted.

    Raises:
      ValueError: `before` is not as above.
    """
    check_start(over, *before)
    by_kind = {GAT: _gat_gradients, GATV2: _gatv2_gradients, DOT: _dot_gradients}
    return by_kind[attention.kind](over, attention, adjoint, wanted, before)


def _gat_gradients(
    over: EdgeGroup,
    attention: Attention,
    adjoint: Sequence[jax.Array],
    wanted: Sequence[bool],
    before: _Gradients,
) -> _Gradients:
    dv, dl, per_edge, per_self = sender_gradients(over, attention, adjoint, wanted, before[:2])
    dr = None
    if wanted[2]:
        start = before[2] if over.missing is None else per_self
        dr = edge_sum(over, per_edge, attention.receiver.shape[0], start)
    return dv, dl, dr


def _gatv2_gradients(
    over: EdgeGroup,
    attention: Attention,
    adjoint: Sequence[jax.Array],
    wanted: Sequence[bool],
    before: _Gradients,
) -> _Gradients:
    by_receiver = wanted[1] or wanted[2]
    # The senders' rows are values and inputs of the logits: one gradient is the sum of both.
    ds, _, per_edge, per_self = sender_gradients(
        over, attention, adjoint, (wanted[0], False, by_receiver), (before[0], None)
    )
    dr = da = None
    if by_receiver:
        dr, da = hidden_gradient(over, attention, per_edge, per_self, before[1:])
    return ds, dr if wanted[1] else None, da if wanted[2] else None


def _dot_gradients(
    over: EdgeGroup,
    attention: Attention,
    adjoint: Sequence[jax.Array],
    wanted: Sequence[bool],
    before: _Gradients,
) -> _Gradients:
    dv, dk, per_edge, per_self = sender_gradients(
        over, attention, adjoint, (wanted[1], wanted[0], wanted[2]), (before[1], before[0])
    )
    dq = None
    if wanted[2]:
        keys, rows = attention.sender, attention.receiver.shape[0]
        start = (
            before[2]
            if over.missing is None
            else _self_message_gradient(over.missing, keys, per_self)
        )
        # `start` holds the weighted self-messages.
        edges = dataclasses.replace(over, missing=None)
        dq = neighbor_sum(edges, "receiver", keys, rows, weights=per_edge, before=start)
    return dk, dv, dq


def _self_message_gradient(missing: jax.Array, keys: jax.Array, per_self: jax.Array) -> jax.Array:
    """de_ii k_i where a row has a self-message, else 0."""
    mine = to_accumulation(keys[: missing.shape[0]])
    return jnp.where(missing[:, None, None], per_self[..., None] * mine, 0)
