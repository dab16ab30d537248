"""The stages of a reduction of messages.

A reduction folds the edges of one group after another into a state, finishes the state, and pulls a
gradient back through each group. XLA computes `Stages` a chunk of edges at a time; kernels compute
their subclasses (`jaxgraph.ops.core.kernel_stages`). No stage runs a collective, and each can be
compiled alone.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.edges import AllEdges, EdgeGroups, match_variation
from jaxgraph.ops.core.messages import (
    Inputs,
    MessageFn,
    Pullback,
    Wanted,
    message_shapes,
    pull_edges,
    pull_messages,
    reduce_messages,
    start_after,
)
from jaxgraph.ops.core.reducers import Reducer
from jaxgraph.ops.core.rows import take_rows, with_rows_from
from jaxgraph.ops.core.running import Places, Pulled, add_at, merge_at, zero_gradients
from jaxgraph.ops.core.self_messages import pull_self_messages, reduce_self_messages
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
            compact = reduce_messages(edges, 0, self.message, reducer, inputs)
            return _spread(compact, position, empty)
        state = start_after(empty, when_ready(inputs))
        state = match_variation(state, (edges, inputs, reducer))
        state = reduce_self_messages(
            block.node_ids, missing, self.chunk, self.message, reducer, inputs, state
        )
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
        compact = reduce_messages(edges, group, self.message, self.reducer, inputs, after)
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
            own = pull_self_messages(
                block.node_ids, missing, self.chunk, self.message, self.reducer, inputs, adjoint
            )
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
        # The arguments of all three passes.
        given: dict[str, Any] = {"message": self.message, "reducer": self.reducer}
        given |= {"inputs": inputs, "adjoint": adjoint}
        pull = partial(pull_messages, edges, group=group, **given)
        answer, done = None, Pullback([], [])
        want_params = wanted.params
        if wanted.receiver:
            done = pull("receiver", want_params=want_params, after=after)
            want_params, after = False, when_ready((done.rows, done.params))
            answer, rows = _answer_or_totals(gradients.receiver, done.rows, places.receiver)
            gradients = _added(gradients, done.params, receiver=rows)
        if wanted.edge:
            totals, options = gradients.edge, {"want_params": want_params, "after": after}
            options["fresh"] = fresh
            edge, params = pull_edges(edges, group=group, totals=totals, **given, **options)
            want_params, after = False, when_ready((edge, params))
            gradients = _added(gradients, params, edge=edge)
        if wanted.by_sender:
            done = pull("sender", want_params=want_params, after=after)
            sent, rows = _answer_or_totals(gradients.sender, done.rows, places.sender)
            answer = answer if sent is None else sent
            gradients = _added(gradients, done.params, sender=rows)
        return Pulled(gradients, answer, done.rows)


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
