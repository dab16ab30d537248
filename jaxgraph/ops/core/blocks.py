"""Messages over one block of edges: all edges among one table of senders and one of receivers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.edges import EdgeGroup, EdgeGroups, match_variation
from jaxgraph.ops.core.kernels import FinishingKernel, WholeKernel, find_kernel
from jaxgraph.ops.core.messages import (
    Inputs,
    MessageFn,
    finish_messages,
    message_shapes,
    reduce_messages,
    start_after,
)
from jaxgraph.ops.core.reducers import Reducer
from jaxgraph.ops.core.rows import take_rows, with_rows_from
from jaxgraph.ops.core.self_messages import reduce_self_messages
from jaxgraph.ops.core.stored import when_ready
from jaxgraph.ops.xla.whole_graph import fits_whole, reduce_whole
from pallas_kernels.pytrees import pytree

__all__ = [
    "Block",
    "finish_block",
    "fold_block",
    "fold_group",
    "group_after",
    "merge_at",
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
        over = EdgeGroup(edges, group_after(group, after))
        state = kernel.fold(over, inputs, state, rows)
        return state, state
    compact = reduce_messages(edges, group, message, reducer, inputs, after)
    return merge_at(reducer, state, compact, position), compact


def group_after(group: jax.Array | int, after: jax.Array | None) -> jax.Array | int:
    """Returns the number of a group, known only when `after` is (0, or None: at once)."""
    return group if after is None else group + after
