"""Message passing whose inputs the backward recomputes, and the forward does not save."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxgraph.ops.core.derivatives import custom_vjp, forward_of
from jaxgraph.ops.core.edges import match_variation
from jaxgraph.ops.core.messages import Inputs, MessageFn, Wanted, floating_leaves
from jaxgraph.ops.core.propagation import (
    Schedule,
    Static,
    Stored,
    cotangents,
    materialize,
    named,
    primal_values,
    pulled,
    reduced,
)
from jaxgraph.ops.core.reducers import Reducer
from jaxgraph.ops.core.stored import stored_for, when_ready

Pytree = Any


def propagate_derived(
    schedule: Schedule,
    message: MessageFn,
    reducer: Reducer,
    make: Callable[[Pytree, Pytree], Inputs],
    given: Pytree,
    late: Pytree,
    *,
    keep: bool,
) -> Pytree:
    """Reduces messages like `propagate_by`, from the inputs `make(given, late)`.

    The backward computes the inputs twice: first, once the gradient of the outputs is known, to
    find the gradients of the inputs; then to pull these back to `late` and `given`. It holds no
    intermediate result of `make` between the two.

    References:
      Chen et al., "Training deep nets with sublinear memory cost", 2016.
    """
    leaves, structure = jax.tree.flatten((given, late))
    first_late = len(jax.tree.leaves(given))

    def inputs_of(leaves: Sequence[jax.Array], after: jax.Array | None = None) -> Inputs:
        if after is not None:
            some = [known_after(after, leaf) for leaf in leaves[first_late:]]
            leaves = [*leaves[:first_late], *some]
        inputs = make(*jax.tree.unflatten(structure, leaves))
        return match_variation(inputs, (schedule, inputs))

    return _propagate(message, inputs_of, keep, schedule, reducer, *leaves)


@partial(custom_vjp, nondiff_argnums=(0, 1, 2))
def _propagate(message, inputs_of, keep, schedule, reducer, *leaves):
    return reduced(message, schedule, reducer, inputs_of(leaves))[0]


def _forward(message, inputs_of, keep, schedule, reducer, *leaves):
    schedule, reducer, values = primal_values((schedule, reducer, list(leaves)))
    inputs = _make_inputs(inputs_of, values)
    outputs, kept = reduced(message, schedule, reducer, inputs)
    wanted = Static(tuple(leaf.perturbed for leaf in leaves))
    kept_inputs = Stored.of(inputs) if keep else None
    results = Stored.of((outputs, kept))
    return named(outputs), (schedule, reducer, values, kept_inputs, results, wanted)


def _backward(message, inputs_of, keep, residuals, gradient):
    schedule, reducer, values, kept_inputs, results, is_wanted = residuals
    outputs, kept = results.restored()
    gradient = stored_for(schedule.implementation, materialize(gradient, outputs))
    is_kept = kept_inputs is not None
    after = when_ready(gradient)
    inputs = kept_inputs.restored() if is_kept else _make_inputs(inputs_of, values, after)
    wanted = Wanted(*(bool(floating_leaves(part)) for part in inputs.parts))
    grads = pulled(message, wanted, schedule, reducer, inputs, (outputs, kept), gradient)
    gradients = iter(_pull_back(inputs_of, values, is_wanted.value, cotangents(inputs, grads)))
    return None, None, *(next(gradients) if wanted else None for wanted in is_wanted.value)


_propagate.defvjp(_forward, _backward, symbolic_zeros=True)


def _make_inputs(
    inputs_of: Callable[..., Inputs], values: Sequence[jax.Array], *after: Any
) -> Inputs:
    return forward_of(lambda *values: inputs_of(values, *after), *values)


def _pull_back(
    inputs_of: Callable[..., Inputs],
    values: Sequence[jax.Array],
    is_wanted: Sequence[bool],
    gradient: Inputs,
) -> tuple[jax.Array, ...]:
    """Gradients of the leaves that need one."""
    wanted = [index for index, want in enumerate(is_wanted) if want]

    def of_wanted(*some: jax.Array) -> Inputs:
        merged = list(values)
        for index, value in zip(wanted, some, strict=True):
            merged[index] = value
        return inputs_of(merged, when_ready(gradient))

    return jax.vjp(of_wanted, *(values[index] for index in wanted))[1](gradient)


def known_after(zero: jax.Array, kept: jax.Array) -> jax.Array:
    """Makes an array depend on `zero`, so that XLA computes nothing from it before."""
    if kept.ndim != 2 or not jnp.issubdtype(kept.dtype, jnp.floating):
        return kept
    late = _joined(zero, kept)
    return late if jax.typeof(late) == jax.typeof(kept) else kept


@jax.custom_jvp
def _joined(zero: jax.Array, kept: jax.Array) -> jax.Array:
    # On bits: XLA adds 16-bit numbers in 32 bits on CPU, and would hold the copy in 32 bits.
    bits = lax.bitcast_convert_type(kept, f"uint{8 * kept.dtype.itemsize}")
    return lax.bitcast_convert_type(bits | zero.astype(bits.dtype), kept.dtype)


@_joined.defjvp
def _joined_tangent(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    joined = _joined(*primals)
    return joined, match_variation(tangents[1], joined)
