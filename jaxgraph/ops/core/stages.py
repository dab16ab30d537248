"""The stages of a reduction of messages.

A reduction folds the edges of one group after another into a state, finishes the state, and pulls a
gradient back through each group. XLA computes `Stages` a chunk of edges at a time; kernels compute
their subclasses (`jaxgraph.ops.core.kernel_stages`). No stage runs a collective, and each can be
compiled alone.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.edges import AllEdges, EdgeGroups, match_variation
from jaxgraph.ops.core.messages import (
    GroupMessages,
    Inputs,
    MessageFn,
    Pullback,
    Wanted,
    message_shapes,
    start_after,
)
from jaxgraph.ops.core.reducers import Reducer
from jaxgraph.ops.core.rows import take_rows, with_rows_from
from jaxgraph.ops.core.running import Places, Pulled, add_at, merge_at, zero_gradients
from jaxgraph.ops.core.self_messages import OwnMessages
from jaxgraph.ops.core.stored import when_ready

Pytree = Any


@dataclasses.dataclass(frozen=True)
class Stages:
    """The stages of a reduction, which XLA computes here, a chunk of edges at a time.

    `inputs` are the inputs of the message: arrays by sender row, receiver row and edge slot. States
    and adjoints are the reducer's.

    Attributes:
      message, reducer: how messages are made and reduced.
      chunk: number of edges in a call of the message function.
    """

    message: MessageFn
    reducer: Reducer
    chunk: int

    def reduce(self, block: AllEdges, inputs: Inputs) -> tuple[Pytree, Pytree]:
        """`finish` of `fold`, where a block has all edges."""
        return self.finish(self.fold(block, inputs), inputs)

    def fold(self, block: AllEdges, inputs: Inputs) -> Pytree:
        """The state [receiver rows, ...] after all messages of a block."""
        edges, missing, reducer = block.edges, block.missing_self_loop, self.reducer
        position = edges.by_receiver.position
        empty = reducer.empty(message_shapes(self.message, inputs, self.chunk), block.receiver_rows)
        if missing is None:
            compact = self._of_group(edges, 0, inputs).reduce()
            return _spread(compact, position, empty)
        state = start_after(empty, when_ready(inputs))
        state = match_variation(state, (edges, inputs, reducer))
        state = self._of_nodes(block, missing, inputs).fold(state)
        return self.fold_group(edges, 0, inputs, state, position, when_ready(state))[0]

    def fold_group(
        self,
        edges: EdgeGroups,
        group: jax.Array | int,
        inputs: Inputs,
        state: Pytree,
        position: jax.Array,
        after: jax.Array | None,
    ) -> tuple[Pytree, Pytree]:
        """The state after the messages of one more group."""
        compact = self._of_group(edges, group, inputs).reduce(after)
        return merge_at(self.reducer, state, compact, position), compact

    def finish(self, state: Pytree, inputs: Inputs) -> tuple[Pytree, Pytree]:
        """Computes the outputs from a state into which all messages have been folded."""
        return self.reducer.finish(state, message_shapes(self.message, inputs, self.chunk))

    def adjoint(self, outputs: Pytree, kept: Pytree, gradient: Pytree) -> Pytree:
        """The arrays of the receivers that a pull reads."""
        return self.reducer.adjoint(outputs, kept, gradient)

    def pull(self, block: AllEdges, inputs: Inputs, adjoint: Pytree, wanted: Wanted) -> Inputs:
        """Gradients, as lists, of the floating inputs of the messages of a block."""
        edges, missing = block.edges, block.missing_self_loop
        after = when_ready(adjoint)
        grads = start_after(zero_gradients(inputs), after)
        grads = match_variation(grads, (edges, inputs, adjoint, self.reducer))
        if missing is not None:
            own = self._of_nodes(block, missing, inputs).pull(adjoint)
            sender = _with_first_rows(grads.sender, own.sender)
            grads = Inputs(own.params, sender, own.receiver, grads.edge)
            after = when_ready(own.sender)
        places = Places(edges.by_sender.position, edges.by_receiver.position)
        given = (inputs, adjoint, wanted, grads, places, after)
        return self.pull_group(edges, 0, *given, fresh=True).gradients

    def pull_group(
        self,
        edges: EdgeGroups,
        group: jax.Array | int,
        inputs: Inputs,
        adjoint: Pytree,
        wanted: Wanted,
        gradients: Inputs,
        places: Places,
        after: jax.Array | None,
        *,
        fresh: bool = False,
    ) -> Pulled:
        """The running gradients with those of one more group."""
        messages = self._of_group(edges, group, inputs)
        answer, done = None, Pullback([], [])
        want_params = wanted.params
        if wanted.receiver:
            done = messages.pull("receiver", adjoint, want_params=want_params, after=after)
            want_params, after = False, when_ready((done.rows, done.params))
            answer, rows = _answer_or_totals(gradients.receiver, done.rows, places.receiver)
            gradients = _added(gradients, done.params, receiver=rows)
        if wanted.edge:
            edge, params = messages.pull_edges(
                adjoint, gradients.edge, fresh=fresh, want_params=want_params, after=after
            )
            want_params, after = False, when_ready((edge, params))
            gradients = _added(gradients, params, edge=edge)
        if wanted.by_sender:
            done = messages.pull("sender", adjoint, want_params=want_params, after=after)
            sent, rows = _answer_or_totals(gradients.sender, done.rows, places.sender)
            answer = answer if sent is None else sent
            gradients = _added(gradients, done.params, sender=rows)
        return Pulled(gradients, answer, done.rows)

    def _of_group(self, edges: EdgeGroups, group: jax.Array | int, inputs: Inputs) -> GroupMessages:
        return GroupMessages(edges, group, self.message, self.reducer, inputs)

    def _of_nodes(self, block: AllEdges, missing: jax.Array, inputs: Inputs) -> OwnMessages:
        given = (self.chunk, self.message, self.reducer, inputs)
        return OwnMessages(block.node_ids, missing, *given)


def _spread(compact: Pytree, position: jax.Array, otherwise: Pytree) -> Pytree:
    """Scatters compact rows to the rows that they represent, by a gather."""
    has = position >= 0
    found = take_rows(compact, jnp.maximum(position, 0))
    return jax.tree.map(
        lambda new, other: jnp.where(has.reshape(-1, *(1,) * (new.ndim - 1)), new, other),
        found,
        otherwise,
    )


def _answer_or_totals(
    totals: list[jax.Array], rows: list[jax.Array], position: jax.Array | None
) -> tuple[list[jax.Array] | None, list[jax.Array]]:
    """Compact rows as an answer, or added to the totals."""
    if position is None:
        return rows, totals
    return None, add_at(totals, rows, position)


def _with_first_rows(totals: list[jax.Array], heads: list[jax.Array]) -> list[jax.Array]:
    """Arrays of zeros whose first rows are replaced."""
    return [
        head if head.shape == total.shape else with_rows_from(total, 0, head)
        for total, head in zip(totals, heads, strict=True)
    ]


def _added(gradients: Inputs, params: list[jax.Array], **parts: list[jax.Array]) -> Inputs:
    """Running gradients with those of the parameters added and other parts replaced."""
    if params:
        parts["params"] = [t + part for t, part in zip(gradients.params, params, strict=True)]
    return dataclasses.replace(gradients, **parts)
