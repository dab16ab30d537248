"""Which case of SAR holds, read off the message function (SAR, section 3.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from jaxgraph.ops.messages import (
    Inputs,
    Wanted,
    chunk_examples,
    floating_leaves,
    with_floating_leaves,
)
from jaxgraph.ops.reducers import Reducer, cotangent

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
    """Whether a wanted gradient of the messages depends on the values of the senders.

    Args:
      message, reducer, inputs, adjoint, wanted: as in `jaxgraph.ops.messages.pull_messages`.
      chunk: edges that the message function is called with.

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
            return message(
                next(new) if wanted.params else values.params,
                next(new) if wanted.sender else values.sender,
                next(new) if wanted.receiver else values.receiver,
                next(new) if wanted.edge else values.edge,
            )

        messages, pull = jax.vjp(evaluate, floating)
        some = jnp.zeros(chunk, jnp.int32)
        keep = reducer.per_edge(some, some, some)
        gradient = cotangent(reducer, messages, adjoint, keep)
        # Computed in 32 bits, also where the messages have 16.
        return pull(jax.tree.map(lambda c, m: c.astype(m.dtype), gradient, messages))[0]

    examples = chunk_examples(inputs, chunk)
    rows = chunk_examples(Inputs((), adjoint, (), ()), chunk).sender
    jaxpr = jax.make_jaxpr(gradients)(
        examples.sender, examples.params, examples.receiver, examples.edge, rows
    ).jaxpr
    senders = len(jax.tree.leaves(inputs.sender))
    return bool(_needed_inputs(jaxpr) & set(jaxpr.invars[:senders]))


def _needed_inputs(jaxpr: Any, outputs: list[Any] | None = None) -> set[Any]:
    """Input variables on which outputs depend.

    Calls are looked into; of any other equation, every output depends on all its inputs.
    """
    wanted = jaxpr.outvars if outputs is None else outputs
    needed = {var for var in wanted if isinstance(var, core.Var)}
    for equation in reversed(jaxpr.eqns):
        used = [i for i, var in enumerate(equation.outvars) if var in needed]
        if not used:
            continue
        inner = equation.params.get("jaxpr")
        inputs = equation.invars
        if equation.primitive.name in ("jit", "pjit") and inner is not None:
            body = inner.jaxpr
            needed_inside = _needed_inputs(body, [body.outvars[i] for i in used])
            pairs = zip(body.invars, inputs, strict=True)
            inputs = [outside for inside, outside in pairs if inside in needed_inside]
        needed |= {var for var in inputs if isinstance(var, core.Var)}
    return needed & set(jaxpr.invars)
