"""The attention kernels as functions of arrays: GAT, GATv2 and dot products, each both ways.

All work on the edges of one group, and take what they see of senders first, then of receivers,
then parameters. The state is that of `jaxgraph.ops.reducers.Softmax`. A `before` continues from an
earlier result (its memory is reused), and only where no row takes in a message from itself. None is
differentiable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxgraph.ops.cpu.attention_passes import (
    DOT,
    GAT,
    GATV2,
    Attention,
    State,
    attention_state,
    edge_sum,
    hidden_gradient,
    sender_gradients,
)
from jaxgraph.ops.cpu.calls import neighbor_sum
from jaxgraph.ops.cpu.custom_call import check_start
from jaxgraph.ops.edges import EdgeGroup
from jaxgraph.ops.precision import accumulation_dtype, to_accumulation
from jaxgraph.ops.reducers import Softmax

__all__ = [
    "Gradients",
    "dot_backward",
    "dot_forward",
    "gat_backward",
    "gat_forward",
    "gatv2_backward",
    "gatv2_forward",
]

Gradients = tuple[jax.Array | None, jax.Array | None, jax.Array | None]

_NONE = (None, None, None)
_ALL = (True, True, True)


def gat_forward(
    over: EdgeGroup,
    values: jax.Array,
    sender_logits: jax.Array,
    receiver_logits: jax.Array,
    negative_slope: float,
    reducer: Softmax,
    *,
    before: State | None = None,
    finish: bool = False,
) -> State:
    """The state after all messages (leaky_relu(l_j + r_i), v_j) of a group.

    Args:
      over: the edges.
      values: v [senders, heads, features], float32, bfloat16 or float64.
      sender_logits: l [senders, heads].
      receiver_logits: r [receivers, heads].
      negative_slope: of the leaky ReLU.
      reducer: the softmax, with the seed and rate of its dropout.
      before: the state to continue from; not with `over.missing`.
      finish: whether no more messages come: then sums are divided by total, and peak is finite.

    Returns:
      peak, total and sums.

    Raises:
      ValueError: there are too many heads, or `before` and `over.missing` are both given.

    References:
      Velickovic et al., "Graph attention networks", 2018, equations 3 and 6.
    """
    attention = _gat(values, sender_logits, receiver_logits, negative_slope, reducer)
    return attention_state(over, attention, before, finish)


def gat_backward(
    over: EdgeGroup,
    values: jax.Array,
    sender_logits: jax.Array,
    receiver_logits: jax.Array,
    negative_slope: float,
    reducer: Softmax,
    adjoint: Sequence[jax.Array],
    *,
    wanted: tuple[bool, bool, bool] = _ALL,
    before: Gradients = _NONE,
) -> Gradients:
    """The gradients of v, l and r.

    dv_j = sum_i d_ij p_ij g_i,  dl_j = sum_i de_ij leaky',  dr_i = sum_j de_ij leaky',
    de_ij = p_ij (d_ij <g_i, v_j> - inner_i)

    Args:
      over, values, sender_logits, receiver_logits, negative_slope, reducer: as for `gat_forward`.
      adjoint: g [receivers, heads, features], peak and inner [receivers, heads], as
        `Softmax.adjoint` returns them; or, where g has not been divided by the total, 1 / total
        [receivers, heads] behind them.
      wanted: which gradients.
      before: what each is added to; those that senders sum up both or none of them, and not with
        `over.missing`.

    Returns:
      Of the shapes of v, l and r, in the type in which v is accumulated; None where not wanted.

    Raises:
      ValueError: there are too many heads, or `before` is not as above.
    """
    check_start(over, *before)
    attention = _gat(values, sender_logits, receiver_logits, negative_slope, reducer)
    dv, dl, per_edge, per_self = sender_gradients(over, attention, adjoint, wanted, before[:2])
    dr = None
    if wanted[2]:
        start = before[2] if over.missing is None else per_self
        dr = edge_sum(over, per_edge, receiver_logits.shape[0], start)
    return dv, dl, dr


def gatv2_forward(
    over: EdgeGroup,
    sender: jax.Array,
    receiver: jax.Array,
    vector: jax.Array,
    negative_slope: float,
    reducer: Softmax,
    *,
    before: State | None = None,
    finish: bool = False,
) -> State:
    """The state after all messages (<a, leaky_relu(s_j + r_i)>, s_j) of a group.

    Args:
      over: the edges.
      sender: s [senders, heads, features], float32, bfloat16 or float64.
      receiver: r [receivers, heads, features], of the same type.
      vector: a [heads, features].
      negative_slope, reducer, before, finish: as for `gat_forward`.

    Returns:
      peak, total and sums.

    Raises:
      ValueError: there are too many heads, s and r differ in type or shape, or `before` and
        `over.missing` are both given.

    References:
      Brody, Alon and Yahav, "How attentive are graph attention networks?", 2022, equation 7.
    """
    attention = _gatv2(sender, receiver, vector, negative_slope, reducer)
    return attention_state(over, attention, before, finish)


def gatv2_backward(
    over: EdgeGroup,
    sender: jax.Array,
    receiver: jax.Array,
    vector: jax.Array,
    negative_slope: float,
    reducer: Softmax,
    adjoint: Sequence[jax.Array],
    *,
    wanted: tuple[bool, bool, bool] = _ALL,
    before: Gradients = _NONE,
) -> Gradients:
    """The gradients of s, r and a.

    With h_ij = s_j + r_i: ds_j = sum_i d_ij p_ij g_i + a de_ij leaky'(h_ij),
    dr_i = a sum_j de_ij leaky'(h_ij),  da = sum_ij de_ij leaky(h_ij)

    Args:
      over, sender, receiver, vector, negative_slope, reducer: as for `gatv2_forward`.
      adjoint, wanted, before: as for `gat_backward`.

    Returns:
      Of the shapes of s, r and a, in the type in which s is accumulated; None where not wanted.

    Raises:
      ValueError: the arrays do not fit, or `before` and `over.missing` are both given.
    """
    check_start(over, *before)
    attention = _gatv2(sender, receiver, vector, negative_slope, reducer)
    by_receiver = wanted[1] or wanted[2]
    # The values are the senders' side of the logits: both gradients are one.
    ds, _, per_edge, per_self = sender_gradients(
        over, attention, adjoint, (wanted[0], False, by_receiver), (before[0], None)
    )
    dr = da = None
    if by_receiver:
        dr, da = hidden_gradient(over, attention, per_edge, per_self, before[1:])
    return ds, dr if wanted[1] else None, da if wanted[2] else None


def dot_forward(
    over: EdgeGroup,
    keys: jax.Array,
    values: jax.Array,
    queries: jax.Array,
    scale: float,
    reducer: Softmax,
    *,
    before: State | None = None,
    finish: bool = False,
) -> State:
    """The state after all messages (scale <q_i, k_j>, v_j) of a group.

    Args:
      over: the edges.
      keys: k [senders, heads, features], float32, bfloat16 or float64.
      values: v [senders, heads, features], of the same type.
      queries: q [receivers, heads, features], of the same type.
      scale: of the products.
      reducer, before: as for `gat_forward`.

    Returns:
      peak, total and sums.

    Raises:
      ValueError: there are too many heads, k, v and q differ in type or shape, or `before` and
        `over.missing` are both given.

    References:
      Vaswani et al., "Attention is all you need", 2017, equation 1.
    """
    attention = _dot(keys, values, queries, scale, reducer)
    return attention_state(over, attention, before, finish)


def dot_backward(
    over: EdgeGroup,
    keys: jax.Array,
    values: jax.Array,
    queries: jax.Array,
    scale: float,
    reducer: Softmax,
    adjoint: Sequence[jax.Array],
    *,
    wanted: tuple[bool, bool, bool] = _ALL,
    before: Gradients = _NONE,
) -> Gradients:
    """The gradients of k, v and q.

    dk_j = scale sum_i de_ij q_i,  dv_j = sum_i d_ij p_ij g_i,  dq_i = scale sum_j de_ij k_j

    Args:
      over, keys, values, queries, scale, reducer: as for `dot_forward`.
      adjoint, wanted, before: as for `gat_backward`.

    Returns:
      Of the shapes of k, v and q, in the type in which v is accumulated; None where not wanted.

    Raises:
      ValueError: the arrays or `before` do not fit.
    """
    check_start(over, *before)
    attention = _dot(keys, values, queries, scale, reducer)
    dv, dk, per_edge, per_self = sender_gradients(
        over, attention, adjoint, (wanted[1], wanted[0], wanted[2]), (before[1], before[0])
    )
    dq = None
    if wanted[2]:
        start = before[2] if over.missing is None else _own_gradient(over, keys, per_self)
        # What rows send themselves is in the start, with a weight.
        edges = dataclasses.replace(over, missing=None)
        dq = neighbor_sum(edges, "receiver", keys, queries.shape[0], weights=per_edge, before=start)
    return dk, dv, dq


def _own_gradient(over: EdgeGroup, keys: jax.Array, per_self: jax.Array) -> jax.Array:
    """de_ii k_i where a row sends itself a message, else 0."""
    assert over.missing is not None
    mine = to_accumulation(keys[: over.missing.shape[0]])
    return jnp.where(over.missing[:, None, None], per_self[..., None] * mine, 0)


def _gat(
    values: jax.Array,
    sender_logits: jax.Array,
    receiver_logits: jax.Array,
    slope: float,
    reducer: Softmax,
) -> Attention:
    dtype = accumulation_dtype(values.dtype)
    sender, receiver = sender_logits.astype(dtype), receiver_logits.astype(dtype)
    return Attention(GAT, slope, sender, receiver, None, values, reducer)


def _gatv2(
    sender: jax.Array, receiver: jax.Array, vector: jax.Array, slope: float, reducer: Softmax
) -> Attention:
    vector = vector.astype(accumulation_dtype(sender.dtype))
    return Attention(GATV2, slope, sender, receiver, vector, sender, reducer)


def _dot(
    keys: jax.Array, values: jax.Array, queries: jax.Array, scale: float, reducer: Softmax
) -> Attention:
    return Attention(DOT, scale, keys, queries, None, values, reducer)
