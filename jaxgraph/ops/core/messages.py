"""Messages over the edges of one shard, evaluated a chunk of edges at a time, and their pullback.

y_i = reduce_{e: j -> i} f(theta, s_j, r_i, x_e). Neither forward nor backward stores an array of
size [edges, features]. The backward recomputes the messages of a chunk and pulls the gradient
through them, once per input that needs a gradient: by sender (for s), by receiver (for r) and slot
after slot (for x); one of these passes also yields the gradient of theta. All write to contiguous
rows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgraph.ops.core.edges import (
    EdgeChunk,
    EdgeGroups,
    by_row,
    match_variation,
    visit_rows,
    visit_slots,
)
from jaxgraph.ops.core.precision import accumulation_dtype, to_accumulation
from jaxgraph.ops.core.reducers import Reducer, Sum, masked
from jaxgraph.ops.core.rows import entry_at, rows_from, take_rows, with_rows_from
from jaxgraph.ops.core.stored import when_ready
from pallas_kernels.pytrees import pytree

Pytree = Any
MessageFn = Callable[[Pytree, Pytree, Pytree, Pytree], Pytree]


@pytree
class Inputs:
    """The inputs of a message function.

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

    @property
    def parts(self) -> tuple[Pytree, ...]:
        """All four."""
        return self.params, self.sender, self.receiver, self.edge


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Flags of the inputs that need a gradient.

    Attributes:
      params, sender, receiver, edge: whether these do.
    """

    params: bool
    sender: bool
    receiver: bool
    edge: bool

    @property
    def some(self) -> bool:
        """True where any input needs one."""
        return self.params or self.sender or self.receiver or self.edge

    @property
    def by_sender(self) -> bool:
        """True where the edges must be visited by sender."""
        return self.sender or (self.params and not (self.receiver or self.edge))


@dataclasses.dataclass(frozen=True)
class Pullback:
    """Gradients of the floating leaves of `Inputs`, in the order of their flattening.

    `rows` are those of the sender or of the receiver, as requested.
    """

    rows: list[jax.Array]
    params: list[jax.Array]


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
    old = rows_from(total, start, addend.shape[0])
    return with_rows_from(total, start, old + addend.astype(old.dtype))


def _write_rows(total: jax.Array, start: jax.Array, rows: jax.Array) -> jax.Array:
    return with_rows_from(total, start, rows.astype(total.dtype))


def at_edges(inputs: Inputs, chunk: EdgeChunk) -> Inputs:
    """The inputs of the edges of a chunk, [chunk, ...]."""
    return Inputs(
        inputs.params,
        chunk.at_end("sender", inputs.sender),
        chunk.at_end("receiver", inputs.receiver),
        take_rows(inputs.edge, chunk.edge_ids),
    )


def evaluate_message(message: MessageFn, inputs: Inputs) -> Pytree:
    """The messages of edges with the given `inputs`, varying over the mesh axes of these.

    Otherwise a message that reads no input, such as a 1 per edge, and its gradient would be the
    same on all devices.
    """
    return match_variation(message(*inputs.parts), inputs)


def chunk_examples(inputs: Inputs, chunk: int) -> Inputs:
    """Zeros of the shapes of the inputs of `chunk` edges, varying over the inputs' mesh axes."""

    def some(leaf: jax.Array) -> jax.Array:
        return match_variation(jnp.zeros((chunk, *leaf.shape[1:]), leaf.dtype), leaf)

    sender, receiver, edge = jax.tree.map(some, (inputs.sender, inputs.receiver, inputs.edge))
    return Inputs(inputs.params, sender, receiver, edge)


def message_shapes(message: MessageFn, inputs: Inputs, chunk: int) -> Pytree:
    """Shapes and dtypes of the messages of `chunk` edges."""
    return jax.eval_shape(partial(evaluate_message, message), chunk_examples(inputs, chunk))


def start_after(tree: Pytree, after: jax.Array) -> Pytree:
    """`tree` plus 0, computed only after `after` is known (see `when_ready`)."""
    return jax.tree.map(lambda leaf: leaf + after.astype(leaf.dtype), tree)


def merge_rows(reducer: Reducer, state: Pytree, first: jax.Array, addend: Pytree) -> Pytree:
    size = jax.tree.leaves(addend)[0].shape[0]
    old = jax.tree.map(lambda leaf: rows_from(leaf, first, size), state)
    new = reducer.merge(old, addend)
    return jax.tree.map(lambda leaf, part: with_rows_from(leaf, first, part), state, new)


@dataclasses.dataclass(frozen=True)
class GroupMessages:
    """The messages of one group of edges and their reduction, by XLA.

    Attributes:
      edges, group: the edges.
      message, reducer: how messages are made and reduced.
      inputs: the inputs of the message function.
    """

    edges: EdgeGroups
    group: jax.Array | int
    message: MessageFn
    reducer: Reducer
    inputs: Inputs

    def reduce(self, after: jax.Array | None = None) -> Pytree:
        """Reduces the messages at their receivers."""
        edges, reducer, inputs = self.edges, self.reducer, self.inputs
        shapes = message_shapes(self.message, inputs, edges.chunk)
        table = reducer.empty(shapes, edges.receiver_capacity)
        table = start_after(table, when_ready(inputs) if after is None else after)
        empty = reducer.empty(shapes, edges.rows_at_once)
        table, empty = match_variation((table, empty), (edges, inputs, reducer))

        def visit(chunk: EdgeChunk, state: Pytree, carry: Pytree) -> tuple[Pytree, Pytree]:
            messages = evaluate_message(self.message, at_edges(inputs, chunk))
            lifted = reducer.lift(messages, chunk.mask, self._per_edge(chunk))
            return reducer.fold(state, by_row(lifted, edges.rows_at_once)), carry

        given = (visit, reducer.merge, empty, table, ())
        return visit_rows(edges, "receiver", self.group, *given)[0]

    def pull(
        self,
        side: str,
        adjoint: Pytree,
        *,
        want_params: bool = False,
        after: jax.Array | None = None,
    ) -> Pullback:
        """Pulls the gradient of the outputs back to the rows at one end."""
        edges, inputs = self.edges, self.inputs
        capacity = edges.receiver_capacity if side == "receiver" else edges.sender_capacity
        wanted = floating_leaves(inputs.receiver if side == "receiver" else inputs.sender)
        table = _zero_rows(wanted, capacity)
        params = zero_totals(inputs.params) if want_params else []
        after = when_ready(adjoint) if after is None else after
        table, params = start_after((table, params), after)
        empty = _zero_rows(wanted, edges.rows_at_once)
        likes = (edges, inputs, adjoint, self.reducer)
        table, params, empty = match_variation((table, params, empty), likes)

        def visit(
            chunk: EdgeChunk, rows: list[jax.Array], params: list[jax.Array]
        ) -> tuple[list[jax.Array], list[jax.Array]]:
            grads = self._pull_chunk(adjoint, chunk)
            lanes = grads.receiver if side == "receiver" else grads.sender
            pieces = by_row([to_accumulation(leaf) for leaf in lanes], edges.rows_at_once)
            return Sum().fold(rows, pieces), _sum_lists(params, grads.params) if params else []

        table, params = visit_rows(edges, side, self.group, visit, _sum_lists, empty, table, params)
        # Rounded once rows are done, so that rows of 16 bits travel to other parts as such.
        rows = [leaf.astype(x.dtype) for leaf, x in zip(table, wanted, strict=True)]
        return Pullback(rows, params)

    def pull_edges(
        self,
        adjoint: Pytree,
        totals: list[jax.Array],
        *,
        fresh: bool = False,
        want_params: bool = False,
        after: jax.Array | None = None,
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        """Pulls the gradient of the outputs back to the edges."""
        params = zero_totals(self.inputs.params) if want_params else []
        params = start_after(params, when_ready(adjoint) if after is None else after)
        start = match_variation((totals, params), (self.edges, self.inputs, adjoint, self.reducer))

        def visit(chunk: EdgeChunk, first: jax.Array, carry: Any) -> Any:
            totals, params = carry
            grads = self._pull_chunk(adjoint, chunk)
            # Masked: the row that fills a lane without an edge may hold NaN, and 0 times NaN is
            # NaN.
            parts = [masked(chunk.mask, part, 0.0) for part in grads.edge]
            put = _write_rows if fresh else add_rows
            totals = [put(t, first, part) for t, part in zip(totals, parts, strict=True)]
            return totals, _sum_lists(params, grads.params) if params else []

        return visit_slots(self.edges, self.group, visit, start)

    def _pull_chunk(self, adjoint: Pytree, chunk: EdgeChunk) -> Inputs:
        keep, rows = self._per_edge(chunk), chunk.at_end("receiver", adjoint)
        given = at_edges(self.inputs, chunk)
        return pull_chunk(self.message, self.reducer, given, rows, keep, chunk.mask)

    def _per_edge(self, chunk: EdgeChunk) -> jax.Array | None:
        """The data of the reducer for each edge of a chunk, such as a dropout mask, or None."""
        edges, receivers, senders = self.edges, chunk.receivers, chunk.senders
        if edges.receiver_ptr is not None:
            receivers = receivers + entry_at(edges.receiver_ptr, self.group)
        if edges.sender_ptr is not None:
            senders = senders + entry_at(edges.sender_ptr, self.group)
        known = edges.repetition
        repetition = 0 if known is None else take_rows(known, chunk.edge_ids)
        ids = take_rows(edges.receiver_ids, receivers), take_rows(edges.sender_ids, senders)
        return self.reducer.per_edge(*ids, repetition)


def _sum_lists(*lists: list[jax.Array]) -> list[jax.Array]:
    return [functools.reduce(jnp.add, parts) for parts in zip(*lists, strict=True)]


def _zero_rows(leaves: list[jax.Array], rows: int) -> list[jax.Array]:
    return [jnp.zeros((rows, *x.shape[1:]), accumulation_dtype(x.dtype)) for x in leaves]


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
    floating = Inputs(*map(floating_leaves, inputs.parts))

    def evaluate(floating: Inputs) -> Pytree:
        seen = Inputs(*map(with_floating_leaves, inputs.parts, floating.parts))
        return evaluate_message(message, seen)

    # A replicated parameter would get its gradient summed over the mesh inside the loop.
    floating = match_variation(floating, (inputs, adjoint))
    messages, pull = jax.vjp(evaluate, floating)
    gradient = reducer.cotangent(messages, adjoint, keep)
    return pull(masked_cotangent(gradient, messages, mask))[0]


def masked_cotangent(gradient: Pytree, messages: Pytree, mask: jax.Array) -> Pytree:
    """The gradient of messages in the form of `jax.vjp`, zero where there is no edge."""

    def masked(gradient: jax.Array, value: jax.Array) -> jax.Array | np.ndarray:
        if not is_floating(value):
            return np.zeros(value.shape, jax.dtypes.float0)
        shape = mask.shape + (1,) * (gradient.ndim - 1)
        kept = jnp.where(mask.reshape(shape), gradient, 0).astype(value.dtype)
        return match_variation(kept, value)

    return jax.tree.map(masked, gradient, messages)
