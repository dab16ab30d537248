"""Messages of nodes to themselves where no edge carries one, a chunk of rows at a time.

A message that reads data of edges, which these messages lack, has a method `to_itself`, `(params,
sender, receiver) -> messages`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxgraph.ops.core.edges import EdgeGroup, match_variation
from jaxgraph.ops.core.messages import (
    Inputs,
    MessageFn,
    add_rows,
    evaluate_message,
    merge_rows,
    pull_chunk,
    start_after,
    zero_totals,
)
from jaxgraph.ops.core.reducers import Reducer
from jaxgraph.ops.core.rows import take_rows
from jaxgraph.ops.core.stored import when_ready

Pytree = Any


def check_start(over: EdgeGroup, *before: jax.Array | None) -> None:
    """Asserts that self-messages are not added to an earlier result."""
    assert over.missing is None or all(part is None for part in before)


def reduce_self_messages(
    node_ids: jax.Array,
    missing: jax.Array,
    chunk: int,
    message: MessageFn,
    reducer: Reducer,
    inputs: Inputs,
    state: Pytree,
) -> Pytree:
    """Folds the message of every node to itself that `missing` marks as carried by no edge."""
    message, inputs = _to_itself(message, inputs)

    def body(rows: jax.Array, mask: jax.Array, first: jax.Array, state: Pytree) -> Pytree:
        messages = evaluate_message(message, _at_rows(inputs, rows))
        ids = take_rows(node_ids, rows)
        keep = reducer.per_edge(ids, ids, 0)
        return merge_rows(reducer, state, first, reducer.lift(messages, mask, keep))

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
    """Gradients, as lists, of the floating inputs of the messages of nodes to themselves."""
    message, inputs = _to_itself(message, inputs)

    def body(rows: jax.Array, mask: jax.Array, first: jax.Array, carry: Inputs) -> Inputs:
        ids = take_rows(node_ids, rows)
        keep = reducer.per_edge(ids, ids, 0)
        at_rows = _at_rows(inputs, rows)
        grads = pull_chunk(message, reducer, at_rows, take_rows(adjoint, rows), keep, mask)

        def add(totals: list[jax.Array], parts: list[jax.Array]) -> list[jax.Array]:
            return [add_rows(t, first, part) for t, part in zip(totals, parts, strict=True)]

        params = [t + part for t, part in zip(carry.params, grads.params, strict=True)]
        return Inputs(
            params, add(carry.sender, grads.sender), add(carry.receiver, grads.receiver), []
        )

    zeros = zero_totals
    start = Inputs(zeros(inputs.params), zeros(inputs.sender), zeros(inputs.receiver), [])
    start = start_after(start, when_ready(adjoint))
    start = match_variation(start, (missing, inputs, adjoint, reducer))
    return _for_each_row_chunk(missing, chunk, body, start)


def _to_itself(message: MessageFn, inputs: Inputs) -> tuple[MessageFn, Inputs]:
    of_itself = getattr(message, "to_itself", None)
    if of_itself is None:
        return message, inputs
    without = lambda params, sender, receiver, _: of_itself(params, sender, receiver)  # noqa: E731
    return without, dataclasses.replace(inputs, edge=())


def _at_rows(inputs: Inputs, rows: jax.Array) -> Inputs:
    sender, receiver = take_rows(inputs.sender, rows), take_rows(inputs.receiver, rows)
    return Inputs(inputs.params, sender, receiver, inputs.edge)


def _for_each_row_chunk(
    missing: jax.Array,
    chunk: int,
    body: Callable[[jax.Array, jax.Array, jax.Array, Pytree], Pytree],
    carry: Pytree,
) -> Pytree:
    """`body(rows, mask, first_row, carry)` over consecutive rows, `chunk` at a time.

    Masked lanes read a row with a self-message, so that padding rows are never read.
    """
    count = missing.shape[0]
    chunk = min(chunk, count)
    lanes = jnp.arange(chunk, dtype=jnp.int32)
    some = jnp.argmax(missing).astype(jnp.int32)

    def step(index: jax.Array, carry: Pytree) -> Pytree:
        # The last chunk starts early, to end with the rows; the rows that it repeats are masked.
        first = jnp.minimum(index * chunk, count - chunk)
        rows = first + lanes
        mask = take_rows(missing, rows) & (rows >= index * chunk)
        return body(jnp.where(mask, rows, some), mask, first, carry)

    trips = jnp.where(missing[some], -(-count // chunk), 0)
    return lax.fori_loop(0, trips, step, carry)
