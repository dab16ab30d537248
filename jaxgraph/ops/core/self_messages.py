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

from jaxgraph.ops.core.edges import match_variation
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


@dataclasses.dataclass(frozen=True)
class OwnMessages:
    """The messages of nodes to themselves that no edge carries, and their reduction.

    Attributes:
      node_ids: int32 [rows], global ids.
      missing: bool [rows], the nodes with such a message.
      chunk: rows that are visited at a time.
      message, reducer, inputs: as of the edges' messages.
    """

    node_ids: jax.Array
    missing: jax.Array
    chunk: int
    message: MessageFn
    reducer: Reducer
    inputs: Inputs

    def fold(self, state: Pytree) -> Pytree:
        """The state after these messages."""
        message, inputs = self._to_itself()

        def body(rows: jax.Array, mask: jax.Array, first: jax.Array, state: Pytree) -> Pytree:
            messages = evaluate_message(message, _at_rows(inputs, rows))
            lifted = self.reducer.lift(messages, mask, self._keep(rows))
            return merge_rows(self.reducer, state, first, lifted)

        state = match_variation(state, (self.missing, inputs, self.reducer))
        return self._for_each_row_chunk(body, state)

    def pull(self, adjoint: Pytree) -> Inputs:
        """Gradients, as lists, of the floating inputs."""
        message, inputs = self._to_itself()

        def body(rows: jax.Array, mask: jax.Array, first: jax.Array, carry: Inputs) -> Inputs:
            keep, at_rows = self._keep(rows), _at_rows(inputs, rows)
            grads = pull_chunk(message, self.reducer, at_rows, take_rows(adjoint, rows), keep, mask)

            def add(totals: list[jax.Array], parts: list[jax.Array]) -> list[jax.Array]:
                return [add_rows(t, first, part) for t, part in zip(totals, parts, strict=True)]

            params = [t + part for t, part in zip(carry.params, grads.params, strict=True)]
            ends = add(carry.sender, grads.sender), add(carry.receiver, grads.receiver)
            return Inputs(params, *ends, [])

        params, sender, receiver = map(zero_totals, inputs.parts[:3])
        start = start_after(Inputs(params, sender, receiver, []), when_ready(adjoint))
        start = match_variation(start, (self.missing, inputs, adjoint, self.reducer))
        return self._for_each_row_chunk(body, start)

    def _keep(self, rows: jax.Array) -> jax.Array | None:
        ids = take_rows(self.node_ids, rows)
        return self.reducer.per_edge(ids, ids, 0)

    def _to_itself(self) -> tuple[MessageFn, Inputs]:
        of_itself = getattr(self.message, "to_itself", None)
        if of_itself is None:
            return self.message, self.inputs
        without = lambda params, sender, receiver, _: of_itself(params, sender, receiver)  # noqa: E731
        return without, dataclasses.replace(self.inputs, edge=())

    def _for_each_row_chunk(
        self,
        body: Callable[[jax.Array, jax.Array, jax.Array, Pytree], Pytree],
        carry: Pytree,
    ) -> Pytree:
        """`body(rows, mask, first_row, carry)` over consecutive rows, `chunk` at a time.

        Masked lanes read a row with a self-message, so that padding rows are never read.
        """
        missing, count = self.missing, self.missing.shape[0]
        chunk = min(self.chunk, count)
        lanes = jnp.arange(chunk, dtype=jnp.int32)
        some = jnp.argmax(missing).astype(jnp.int32)

        def step(index: jax.Array, carry: Pytree) -> Pytree:
            # The last chunk starts early, to end with the rows; the rows that it repeats are
            # masked.
            first = jnp.minimum(index * chunk, count - chunk)
            rows = first + lanes
            mask = take_rows(missing, rows) & (rows >= index * chunk)
            return body(jnp.where(mask, rows, some), mask, first, carry)

        trips = jnp.where(missing[some], -(-count // chunk), 0)
        return lax.fori_loop(0, trips, step, carry)


def _at_rows(inputs: Inputs, rows: jax.Array) -> Inputs:
    sender, receiver = take_rows(inputs.sender, rows), take_rows(inputs.receiver, rows)
    return Inputs(inputs.params, sender, receiver, inputs.edge)
