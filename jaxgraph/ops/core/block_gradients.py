"""Gradients of messages over one block of edges, pulled back from its receivers."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.blocks import Block, group_after, merge_at
from jaxgraph.ops.core.edges import EdgeGroup, EdgeGroups, match_variation
from jaxgraph.ops.core.kernels import FinishingKernel, Kernel, find_kernel
from jaxgraph.ops.core.messages import (
    Inputs,
    MessageFn,
    Pullback,
    Wanted,
    floating_leaves,
    pull_edges,
    pull_messages,
    start_after,
    zero_totals,
)
from jaxgraph.ops.core.reducers import Reducer, Sum
from jaxgraph.ops.core.rows import with_rows_from
from jaxgraph.ops.core.self_messages import pull_self_messages
from jaxgraph.ops.core.stored import when_ready
from jaxgraph.ops.xla.whole_graph import fits_whole, pull_whole, weigh_edges

__all__ = [
    "Places",
    "Pulled",
    "add_at",
    "block_adjoint",
    "pull_block",
    "pull_group",
]

Pytree = Any


def block_adjoint(
    block: Block,
    message: MessageFn,
    reducer: Reducer,
    inputs: Inputs,
    results: tuple[Pytree, Pytree],
    gradient: Pytree,
) -> Pytree:
    """The arrays of the receivers that `pull_block` reads.

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
    """Returns the inputs still to be pulled, and the gradients of those pulled for all rows."""
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
    """The gradients that pulling through one group returns.

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
        over = EdgeGroup(edges, group_after(group, after))
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
