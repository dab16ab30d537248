"""Messages over one block of edges: all edges among one table of senders and one of receivers."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.edges import EdgeGroup, EdgeGroups, match_variation
from jaxgraph.ops.kernels import FinishingKernel, Kernel, WholeKernel, find_kernel
from jaxgraph.ops.messages import (
    Inputs,
    MessageFn,
    Pullback,
    Wanted,
    finish_messages,
    floating_leaves,
    message_shapes,
    pull_edges,
    pull_messages,
    reduce_messages,
    start_after,
    zero_totals,
)
from jaxgraph.ops.reducers import Reducer, Sum
from jaxgraph.ops.rows import take_rows, with_rows_from
from jaxgraph.ops.self_messages import pull_self_messages, reduce_self_messages
from jaxgraph.ops.stored import when_ready
from jaxgraph.ops.whole_graph import fits_whole, pull_whole, reduce_whole, weigh_edges
from pallas_kernels.pytrees import pytree

__all__ = [
    "Block",
    "Places",
    "Pulled",
    "add_at",
    "block_adjoint",
    "finish_block",
    "fold_block",
    "fold_group",
    "pull_block",
    "pull_group",
    "reduce_block",
]

Pytree = Any


@pytree
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
    found = take_rows(compact, jnp.maximum(position, 0))
    old = jax.tree.map(lambda leaf: leaf[:size], state)
    merged = reducer.merge(old, found)

    def place(leaf: jax.Array, new: jax.Array, kept: jax.Array) -> jax.Array:
        new = jnp.where(has.reshape(size, *(1,) * (new.ndim - 1)), new, kept)
        return with_rows_from(leaf, 0, new)

    return jax.tree.map(place, state, merged, old)


def fold_block(block: Block, message: MessageFn, reducer: Reducer, inputs: Inputs) -> Pytree:
    """The state [receiver rows, ...] of the reducer, or its kernel, after all messages of a block.

    Args:
      block: the edges.
      message, reducer, inputs: as for `reduce_messages`.

    Returns:
      The state.

    Raises:
      ValueError: an array of `inputs.edge` does not have one row per slot.
    """
    edges, rows = block.edges, block.receiver_rows
    _check_slots(block, inputs.edge)
    kernel = find_kernel(edges, message, reducer, inputs)
    if kernel is not None:
        return kernel.fold(EdgeGroup(edges, 0, block.missing_self_loop), inputs, None, rows)
    shapes = message_shapes(message, inputs, edges.chunk)
    whole = fits_whole(edges, message, reducer, inputs)
    if block.missing_self_loop is None and whole:
        return reduce_whole(edges, message, reducer, inputs)
    if block.missing_self_loop is None:
        compact = reduce_messages(edges, 0, message, reducer, inputs)
        return _spread(compact, edges.by_receiver.position, reducer.empty(shapes, rows))
    state = start_after(reducer.empty(shapes, rows), when_ready(inputs))
    state = match_variation(state, (edges, inputs, reducer))
    state = reduce_self_messages(
        block.node_ids, block.missing_self_loop, edges.chunk, message, reducer, inputs, state
    )
    if whole:
        return reducer.merge(state, reduce_whole(edges, message, reducer, inputs))
    compact = reduce_messages(edges, 0, message, reducer, inputs, when_ready(state))
    return merge_at(reducer, state, compact, edges.by_receiver.position)


def _spread(compact: Pytree, position: jax.Array, otherwise: Pytree) -> Pytree:
    """Compact rows at the rows that they stand for."""
    has = position >= 0
    found = take_rows(compact, jnp.maximum(position, 0))
    return jax.tree.map(
        lambda new, other: jnp.where(has.reshape(-1, *(1,) * (new.ndim - 1)), new, other),
        found,
        otherwise,
    )


def reduce_block(
    block: Block, message: MessageFn, reducer: Reducer, inputs: Inputs
) -> tuple[Pytree, Pytree]:
    """What a reducer makes of all messages of a block.

    Args:
      block, message, reducer, inputs: as for `fold_block`.

    Returns:
      Outputs [receiver rows, ...] in the type of the messages, and what `block_adjoint` needs.

    Raises:
      ValueError: as `fold_block` does.
    """
    kernel = find_kernel(block.edges, message, reducer, inputs)
    if isinstance(kernel, WholeKernel):
        _check_slots(block, inputs.edge)
        return kernel.reduce(EdgeGroup(block.edges, 0, block.missing_self_loop), inputs)
    state = fold_block(block, message, reducer, inputs)
    return finish_block(block, message, reducer, inputs, state)


def finish_block(
    block: Block, message: MessageFn, reducer: Reducer, inputs: Inputs, state: Pytree
) -> tuple[Pytree, Pytree]:
    """What a reducer makes of a state that has taken in all messages, of this block and others.

    Args:
      block, message, reducer, inputs: as for `fold_block`.
      state: what `fold_block` returned, or `fold_group` after it.

    Returns:
      As `reduce_block`.
    """
    kernel = find_kernel(block.edges, message, reducer, inputs)
    if isinstance(kernel, FinishingKernel):
        return kernel.finish(state, inputs)
    return finish_messages(message, reducer, inputs, block.edges.chunk, state)


def block_adjoint(
    block: Block,
    message: MessageFn,
    reducer: Reducer,
    inputs: Inputs,
    results: tuple[Pytree, Pytree],
    gradient: Pytree,
) -> Pytree:
    """What `pull_block` needs of the receivers.

    Args:
      block, message, reducer, inputs: as for `fold_block`.
      results: what `reduce_block` or `finish_block` returned.
      gradient: of the outputs.

    Returns:
      One row per receiver row.
    """
    kernel = find_kernel(block.edges, message, reducer, inputs)
    of = kernel if isinstance(kernel, FinishingKernel) else reducer
    return of.adjoint(*results, gradient)


def _check_slots(block: Block, edge: Pytree) -> None:
    for leaf in jax.tree.leaves(edge):
        if leaf.shape[:1] != (block.edge_slots,):
            raise ValueError(
                f"an array of edge data has shape {leaf.shape}; expected one row per edge slot of "
                f"the shard, [{block.edge_slots}, ...], as shard.edges has"
            )


def fold_group(
    edges: EdgeGroups,
    group: jax.Array | int,
    message: MessageFn,
    reducer: Reducer,
    inputs: Inputs,
    state: Pytree,
    position: jax.Array,
    after: jax.Array | None,
) -> tuple[Pytree, Pytree]:
    """Folds the messages of one more group into a state.

    Args:
      edges, group, message, reducer, inputs, after: as for `reduce_messages`.
      state: what `fold_block` returned, [rows, ...].
      position: int32 [rows to change], the compact row of each row, -1: none.

    Returns:
      The new state, and arrays that exist when it does.
    """
    kernel = find_kernel(edges, message, reducer, inputs)
    if kernel is not None:
        rows = jax.tree.leaves(state)[0].shape[0]
        over = EdgeGroup(edges, _ordered(group, after))
        state = kernel.fold(over, inputs, state, rows)
        return state, state
    compact = reduce_messages(edges, group, message, reducer, inputs, after)
    return merge_at(reducer, state, compact, position), compact


def _ordered(group: jax.Array | int, after: jax.Array | None) -> jax.Array | int:
    """The number of a group, known only when `after` is."""
    return group if after is None else group + after


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
      adjoint: `reducer.adjoint(...)` or `block_adjoint(...)`, [receiver rows, ...].
      wanted: which gradients are needed; the others are zeros.

    Returns:
      `Inputs` of lists of gradients.
    """
    edges, missing = block.edges, block.missing_self_loop
    after = when_ready(adjoint)
    grads = start_after(zero_gradients(inputs), after)
    grads = match_variation(grads, (edges, inputs, adjoint, reducer))
    kernel = find_kernel(edges, message, reducer, inputs)
    if kernel is not None:
        nothing = Inputs([], [], [], [])
        over = EdgeGroup(edges, 0, missing)
        pulled = kernel.pull(over, inputs, adjoint, wanted, nothing)
        parts = ("params", "sender", "receiver", "edge")
        return Inputs(*(getattr(pulled, part) or getattr(grads, part) for part in parts))
    if missing is not None:
        own = pull_self_messages(
            block.node_ids, missing, edges.chunk, message, reducer, inputs, adjoint
        )
        sender = _head_replaced(grads.sender, own.sender)
        grads = Inputs(own.params, sender, own.receiver, grads.edge)
        after = when_ready(own.sender)
    wanted, grads = _pull_whole(edges, message, reducer, inputs, adjoint, wanted, grads)
    places = Places(edges.by_sender.position, edges.by_receiver.position)
    return pull_group(
        edges, 0, message, reducer, inputs, adjoint, wanted, grads, places, after
    ).gradients


def _pull_whole(
    edges: EdgeGroups,
    message: MessageFn,
    reducer: Reducer,
    inputs: Inputs,
    adjoint: Pytree,
    wanted: Wanted,
    gradients: Inputs,
) -> tuple[Wanted, Inputs]:
    """What remains to be pulled, and the gradients after what could be for all rows together."""
    if not fits_whole(edges, message, reducer, inputs):
        return wanted, gradients
    # The gradient of parameters comes with that of one end, a chunk of edges at a time.
    with_params = wanted.params and not wanted.edge
    weights = weigh_edges(edges, message, reducer, inputs, adjoint)
    for side in (
        ("sender", "receiver") if not with_params else ("sender",) if wanted.receiver else ()
    ):
        if getattr(wanted, side):
            rows = pull_whole(edges, side, message, reducer, inputs, adjoint, weights)
            totals = [t + part for t, part in zip(getattr(gradients, side), rows, strict=True)]
            wanted = dataclasses.replace(wanted, **{side: False})
            gradients = dataclasses.replace(gradients, **{side: totals})
    return wanted, gradients


@dataclasses.dataclass(frozen=True)
class Places:
    """Where the rows of a group stand among those whose gradients run.

    Attributes:
      sender, receiver: int32 [rows to change], the compact row of each row, -1: none; or None: the
        rows are of another table, and their gradient is an answer to be sent.
    """

    sender: jax.Array | None
    receiver: jax.Array | None


@dataclasses.dataclass(frozen=True)
class Pulled:
    """What pulling gradients through one group leaves.

    Attributes:
      gradients: the running gradients, as lists.
      answer: gradients of rows of another table, or None.
      done: arrays that exist when the work is over.
    """

    gradients: Inputs
    answer: list[jax.Array] | None
    done: Pytree


def pull_group(
    edges: EdgeGroups,
    group: jax.Array | int,
    message: MessageFn,
    reducer: Reducer,
    inputs: Inputs,
    adjoint: Pytree,
    wanted: Wanted,
    gradients: Inputs,
    places: Places,
    after: jax.Array | None,
) -> Pulled:
    """Pulls the gradient of the outputs back through the messages of one group.

    Args:
      edges, group, message, reducer, inputs, adjoint, after: as for `pull_messages`.
      wanted: which gradients are needed.
      gradients: the running gradients, as lists.
      places: where rows are added; at most one end may be None.

    Returns:
      The new gradients.
    """
    kernel = find_kernel(edges, message, reducer, inputs)
    if kernel is not None:
        over = EdgeGroup(edges, _ordered(group, after))
        return _pull_by_kernel(kernel, over, inputs, adjoint, wanted, gradients, places)
    pull = partial(
        pull_messages,
        edges,
        group=group,
        message=message,
        reducer=reducer,
        inputs=inputs,
        adjoint=adjoint,
    )
    answer, done = None, Pullback([], [])
    want_params = wanted.params
    if wanted.receiver:
        done = pull("receiver", want_params=want_params, after=after)
        want_params, after = False, when_ready((done.rows, done.params))
        answer, rows = _settled(gradients.receiver, done.rows, places.receiver)
        gradients = add_pullback(gradients, done, receiver=rows)
    if wanted.edge:
        edge, params = pull_edges(
            edges,
            group,
            message,
            reducer,
            inputs,
            adjoint,
            gradients.edge,
            want_params=want_params,
            after=after,
        )
        want_params, after = False, when_ready((edge, params))
        gradients = add_pullback(dataclasses.replace(gradients, edge=edge), Pullback([], params))
    if wanted.by_sender:
        done = pull("sender", want_params=want_params, after=after)
        sent, rows = _settled(gradients.sender, done.rows, places.sender)
        answer = answer if sent is None else sent
        gradients = add_pullback(gradients, done, sender=rows)
    return Pulled(gradients, answer, done.rows)


def _settled(
    totals: list[jax.Array], rows: list[jax.Array], position: jax.Array | None
) -> tuple[list[jax.Array] | None, list[jax.Array]]:
    """Compact rows as an answer, or added to the totals."""
    if position is None:
        return rows, totals
    return None, add_at(totals, rows, position)


def _pull_by_kernel(
    kernel: Kernel,
    over: EdgeGroup,
    inputs: Inputs,
    adjoint: Pytree,
    wanted: Wanted,
    gradients: Inputs,
    places: Places,
) -> Pulled:
    before = Inputs(
        gradients.params,
        [] if places.sender is None else gradients.sender,
        [] if places.receiver is None else gradients.receiver,
        gradients.edge,
    )
    pulled = kernel.pull(over, inputs, adjoint, wanted, before)
    answer = None
    if places.sender is None:
        answer = _rounded(pulled.sender, inputs.sender) if wanted.sender else None
        pulled = dataclasses.replace(pulled, sender=gradients.sender)
    if places.receiver is None:
        answer = _rounded(pulled.receiver, inputs.receiver) if wanted.receiver else None
        pulled = dataclasses.replace(pulled, receiver=gradients.receiver)
    return Pulled(pulled, answer, (answer, pulled.sender, pulled.receiver))


def _rounded(rows: list[jax.Array], likes: Pytree) -> list[jax.Array]:
    """In the type of the inputs, so that rows of 16 bits travel to other parts as such."""
    pairs = zip(rows, floating_leaves(likes), strict=True)
    return [leaf.astype(like.dtype) for leaf, like in pairs]


def _head_replaced(totals: list[jax.Array], heads: list[jax.Array]) -> list[jax.Array]:
    """Arrays of zeros whose first rows are replaced."""
    return [
        head if head.shape == total.shape else with_rows_from(total, 0, head)
        for total, head in zip(totals, heads, strict=True)
    ]


def zero_gradients(inputs: Inputs) -> Inputs:
    """`Inputs` of lists of zeros, one per floating leaf; an edge's is never added to twice."""
    params, sender, receiver = map(zero_totals, (inputs.params, inputs.sender, inputs.receiver))
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
        grads.edge,
    )


def add_at(
    totals: list[jax.Array], compact: list[jax.Array], position: jax.Array
) -> list[jax.Array]:
    """Adds compact rows to the first rows of each array, as `merge_at` does for states."""
    return merge_at(Sum(), totals, compact, position) if totals else totals
