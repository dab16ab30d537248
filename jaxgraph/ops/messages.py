"""Messages over the edges of one shard, evaluated a chunk of edges at a time, and their pullback.

y_i = reduce_{e: j -> i} f(theta, s_j, r_i, x_e): no array of the size [edges, features] is ever
made, forward or backward. The backward recomputes the messages of a chunk and pulls the gradient
through them, once in the orientation by sender (for s) and, where the message looks at them, once
by receiver (for r, x and theta): both add to contiguous rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgraph.ops.edges import (
    EdgeChunk,
    EdgeGroups,
    for_each_chunk,
    match_variation,
    take_rows,
    when_ready,
)
from jaxgraph.ops.precision import accumulation_dtype, to_accumulation
from jaxgraph.ops.reducers import Reducer

__all__ = [
    "Inputs",
    "Pullback",
    "Wanted",
    "add_rows",
    "at_edges",
    "chunk_examples",
    "evaluate_alone",
    "evaluate_message",
    "finish_messages",
    "floating_leaves",
    "merge_rows",
    "message_shapes",
    "pull_chunk",
    "pull_messages",
    "reduce_messages",
    "start_after",
    "with_floating_leaves",
    "zero_totals",
]

Pytree = Any
MessageFn = Callable[[Pytree, Pytree, Pytree, Pytree], Pytree]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Inputs:
    """What a message is computed from.

    Attributes:
      params: any pytree, the same for every edge.
      sender: pytree of arrays [sender rows, ...].
      receiver: pytree of arrays [receiver rows, ...].
      edge: pytree of arrays [slots of the orientation by receiver, ...].
    """

    params: Pytree
    sender: Pytree
    receiver: Pytree
    edge: Pytree


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Which inputs need a gradient."""

    params: bool
    sender: bool
    receiver: bool
    edge: bool

    @property
    def by_receiver(self) -> bool:
        """Whether the edges must be walked by receiver."""
        return self.receiver or self.edge

    @property
    def by_sender(self) -> bool:
        """Whether the edges must be walked by sender."""
        return self.sender or (self.params and not self.by_receiver)


@dataclasses.dataclass(frozen=True)
class Pullback:
    """Gradients of the floating leaves of `Inputs`, in the order of their flattening.

    `rows` are those of the sender or of the receiver, whichever side was asked for; `edge` is by
    place in the walk by receiver (see `jaxgraph.ops.edges.to_slot_order`).
    """

    rows: list[jax.Array]
    params: list[jax.Array]
    edge: list[jax.Array]


def is_floating(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def floating_leaves(tree: Pytree) -> list[jax.Array]:
    """The leaves that have a gradient."""
    return [leaf for leaf in jax.tree.leaves(tree) if is_floating(leaf)]


def with_floating_leaves(tree: Pytree, floating: list[Any]) -> Pytree:
    """`tree` with its floating leaves replaced, in order."""
    replacements = iter(floating)
    return jax.tree.map(lambda leaf: next(replacements) if is_floating(leaf) else leaf, tree)


def add_rows(total: jax.Array, start: jax.Array, addend: jax.Array) -> jax.Array:
    old = lax.dynamic_slice_in_dim(total, start, addend.shape[0], 0)
    return lax.dynamic_update_slice_in_dim(total, old + addend.astype(old.dtype), start, 0)


def at_edges(inputs: Inputs, chunk: EdgeChunk) -> Inputs:
    """The inputs as the edges of a chunk see them, [chunk, ...]."""
    return Inputs(
        inputs.params,
        take_rows(inputs.sender, chunk.senders),
        take_rows(inputs.receiver, chunk.receivers),
        take_rows(inputs.edge, chunk.edge_ids),
    )


def evaluate_message(message: MessageFn, inputs: Inputs) -> Pytree:
    """The messages of edges that see `inputs`."""
    return message(inputs.params, inputs.sender, inputs.receiver, inputs.edge)


def evaluate_alone(message: MessageFn, inputs: Inputs) -> Pytree:
    """The messages, the same bits wherever they are computed.

    Fused with what surrounds it, a message is rounded in one way in the forward and in another in
    the backward, where the winner of a maximum would then not be recognised.
    """
    return lax.optimization_barrier(evaluate_message(message, lax.optimization_barrier(inputs)))


def _per_edge(
    edges: EdgeGroups, group: jax.Array | int, reducer: Reducer, chunk: EdgeChunk
) -> jax.Array | None:
    receivers, senders = chunk.receivers, chunk.senders
    if edges.receiver_ptr is not None:
        receivers = receivers + edges.receiver_ptr[group]
    if edges.sender_ptr is not None:
        senders = senders + edges.sender_ptr[group]
    if edges.repetition is None:
        repetition = jnp.zeros_like(chunk.senders)
    else:
        repetition = take_rows(edges.repetition, chunk.edge_ids)
    return reducer.per_edge(
        take_rows(edges.receiver_ids, receivers), take_rows(edges.sender_ids, senders), repetition
    )


def chunk_examples(inputs: Inputs, chunk: int) -> Inputs:
    """Zeros of the shapes that `chunk` edges see, varying over devices as the inputs do."""

    def some(leaf: jax.Array) -> jax.Array:
        return match_variation(jnp.zeros((chunk, *leaf.shape[1:]), leaf.dtype), leaf)

    sender, receiver, edge = jax.tree.map(some, (inputs.sender, inputs.receiver, inputs.edge))
    return Inputs(inputs.params, sender, receiver, edge)


def message_shapes(message: MessageFn, inputs: Inputs, chunk: int) -> Pytree:
    """Shapes and dtypes of the messages of `chunk` edges."""
    return jax.eval_shape(partial(evaluate_message, message), chunk_examples(inputs, chunk))


def reduce_messages(
    edges: EdgeGroups,
    group: jax.Array | int,
    message: MessageFn,
    reducer: Reducer,
    inputs: Inputs,
    after: jax.Array | None = None,
) -> Pytree:
    """Reduces the messages of one group of edges at their receivers.

    Args:
      edges: the edges of the shard.
      group: which group.
      message: `message(params, sender, receiver, edge)` on chunks of edges [chunk, ...].
      reducer: how messages meet.
      inputs: what messages are made from.
      after: 0, as int32, that is added to what the work starts from, and so orders it; None: what
        the work starts from is made when the inputs are there.

    Returns:
      The reducer's state, one row per compact row of the group.
    """
    shapes = message_shapes(message, inputs, edges.chunk)
    empty = reducer.empty(shapes, edges.receiver_capacity)

    compute = evaluate_alone if reducer.compares else evaluate_message

    def body(chunk: EdgeChunk, first: jax.Array, state: Pytree) -> Pytree:
        messages = compute(message, at_edges(inputs, chunk))
        keep = _per_edge(edges, group, reducer, chunk)
        gather = reducer.collapse if chunk.heavy else reducer.lift
        return merge_rows(reducer, state, first, gather(messages, chunk.mask, keep))

    empty = start_after(empty, when_ready(inputs) if after is None else after)
    start = match_variation(empty, (edges, inputs, reducer))
    return for_each_chunk(edges, "receiver", group, body, start)


def start_after(tree: Pytree, after: jax.Array) -> Pytree:
    """`tree` plus 0, not to be made before `after` is known (see `when_ready`)."""
    return jax.tree.map(lambda leaf: leaf + after.astype(leaf.dtype), tree)


def finish_messages(
    message: MessageFn, reducer: Reducer, inputs: Inputs, chunk: int, state: Pytree
) -> tuple[Pytree, Pytree]:
    """The outputs of a state that has taken in all messages, and what the backward needs of it.

    Args:
      message, reducer, inputs: as for `reduce_messages`.
      chunk: edges that the message function is called with.
      state: the reducer's state.

    Returns:
      Outputs in the type of the messages, and what is kept.
    """
    return reducer.finish(state, message_shapes(message, inputs, chunk))


def merge_rows(reducer: Reducer, state: Pytree, first: jax.Array, addend: Pytree) -> Pytree:
    size = jax.tree.leaves(addend)[0].shape[0]
    old = jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, first, size, 0), state)
    new = reducer.merge(old, addend)
    return jax.tree.map(
        lambda leaf, part: lax.dynamic_update_slice_in_dim(leaf, part, first, 0), state, new
    )


def pull_messages(
    edges: EdgeGroups,
    side: str,
    group: jax.Array | int,
    message: MessageFn,
    reducer: Reducer,
    inputs: Inputs,
    adjoint: Pytree,
    *,
    want_params: bool = False,
    edge_gradient: list[jax.Array] | None = None,
    after: jax.Array | None = None,
) -> Pullback:
    """Pulls the gradient of the outputs back through the messages of one group.

    Args:
      edges, group, message, reducer, inputs: as for `reduce_messages`.
      side: "sender" or "receiver", whose gradient is wanted (and the orientation that is walked).
      adjoint: `reducer.adjoint(...)`, one row per row of `inputs.receiver`.
      want_params: whether the gradient of the parameters is wanted as well.
      edge_gradient: running gradient of the floating edge inputs, by place in the walk by receiver,
        to be added to; by receiver only.
      after: as for `reduce_messages`.

    Returns:
      Gradients, `rows` by compact row of the group, `edge` by place in the walk.
    """
    capacity = edges.receiver_capacity if side == "receiver" else edges.sender_capacity
    wanted = inputs.receiver if side == "receiver" else inputs.sender
    wanted = floating_leaves(wanted)
    rows = [jnp.zeros((capacity, *x.shape[1:]), accumulation_dtype(x.dtype)) for x in wanted]
    params = zero_totals(inputs.params) if want_params else []
    rows, params = start_after((rows, params), when_ready(adjoint) if after is None else after)
    start = match_variation((rows, params, edge_gradient or []), (edges, inputs, adjoint, reducer))

    def body(chunk: EdgeChunk, first: jax.Array, carry: Pytree) -> Pytree:
        rows, params, edge = carry
        seen = at_edges(inputs, chunk)
        keep = _per_edge(edges, group, reducer, chunk)
        grads = pull_chunk(
            message, reducer, seen, take_rows(adjoint, chunk.receivers), keep, chunk.mask
        )
        row_grads = grads.receiver if side == "receiver" else grads.sender
        if chunk.heavy:
            row_grads = [jnp.sum(to_accumulation(leaf), 0, keepdims=True) for leaf in row_grads]
        rows = [add_rows(total, first, leaf) for total, leaf in zip(rows, row_grads, strict=True)]
        if params:
            params = [total + leaf for total, leaf in zip(params, grads.params, strict=True)]
        if edge:
            edge = [
                add_rows(total, chunk.first_place, leaf)
                for total, leaf in zip(edge, grads.edge, strict=True)
            ]
        return rows, params, edge

    rows, params, edge = for_each_chunk(edges, side, group, body, start)
    # Rounded here, so that rows of 16 bits travel to other parts as such.
    rows = [leaf.astype(like.dtype) for leaf, like in zip(rows, wanted, strict=True)]
    return Pullback(rows, params, edge)


def zero_totals(tree: Pytree) -> list[jax.Array]:
    return [jnp.zeros(x.shape, accumulation_dtype(x.dtype)) for x in floating_leaves(tree)]


def pull_chunk(
    message: MessageFn,
    reducer: Reducer,
    inputs: Inputs,
    adjoint: Pytree,
    keep: jax.Array | None,
    mask: jax.Array,
) -> Inputs:
    """Gradients of the floating leaves of `inputs`, as lists; zero in lanes without an edge."""
    floating = Inputs(
        floating_leaves(inputs.params),
        floating_leaves(inputs.sender),
        floating_leaves(inputs.receiver),
        floating_leaves(inputs.edge),
    )

    def evaluate(floating: Inputs) -> Pytree:
        return evaluate_message(
            message,
            Inputs(
                with_floating_leaves(inputs.params, floating.params),
                with_floating_leaves(inputs.sender, floating.sender),
                with_floating_leaves(inputs.receiver, floating.receiver),
                with_floating_leaves(inputs.edge, floating.edge),
            ),
        )

    # A replicated parameter would get its gradient summed over the mesh inside the loop.
    floating = match_variation(floating, (inputs, adjoint))
    messages, pull = jax.vjp(evaluate, floating)
    seen = evaluate_alone(message, inputs) if reducer.compares else messages
    cotangent = reducer.cotangent(seen, adjoint, keep)

    def masked(gradient: jax.Array, value: jax.Array) -> jax.Array | np.ndarray:
        if not is_floating(value):
            return np.zeros(value.shape, jax.dtypes.float0)
        shape = mask.shape + (1,) * (gradient.ndim - 1)
        kept = jnp.where(mask.reshape(shape), gradient, 0).astype(value.dtype)
        return match_variation(kept, value)

    return pull(jax.tree.map(masked, cotangent, messages))[0]
