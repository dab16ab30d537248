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

from jaxgraph.ops.edges import EdgeChunk, EdgeGroups, for_each_chunk, match_variation, when_ready
from jaxgraph.ops.precision import accumulation_dtype, to_accumulation
from jaxgraph.ops.reducers import Reducer, Sum

__all__ = [
    "Block",
    "Inputs",
    "Pullback",
    "Wanted",
    "add_at",
    "add_pullback",
    "at_edges",
    "chunk_examples",
    "evaluate_message",
    "finish_messages",
    "floating_leaves",
    "fold_block",
    "merge_at",
    "message_shapes",
    "pull_block",
    "pull_messages",
    "pull_self_messages",
    "reduce_messages",
    "reduce_self_messages",
    "with_floating_leaves",
    "zero_gradients",
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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Block:
    """The edges among the rows of one table of senders and one of receivers (group 0 of `edges`).

    Attributes:
      edges: the edges.
      node_ids: int32 [receiver rows], global ids.
      missing_self_loop: bool [receiver rows], which nodes get a message from themselves that no
        edge carries; None: no node does. The first rows of the senders are then the receivers.
    """

    edges: EdgeGroups
    node_ids: jax.Array
    missing_self_loop: jax.Array | None

    @property
    def sender_rows(self) -> int:
        """Rows of the table of senders, padding included."""
        return self.edges.by_sender.position.shape[0]

    @property
    def receiver_rows(self) -> int:
        """Rows of the table of receivers, padding included."""
        return self.node_ids.shape[0]

    @property
    def edge_slots(self) -> int:
        """Slots of an array with one row per edge, padding included."""
        return self.edges.by_receiver.neighbors.shape[0]


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

    `rows` are those of the sender or of the receiver, whichever side was asked for.
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


def _take(tree: Pytree, rows: jax.Array) -> Pytree:
    return jax.tree.map(lambda leaf: leaf.at[rows].get(mode="promise_in_bounds"), tree)


def _add_rows(total: jax.Array, start: jax.Array, addend: jax.Array) -> jax.Array:
    old = lax.dynamic_slice_in_dim(total, start, addend.shape[0], 0)
    return lax.dynamic_update_slice_in_dim(total, old + addend.astype(old.dtype), start, 0)


def at_edges(inputs: Inputs, chunk: EdgeChunk) -> Inputs:
    """The inputs as the edges of a chunk see them, [chunk, ...]."""
    return Inputs(
        inputs.params,
        _take(inputs.sender, chunk.senders),
        _take(inputs.receiver, chunk.receivers),
        _take(inputs.edge, chunk.edge_ids),
    )


def evaluate_message(message: MessageFn, inputs: Inputs) -> Pytree:
    """The messages of edges that see `inputs`."""
    return message(inputs.params, inputs.sender, inputs.receiver, inputs.edge)


def _evaluate_alone(message: MessageFn, inputs: Inputs) -> Pytree:
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
        repetition = _take(edges.repetition, chunk.edge_ids)
    return reducer.per_edge(
        _take(edges.receiver_ids, receivers), _take(edges.sender_ids, senders), repetition
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

    compute = _evaluate_alone if reducer.compares else evaluate_message

    def body(chunk: EdgeChunk, first: jax.Array, state: Pytree) -> Pytree:
        messages = compute(message, at_edges(inputs, chunk))
        keep = _per_edge(edges, group, reducer, chunk)
        gather = reducer.collapse if chunk.heavy else reducer.lift
        return _merge_rows(reducer, state, first, gather(messages, chunk.mask, keep))

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


def _merge_rows(reducer: Reducer, state: Pytree, first: jax.Array, addend: Pytree) -> Pytree:
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
      edge_gradient: running gradient of the floating edge inputs, to be added to; by receiver only.
      after: as for `reduce_messages`.

    Returns:
      Gradients, `rows` by compact row of the group.
    """
    capacity = edges.receiver_capacity if side == "receiver" else edges.sender_capacity
    wanted = inputs.receiver if side == "receiver" else inputs.sender
    wanted = floating_leaves(wanted)
    rows = [jnp.zeros((capacity, *x.shape[1:]), accumulation_dtype(x.dtype)) for x in wanted]
    params = _zero_totals(inputs.params) if want_params else []
    rows, params = start_after((rows, params), when_ready(adjoint) if after is None else after)
    start = match_variation((rows, params, edge_gradient or []), (edges, inputs, adjoint, reducer))

    def body(chunk: EdgeChunk, first: jax.Array, carry: Pytree) -> Pytree:
        rows, params, edge = carry
        seen = at_edges(inputs, chunk)
        keep = _per_edge(edges, group, reducer, chunk)
        grads = _pull_chunk(
            message, reducer, seen, _take(adjoint, chunk.receivers), keep, chunk.mask
        )
        row_grads = grads.receiver if side == "receiver" else grads.sender
        if chunk.heavy:
            row_grads = [jnp.sum(to_accumulation(leaf), 0, keepdims=True) for leaf in row_grads]
        rows = [_add_rows(total, first, leaf) for total, leaf in zip(rows, row_grads, strict=True)]
        if params:
            params = [total + leaf for total, leaf in zip(params, grads.params, strict=True)]
        if edge:
            edge = [
                _add_rows(total, chunk.first_slot, leaf)
                for total, leaf in zip(edge, grads.edge, strict=True)
            ]
        return rows, params, edge

    rows, params, edge = for_each_chunk(edges, side, group, body, start)
    # Rounded here, so that rows of 16 bits travel to other parts as such.
    rows = [leaf.astype(like.dtype) for leaf, like in zip(rows, wanted, strict=True)]
    return Pullback(rows, params, edge)


def _zero_totals(tree: Pytree) -> list[jax.Array]:
    return [jnp.zeros(x.shape, accumulation_dtype(x.dtype)) for x in floating_leaves(tree)]


def _pull_chunk(
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
    seen = _evaluate_alone(message, inputs) if reducer.compares else messages
    cotangent = reducer.cotangent(seen, adjoint, keep)

    def masked(gradient: jax.Array, value: jax.Array) -> jax.Array | np.ndarray:
        if not is_floating(value):
            return np.zeros(value.shape, jax.dtypes.float0)
        shape = mask.shape + (1,) * (gradient.ndim - 1)
        kept = jnp.where(mask.reshape(shape), gradient, 0).astype(value.dtype)
        return match_variation(kept, value)

    return pull(jax.tree.map(masked, cotangent, messages))[0]


def reduce_self_messages(
    node_ids: jax.Array,
    missing: jax.Array,
    chunk: int,
    message: MessageFn,
    reducer: Reducer,
    inputs: Inputs,
    state: Pytree,
) -> Pytree:
    """Folds in the message of every node to itself where `missing` says that no edge does.

    Args:
      node_ids: int32 [rows], global ids.
      missing: bool [rows].
      chunk: rows handled at a time.
      message, reducer, inputs: as for `reduce_messages`; `inputs.edge` holds no arrays.
      state: the reducer's state, [rows, ...].

    Returns:
      The new state.
    """

    compute = _evaluate_alone if reducer.compares else evaluate_message

    def body(rows: jax.Array, mask: jax.Array, first: jax.Array, state: Pytree) -> Pytree:
        messages = compute(message, _at_rows(inputs, rows))
        ids = _take(node_ids, rows)
        keep = reducer.per_edge(ids, ids, jnp.zeros_like(ids))
        return _merge_rows(reducer, state, first, reducer.lift(messages, mask, keep))

    return _for_each_row_chunk(
        missing, chunk, body, match_variation(state, (missing, inputs, reducer))
    )


def pull_self_messages(
    node_ids: jax.Array,
    missing: jax.Array,
    chunk: int,
    message: MessageFn,
    reducer: Reducer,
    inputs: Inputs,
    adjoint: Pytree,
) -> Inputs:
    """Gradients, as lists, of the floating inputs of the messages of nodes to themselves.

    Args:
      node_ids, missing, chunk, message, reducer, inputs: as for `reduce_self_messages`.
      adjoint: `reducer.adjoint(...)`, [rows, ...].

    Returns:
      `Inputs` of lists: params, sender [rows, ...], receiver [rows, ...], and no edges.
    """

    def body(rows: jax.Array, mask: jax.Array, first: jax.Array, carry: Inputs) -> Inputs:
        ids = _take(node_ids, rows)
        keep = reducer.per_edge(ids, ids, jnp.zeros_like(ids))
        at_rows = _at_rows(inputs, rows)
        grads = _pull_chunk(message, reducer, at_rows, _take(adjoint, rows), keep, mask)

        def add(totals: list[jax.Array], parts: list[jax.Array]) -> list[jax.Array]:
            return [_add_rows(t, first, part) for t, part in zip(totals, parts, strict=True)]

        params = [t + part for t, part in zip(carry.params, grads.params, strict=True)]
        return Inputs(
            params, add(carry.sender, grads.sender), add(carry.receiver, grads.receiver), []
        )

    zeros = _zero_totals
    start = Inputs(zeros(inputs.params), zeros(inputs.sender), zeros(inputs.receiver), [])
    start = start_after(start, when_ready(adjoint))
    start = match_variation(start, (missing, inputs, adjoint, reducer))
    return _for_each_row_chunk(missing, chunk, body, start)


def _at_rows(inputs: Inputs, rows: jax.Array) -> Inputs:
    sender, receiver = _take(inputs.sender, rows), _take(inputs.receiver, rows)
    return Inputs(inputs.params, sender, receiver, inputs.edge)


def _for_each_row_chunk(
    missing: jax.Array,
    chunk: int,
    body: Callable[[jax.Array, jax.Array, jax.Array, Pytree], Pytree],
    carry: Pytree,
) -> Pytree:
    """`body(rows, mask, first_row, carry)` over consecutive rows, `chunk` at a time.

    Masked lanes see a row that counts, so that what stands in rows of padding is never read.
    """
    count = missing.shape[0]
    lanes = jnp.arange(chunk, dtype=jnp.int32)
    some = jnp.argmax(missing).astype(jnp.int32)

    def step(index: jax.Array, carry: Pytree) -> Pytree:
        # The last chunk slides back to end with the rows; what it sees again is masked.
        first = jnp.minimum(index * chunk, count - chunk)
        rows = first + lanes
        mask = _take(missing, rows) & (rows >= index * chunk)
        return body(jnp.where(mask, rows, some), mask, first, carry)

    trips = jnp.where(missing[some], -(-count // chunk), 0)
    return lax.fori_loop(0, trips, step, carry)


def merge_at(reducer: Reducer, state: Pytree, compact: Pytree, position: jax.Array) -> Pytree:
    """Merges the compact rows of a group into the first rows of a state.

    Args:
      reducer: whose states these are.
      state: [rows, ...].
      compact: [compact rows, ...].
      position: int32 [rows to change], each row's compact row, -1: none.

    Returns:
      The new state.
    """
    size = position.shape[0]
    has = position >= 0
    found = _take(compact, jnp.maximum(position, 0))
    old = jax.tree.map(lambda leaf: leaf[:size], state)
    merged = reducer.merge(old, found)

    def place(leaf: jax.Array, new: jax.Array, kept: jax.Array) -> jax.Array:
        new = jnp.where(has.reshape(size, *(1,) * (new.ndim - 1)), new, kept)
        return lax.dynamic_update_slice_in_dim(leaf, new, 0, 0)

    return jax.tree.map(place, state, merged, old)


def fold_block(block: Block, message: MessageFn, reducer: Reducer, inputs: Inputs) -> Pytree:
    """The reducer's state [receiver rows, ...] after all messages of a block.

    Args:
      block: the edges.
      message, reducer, inputs: as for `reduce_messages`.

    Returns:
      The state.

    Raises:
      ValueError: an array of `inputs.edge` does not have one row per slot.
    """
    edges = block.edges
    _check_slots(block, inputs.edge)
    shapes = message_shapes(message, inputs, edges.chunk)
    state = start_after(reducer.empty(shapes, block.receiver_rows), when_ready(inputs))
    state = match_variation(state, (edges, inputs, reducer))
    if block.missing_self_loop is not None:
        state = reduce_self_messages(
            block.node_ids, block.missing_self_loop, edges.chunk, message, reducer, inputs, state
        )
    compact = reduce_messages(edges, 0, message, reducer, inputs, when_ready(state))
    return merge_at(reducer, state, compact, edges.by_receiver.position)


def _check_slots(block: Block, edge: Pytree) -> None:
    for leaf in jax.tree.leaves(edge):
        if leaf.shape[:1] != (block.edge_slots,):
            raise ValueError(
                f"an array of edge data has shape {leaf.shape}; expected one row per edge slot of "
                f"the shard, [{block.edge_slots}, ...], as shard.edges has"
            )


def pull_block(
    block: Block,
    message: MessageFn,
    reducer: Reducer,
    inputs: Inputs,
    adjoint: Pytree,
    wanted: Wanted,
) -> Inputs:
    """Gradients, as lists, of the floating inputs of the messages of a block.

    Args:
      block, message, reducer, inputs: as for `fold_block`.
      adjoint: `reducer.adjoint(...)`, [receiver rows, ...].
      wanted: which gradients are needed; the others are zeros.

    Returns:
      `Inputs` of lists of gradients.
    """
    edges = block.edges
    after = when_ready(adjoint)
    grads = start_after(zero_gradients(inputs), after)
    grads = match_variation(grads, (edges, inputs, adjoint, reducer))
    if block.missing_self_loop is not None:
        own = pull_self_messages(
            block.node_ids, block.missing_self_loop, edges.chunk, message, reducer, inputs, adjoint
        )
        grads = Inputs(
            own.params,
            _head_replaced(grads.sender, own.sender),
            own.receiver,
            grads.edge,
        )
        after = when_ready(own.sender)
    if wanted.by_receiver:
        pulled = pull_messages(
            edges,
            "receiver",
            0,
            message,
            reducer,
            inputs,
            adjoint,
            want_params=wanted.params,
            edge_gradient=grads.edge if wanted.edge else None,
            after=after,
        )
        after = when_ready((pulled.rows, pulled.params, pulled.edge))
        receiver = add_at(grads.receiver, pulled.rows, edges.by_receiver.position)
        grads = add_pullback(grads, pulled, receiver=receiver)
    if wanted.by_sender:
        pulled = pull_messages(
            edges,
            "sender",
            0,
            message,
            reducer,
            inputs,
            adjoint,
            want_params=wanted.params and not wanted.by_receiver,
            after=after,
        )
        sender = add_at(grads.sender, pulled.rows, edges.by_sender.position)
        grads = add_pullback(grads, pulled, sender=sender)
    return grads


def _head_replaced(totals: list[jax.Array], heads: list[jax.Array]) -> list[jax.Array]:
    """Arrays of zeros whose first rows are replaced."""
    return [
        head if head.shape == total.shape else lax.dynamic_update_slice_in_dim(total, head, 0, 0)
        for total, head in zip(totals, heads, strict=True)
    ]


def zero_gradients(inputs: Inputs) -> Inputs:
    """`Inputs` of lists of zeros, one per floating leaf; an edge's is never added to twice."""
    params, sender, receiver = map(_zero_totals, (inputs.params, inputs.sender, inputs.receiver))
    return Inputs(
        params, sender, receiver, [jnp.zeros_like(x) for x in floating_leaves(inputs.edge)]
    )


def add_pullback(
    grads: Inputs,
    pulled: Pullback,
    *,
    sender: list[jax.Array] | None = None,
    receiver: list[jax.Array] | None = None,
) -> Inputs:
    """Running gradients after a pullback, whose rows the caller has already put in place."""
    params = grads.params
    if pulled.params:
        params = [total + part for total, part in zip(params, pulled.params, strict=True)]
    return Inputs(
        params,
        grads.sender if sender is None else sender,
        grads.receiver if receiver is None else receiver,
        pulled.edge or grads.edge,
    )


def add_at(
    totals: list[jax.Array], compact: list[jax.Array], position: jax.Array
) -> list[jax.Array]:
    """Adds compact rows to the first rows of each array, as `merge_at` does for states."""
    return merge_at(Sum(), totals, compact, position) if totals else totals
