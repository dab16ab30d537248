"""The passes of attention over the edges, forward and backward.

Every pass recomputes the logits from both ends of an edge. The backward makes two passes: the first
forms the sums at senders and writes the gradient of each edge, one number per head; the second sums
these at receivers. No other array has the size of the edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgraph.ops.core.attention import DOT, GAT, GATV2, Attention
from jaxgraph.ops.core.edges import EdgeGroup
from jaxgraph.ops.core.precision import accumulation_dtype
from jaxgraph.ops.core.randomness import keep_threshold
from jaxgraph.ops.core.reducers import Softmax, kept_of_softmax
from jaxgraph.ops.cpu.custom_call import call_kernel, optional

MOST_HEADS = 64
"""The most heads that the kernels support."""

_KINDS = {GAT: np.int64(0), GATV2: np.int64(1), DOT: np.int64(2)}
"""The numbers of the kinds of logits in the kernels."""

State = tuple[jax.Array, jax.Array, jax.Array]


def _dtype(attention: Attention) -> np.dtype:
    """The type in which values are accumulated."""
    return accumulation_dtype(attention.values.dtype)


def attention_state(over: EdgeGroup, attention: Attention, before: State | None) -> State:
    """The state of `Softmax` after all messages of a group, with sums that have been divided.

    After the last group it holds the outputs, without one more pass over all rows.
    """
    parts = before or (None, None, None)
    dtype, rows = _dtype(attention), attention.receiver.shape[0]
    arrays = (
        attention.receiver,
        attention.sender,
        optional(attention.vector, dtype),
        attention.values,
        *_dropout_arrays(over, attention.reducer),
        *(optional(part, dtype) for part in parts),
    )
    heads, features = attention.values.shape[1:]
    results = [((rows, heads), dtype), ((rows, heads), dtype), ((rows, heads, features), dtype)]
    first = len(arrays) - len(results)
    peak, total, sums = call_kernel(
        "jaxgraph_attention",
        over,
        "receiver",
        arrays,
        results,
        {result: first + result for result in range(3)},
        **_attributes(attention),
    )
    return peak, total, sums


def finished(state: State, attention: Attention) -> tuple[jax.Array, Any]:
    """The result of the reducer's `finish`, from a state of `attention_state`."""
    peak, total, outputs = state
    values = outputs.astype(attention.values.dtype)
    return attention.reducer.joined(values, kept_of_softmax(peak, total))


def sender_gradients(
    over: EdgeGroup,
    attention: Attention,
    adjoint: Sequence[jax.Array],
    wanted: Sequence[bool],
    before: Sequence[jax.Array | None],
) -> tuple[jax.Array | None, jax.Array | None, jax.Array, jax.Array]:
    """The sums of gradients at senders, and the gradient of each edge for its receiver."""
    starts = [part if want else None for part, want in zip(before, wanted[:2], strict=True)]
    dtype, values, heads = _dtype(attention), attention.values, attention.values.shape[1]
    receiver, packed, gradient = _receiver_rows(attention, adjoint)
    arrays = (
        attention.sender,
        receiver,
        optional(attention.vector, dtype),
        values,
        gradient,
        packed,
        *_dropout_arrays(over, attention.reducer),
        *(optional(start, dtype) for start in starts),
    )
    slots = over.edges.by_receiver.neighbors.shape[0] if wanted[2] else 0
    own_rows = over.missing.shape[0] if wanted[2] and over.missing is not None else 0
    shapes = (
        values.shape if wanted[0] else (0,),
        attention.sender.shape if wanted[1] else (0,),
        (slots, heads),
        (own_rows, heads),
    )
    dvalues, dsender, per_edge, per_self = call_kernel(
        "jaxgraph_attention_gradient",
        over,
        "sender",
        arrays,
        [(shape, dtype) for shape in shapes],
        {0: len(arrays) - 2, 1: len(arrays) - 1},
        inverse=np.bool_(len(adjoint) == 4),
        **_attributes(attention),
    )
    return dvalues if wanted[0] else None, dsender if wanted[1] else None, per_edge, per_self


def _receiver_rows(
    attention: Attention, adjoint: Sequence[jax.Array]
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The receivers' rows that the gradient reads: logits' inputs, numbers per head, and g."""
    gradient, *heads = adjoint
    # Numbers that are read together are stored together.
    if attention.kind == GAT:
        heads.insert(0, attention.receiver)
    packed = jnp.concatenate([part.astype(_dtype(attention)) for part in heads], 1)
    receiver = packed if attention.kind == GAT else attention.receiver
    return receiver, packed, gradient.astype(attention.values.dtype)


def hidden_gradient(
    over: EdgeGroup,
    attention: Attention,
    per_edge: jax.Array,
    per_self: jax.Array,
    before: Sequence[jax.Array | None],
) -> tuple[jax.Array, jax.Array]:
    """The gradients of GATv2's receivers and of its vector."""
    dtype, vector = _dtype(attention), optional(attention.vector, _dtype(attention))
    arrays = (
        attention.receiver,
        attention.sender,
        vector,
        per_edge,
        per_self,
        optional(over.missing, jnp.bool_),
        *(optional(part, dtype) for part in before),
    )
    dreceiver, dvector = call_kernel(
        "jaxgraph_hidden_gradient",
        over,
        "receiver",
        arrays,
        [(attention.receiver.shape, dtype), (vector.shape, dtype)],
        {0: 6, 1: 7},
        slope=np.float64(attention.parameter),
    )
    return dreceiver, dvector


def edge_sum(
    over: EdgeGroup, per_edge: jax.Array, num_rows: int, before: jax.Array | None
) -> jax.Array:
    """y_i = sum_e w_e over the edges e that enter i, added to `before`."""
    dtype = per_edge.dtype
    arrays = (per_edge, optional(before, dtype))
    results = [((num_rows, per_edge.shape[1]), dtype)]
    return call_kernel("jaxgraph_edge_sum", over, "receiver", arrays, results, {0: 1})[0]


def _dropout_arrays(over: EdgeGroup, reducer: Softmax) -> tuple[jax.Array, ...]:
    edges = over.edges
    drops = reducer.seed is not None and reducer.rate > 0
    seed = jnp.stack(reducer.seed) if drops and reducer.seed else None
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


def _attributes(attention: Attention) -> dict[str, Any]:
    rate = attention.reducer.rate
    return {
        "kind": _KINDS[attention.kind],
        "parameter": np.float64(attention.parameter),
        "threshold": np.int64(keep_threshold(rate)),
        "scale": np.float64(1.0 / (1.0 - rate)),
    }
