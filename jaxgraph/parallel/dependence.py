"""Derives SAR's case 1 or 2 from the message function (SAR, section 3.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.message_programs import needed_inputs
from jaxgraph.ops.core.messages import (
    Inputs,
    Wanted,
    chunk_examples,
    evaluate_message,
    floating_leaves,
    masked_cotangent,
    with_floating_leaves,
)
from jaxgraph.ops.core.reducers import Reducer

__all__ = ["looks_at_senders"]

Pytree = Any


def looks_at_senders(
    message: Callable[[Pytree, Pytree, Pytree, Pytree], Pytree],
    reducer: Reducer,
    inputs: Inputs,
    adjoint: Pytree,
    wanted: Wanted,
    chunk: int,
) -> bool:
    """True where a wanted gradient of the messages depends on the values of the senders.

    Args:
      message, reducer, inputs, adjoint, wanted: as in `jaxgraph.ops.core.messages.pull_messages`.
      chunk: number of edges in a call of the message function.

    Returns:
      False in the paper's case 1 (a sum of the senders' features, say), True in case 2.
    """

    def gradients(sender: Pytree, params: Pytree, receiver: Pytree, edge: Pytree, adjoint: Pytree):
        values = Inputs(params, sender, receiver, edge)
        parts = [
            tree
            for tree, needed in (
                (params, wanted.params),
                (sender, wanted.sender),
                (receiver, wanted.receiver),
                (edge, wanted.edge),
            )
            if needed
        ]
        floating = [floating_leaves(part) for part in parts]

        def evaluate(floating: list[list[jax.Array]]) -> Pytree:
            new = iter([with_floating_leaves(p, f) for p, f in zip(parts, floating, strict=True)])
            seen = Inputs(
                next(new) if wanted.params else values.params,
                next(new) if wanted.sender else values.sender,
                next(new) if wanted.receiver else values.receiver,
                next(new) if wanted.edge else values.edge,
            )
            return evaluate_message(message, seen)

        messages, pull = jax.vjp(evaluate, floating)
        some = jnp.zeros(chunk, jnp.int32)
        keep = reducer.per_edge(some, some, some)
        gradient = reducer.cotangent(messages, adjoint, keep)
        return pull(masked_cotangent(gradient, messages, some == 0))[0]

    examples = chunk_examples(inputs, chunk)
    rows = chunk_examples(Inputs((), adjoint, (), ()), chunk).sender
    jaxpr = jax.make_jaxpr(gradients)(
        examples.sender, examples.params, examples.receiver, examples.edge, rows
    ).jaxpr
    senders = len(jax.tree.leaves(inputs.sender))
    return bool(needed_inputs(jaxpr) & set(jaxpr.invars[:senders]))
