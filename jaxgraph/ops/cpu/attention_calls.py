"""The attention kernels as functions of arrays: GAT, GATv2 and dot products, each both ways.

All work on the edges of one group. The state is that of `jaxgraph.ops.reducers.Softmax`: peak and
total [receivers, heads] and sums [receivers, heads, features], in the type in which values are
accumulated. Logits are computed from both ends of an edge wherever they are needed; of the size of
the edges, a backward keeps one number per edge and head for the time between its two passes. The
first pass is by sender: it sums up what senders get and leaves what each edge hands to its
receiver. A `before` continues from an earlier result (its memory is reused). None is
differentiable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgraph.ops.cpu.calls import neighbor_sum
from jaxgraph.ops.cpu.custom_call import Group, call_kernel, optional
from jaxgraph.ops.edges import EdgeGroups
from jaxgraph.ops.precision import accumulation_dtype
from jaxgraph.ops.randomness import keep_threshold
from jaxgraph.ops.reducers import Softmax

__all__ = [
    "MOST_HEADS",
    "AttentionEdges",
    "dot_backward",
    "dot_forward",
    "gat_backward",
    "gat_forward",
    "gatv2_backward",
    "gatv2_forward",
]

MOST_HEADS = 64
"""More heads than this the kernels refuse."""

State = tuple[jax.Array, jax.Array, jax.Array]
Gradients = tuple[jax.Array | None, jax.Array | None, jax.Array | None]

_GAT, _GATV2, _DOT = np.int64(0), np.int64(1), np.int64(2)
_NONE = (None, None, None)
_ALL = (True, True, True)


@dataclasses.dataclass(frozen=True)
class AttentionEdges:
    """What attention runs over.

    Attributes:
      edges: the edges.
      group: which group of them.
      reducer: the softmax, with the seed and rate of its dropout.
      missing: bool [receivers], rows that take in a message from themselves that no edge carries;
        the first rows of the senders are then the receivers. None: no row does.
    """

    edges: EdgeGroups
    group: Group
    reducer: Softmax
    missing: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class _Logits:
    """Both tables that logits are computed from, and how."""

    kind: np.int64
    parameter: float
    sender: jax.Array
    receiver: jax.Array
    attention: jax.Array


def gat_forward(
    over: AttentionEdges,
    values: jax.Array,
    sender_logits: jax.Array,
    receiver_logits: jax.Array,
    negative_slope: float,
    *,
    before: State | None = None,
) -> State:
    """The state after all messages (leaky_relu(l_j + r_i), v_j) of a group.

    Args:
      over: the edges.
      values: v [senders, heads, features], float32, bfloat16 or float64.
      sender_logits: l [senders, heads].
      receiver_logits: r [receivers, heads].
      negative_slope: of the leaky ReLU.
      before: the state to continue from.

    Returns:
      peak, total and sums.

    Raises:
      ValueError: there are more than `MOST_HEADS` heads.

    References:
      Velickovic et al., "Graph attention networks", 2018, equations 3 and 6.
    """
    logits = _gat_logits(values, sender_logits, receiver_logits, negative_slope)
    return _forward(over, logits, values, before)


def gat_backward(
    over: AttentionEdges,
    values: jax.Array,
    sender_logits: jax.Array,
    receiver_logits: jax.Array,
    negative_slope: float,
    adjoint: State,
    *,
    wanted: tuple[bool, bool, bool] = _ALL,
    before: Gradients = _NONE,
) -> Gradients:
    """The gradients of v, l and r.

    dv_j = sum_i d_ij p_ij g_i,  dl_j = sum_i de_ij leaky',  dr_i = sum_j de_ij leaky',
    de_ij = p_ij (d_ij <g_i, v_j> - inner_i)

    Args:
      over, values, sender_logits, receiver_logits, negative_slope: as for `gat_forward`.
      adjoint: g [receivers, heads, features], peak and inner [receivers, heads], as
        `Softmax.adjoint` returns them.
      wanted: which gradients.
      before: what each is added to.

    Returns:
      Of the shapes of v, l and r, in the type in which v is accumulated; None where not wanted.
    """
    logits = _gat_logits(values, sender_logits, receiver_logits, negative_slope)
    dv, dl, per_edge, per_self = _sender_pass(
        over, logits, values, adjoint, wanted, before, logits.sender.shape
    )
    dr = None
    if wanted[2]:
        own = _total(per_self if over.missing is not None else None, before[2])
        dr = _edge_sum(over, per_edge, receiver_logits.shape, own)
    return dv, dl, dr


def gatv2_forward(
    over: AttentionEdges,
    sender: jax.Array,
    receiver: jax.Array,
    attention: jax.Array,
    negative_slope: float,
    *,
    before: State | None = None,
) -> State:
    """The state after all messages (<a, leaky_relu(s_j + r_i)>, s_j) of a group.

    Args:
      over: the edges.
      sender: s [senders, heads, features], float32, bfloat16 or float64.
      receiver: r [receivers, heads, features], of the same type.
      attention: a [heads, features].
      negative_slope: of the leaky ReLU.
      before: the state to continue from.

    Returns:
      peak, total and sums.

    Raises:
      ValueError: there are more than `MOST_HEADS` heads, or the types of s and r differ.

    References:
      Brody, Alon and Yahav, "How attentive are graph attention networks?", 2022, equation 7.
    """
    logits = _gatv2_logits(sender, receiver, attention, negative_slope)
    return _forward(over, logits, sender, before)


def gatv2_backward(
    over: AttentionEdges,
    sender: jax.Array,
    receiver: jax.Array,
    attention: jax.Array,
    negative_slope: float,
    adjoint: State,
    *,
    wanted: tuple[bool, bool, bool] = _ALL,
    before: Gradients = _NONE,
) -> Gradients:
    """The gradients of s, r and a.

    With h_ij = s_j + r_i: ds_j = sum_i d_ij p_ij g_i + a de_ij leaky'(h_ij),
    dr_i = a sum_j de_ij leaky'(h_ij),  da = sum_ij de_ij leaky(h_ij)

    Args:
      over, sender, receiver, attention, negative_slope: as for `gatv2_forward`.
      adjoint, wanted, before: as for `gat_backward`.

    Returns:
      Of the shapes of s, r and a, in the type in which s is accumulated; None where not wanted.
    """
    logits = _gatv2_logits(sender, receiver, attention, negative_slope)
    by_receiver = wanted[1] or wanted[2]
    ds, _, per_edge, per_self = _sender_pass(
        over,
        logits,
        sender,
        adjoint,
        (wanted[0], False, by_receiver),
        (before[0], None, None),
        receiver.shape,
    )
    dr = da = None
    if by_receiver:
        dr, da = _hidden_gradient(over, logits, per_edge, per_self, before[1], before[2])
    return ds, dr if wanted[1] else None, da if wanted[2] else None


def dot_forward(
    over: AttentionEdges,
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    scale: float,
    *,
    before: State | None = None,
) -> State:
    """The state after all messages (scale <q_i, k_j>, v_j) of a group.

    Args:
      over: the edges.
      queries: q [receivers, heads, features], float32, bfloat16 or float64.
      keys: k [senders, heads, features], of the same type.
      values: v [senders, heads, features], of the same type.
      scale: of the products.
      before: the state to continue from.

    Returns:
      peak, total and sums.

    Raises:
      ValueError: there are more than `MOST_HEADS` heads, or types or shapes differ.

    References:
      Vaswani et al., "Attention is all you need", 2017, equation 1.
    """
    return _forward(over, _dot_logits(queries, keys, values, scale), values, before)


def dot_backward(
    over: AttentionEdges,
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    scale: float,
    adjoint: State,
    *,
    wanted: tuple[bool, bool, bool] = _ALL,
    before: Gradients = _NONE,
) -> Gradients:
    """The gradients of q, k and v.

    dq_i = scale sum_j de_ij k_j,  dk_j = scale sum_i de_ij q_i,  dv_j = sum_i d_ij p_ij g_i

    Args:
      over, queries, keys, values, scale: as for `dot_forward`.
      adjoint, wanted, before: as for `gat_backward`.

    Returns:
      Of the shapes of q, k and v, in the type in which v is accumulated; None where not wanted.
    """
    logits = _dot_logits(queries, keys, values, scale)
    dv, dk, per_edge, per_self = _sender_pass(
        over,
        logits,
        values,
        adjoint,
        (wanted[2], wanted[1], wanted[0]),
        (before[2], before[1], None),
        keys.shape,
    )
    dq = None
    if wanted[0]:
        own = None
        if over.missing is not None:
            mine = keys[: over.missing.shape[0]].astype(per_self.dtype)
            own = jnp.where(over.missing[:, None, None], per_self[..., None] * mine, 0)
        dq = neighbor_sum(
            over.edges.by_receiver,
            over.group,
            keys,
            queries.shape[0],
            weights=per_edge.astype(keys.dtype),
            before=_total(own, before[0]),
        )
    return dq, dk, dv


def _gat_logits(
    values: jax.Array, sender_logits: jax.Array, receiver_logits: jax.Array, slope: float
) -> _Logits:
    dtype = accumulation_dtype(values.dtype)
    sender, receiver = sender_logits.astype(dtype), receiver_logits.astype(dtype)
    return _Logits(_GAT, slope, sender, receiver, jnp.zeros(0, dtype))


def _gatv2_logits(
    sender: jax.Array, receiver: jax.Array, attention: jax.Array, slope: float
) -> _Logits:
    _check_alike("sender", sender, "receiver", receiver)
    dtype = accumulation_dtype(sender.dtype)
    return _Logits(_GATV2, slope, sender, receiver, attention.astype(dtype))


def _dot_logits(queries: jax.Array, keys: jax.Array, values: jax.Array, scale: float) -> _Logits:
    _check_alike("values", values, "keys", keys)
    _check_alike("values", values, "queries", queries)
    none = jnp.zeros(0, accumulation_dtype(values.dtype))
    return _Logits(_DOT, scale, keys, queries, none)


def _check_alike(name: str, array: jax.Array, other_name: str, other: jax.Array) -> None:
    """Raises `ValueError` unless rows of both have the same shape and type."""
    if array.dtype != other.dtype or array.shape[1:] != other.shape[1:]:
        raise ValueError(
            f"{name} is {array.dtype} {array.shape} and {other_name} {other.dtype} {other.shape}; "
            "the kernels need rows of one type and shape: cast both to the same type"
        )


def _forward(
    over: AttentionEdges, logits: _Logits, values: jax.Array, before: State | None
) -> State:
    _check_heads(values)
    dtype, rows = accumulation_dtype(values.dtype), logits.receiver.shape[0]
    arrays = (
        logits.receiver,
        logits.sender,
        logits.attention,
        values,
        *_dropout_arrays(over),
        *(optional(part, dtype) for part in before or _NONE),
    )
    heads, features = values.shape[1:]
    results = [((rows, heads), dtype), ((rows, heads), dtype), ((rows, heads, features), dtype)]
    first = len(arrays) - len(results)
    peak, total, sums = call_kernel(
        "jaxgraph_attention",
        over.edges.by_receiver,
        over.group,
        arrays,
        results,
        {result: first + result for result in range(3)},
        **_attributes(over, logits),
    )
    return peak, total, sums


def _sender_pass(
    over: AttentionEdges,
    logits: _Logits,
    values: jax.Array,
    adjoint: State,
    wanted: tuple[bool, bool, bool],
    before: Gradients,
    sender_shape: tuple[int, ...],
) -> tuple[jax.Array | None, jax.Array | None, jax.Array, jax.Array]:
    """The gradients that senders sum up.

    Args:
      over, logits, values, adjoint: the forward's, and what it left.
      wanted: whether the gradient of the values, that of the senders' side of the logits, and what
        the edges hand to receivers.
      before: what the first two are added to.
      sender_shape: of the second.

    Returns:
      The gradients, None where not wanted; de [slots, heads]; de [missing rows, heads] of messages
      from rows to themselves.
    """
    _check_heads(values)
    dtype, heads = accumulation_dtype(values.dtype), values.shape[1]
    gradient, *adjoint_heads = adjoint
    receiver = logits.receiver
    # What is looked up together stands together.
    if logits.kind == _GAT:
        adjoint_heads.insert(0, receiver)
    packed = jnp.concatenate([part.astype(dtype) for part in adjoint_heads], 1)
    if logits.kind == _GAT:
        receiver = packed
    shapes = [values.shape if wanted[0] else (0,), sender_shape if wanted[1] else (0,)]
    starts = _starts(before[:2], wanted[:2], shapes, dtype)
    arrays = (
        logits.sender,
        receiver,
        logits.attention,
        values,
        gradient.astype(values.dtype),
        packed,
        *_dropout_arrays(over),
        *(optional(start, dtype) for start in starts),
    )
    slots = over.edges.by_receiver.neighbors.shape[0] if wanted[2] else 0
    own_rows = over.missing.shape[0] if wanted[2] and over.missing is not None else 0
    shapes += [(slots, heads), (own_rows, heads)]
    dvalues, dsender, per_edge, per_self = call_kernel(
        "jaxgraph_attention_gradient",
        over.edges.by_sender,
        over.group,
        arrays,
        [(shape, dtype) for shape in shapes],
        {0: len(arrays) - 2, 1: len(arrays) - 1},
        **_attributes(over, logits),
    )
    return dvalues if wanted[0] else None, dsender if wanted[1] else None, per_edge, per_self


def _hidden_gradient(
    over: AttentionEdges,
    logits: _Logits,
    per_edge: jax.Array,
    per_self: jax.Array,
    before_receiver: jax.Array | None,
    before_attention: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    dtype = per_edge.dtype
    arrays = (
        logits.receiver,
        logits.sender,
        logits.attention,
        per_edge,
        per_self,
        optional(over.missing, jnp.bool_),
        optional(before_receiver, dtype),
        optional(before_attention, dtype),
    )
    dreceiver, dattention = call_kernel(
        "jaxgraph_hidden_gradient",
        over.edges.by_receiver,
        over.group,
        arrays,
        [(logits.receiver.shape, dtype), (logits.attention.shape, dtype)],
        {0: 6, 1: 7},
        slope=np.float64(logits.parameter),
    )
    return dreceiver, dattention


def _edge_sum(
    over: AttentionEdges, weights: jax.Array, shape: tuple[int, ...], before: jax.Array | None
) -> jax.Array:
    """y_i = sum_e w_e over the edges e that enter i, added to `before`."""
    arrays = (weights, optional(before, weights.dtype))
    return call_kernel(
        "jaxgraph_edge_sum",
        over.edges.by_receiver,
        over.group,
        arrays,
        [(shape, weights.dtype)],
        {0: 1},
    )[0]


def _check_heads(values: jax.Array) -> None:
    if values.ndim != 3 or values.shape[1] > MOST_HEADS:
        raise ValueError(
            f"values have shape {values.shape}; expected [senders, heads, features] with at most "
            f"{MOST_HEADS} heads; use implementation='xla' for more"
        )


def _dropout_arrays(over: AttentionEdges) -> tuple[jax.Array, ...]:
    edges = over.edges
    drops = over.reducer.seed is not None and over.reducer.rate > 0
    seed = jnp.stack(over.reducer.seed) if drops and over.reducer.seed else None
    starts = None
    if edges.sender_ptr is not None or edges.receiver_ptr is not None:
        zero = jnp.zeros((), jnp.int32)
        starts = jnp.stack(
            [
                zero if pointer is None else pointer[over.group]
                for pointer in (edges.sender_ptr, edges.receiver_ptr)
            ]
        )
    return (
        optional(seed, jnp.uint32),
        edges.sender_ids,
        edges.receiver_ids,
        optional(starts, jnp.int32),
        optional(edges.repetition, jnp.int32),
        optional(over.missing, jnp.bool_),
    )


def _attributes(over: AttentionEdges, logits: _Logits) -> dict[str, Any]:
    rate = over.reducer.rate
    return {
        "kind": logits.kind,
        "parameter": np.float64(logits.parameter),
        "threshold": np.int64(keep_threshold(rate)),
        "scale": np.float64(1.0 / (1.0 - rate)),
    }


def _starts(
    before: Sequence[jax.Array | None],
    wanted: Sequence[bool],
    shapes: Sequence[tuple[int, ...]],
    dtype: np.dtype,
) -> list[jax.Array | None]:
    """What the gradients wanted are added to: if one has something, the others have zeros."""
    parts = [part if want else None for part, want in zip(before, wanted, strict=True)]
    if all(part is None for part in parts):
        return parts
    zeros = [jnp.zeros(shape, dtype) for shape in shapes]
    return [zero if part is None else part for part, zero in zip(parts, zeros, strict=True)]


def _total(first: jax.Array | None, second: jax.Array | None) -> jax.Array | None:
    """The sum of what there is."""
    if first is None or second is None:
        return second if first is None else first
    return first + second
