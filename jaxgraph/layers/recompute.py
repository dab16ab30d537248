"""Functions whose backward recomputes residuals as late as possible.

`jax.checkpoint` puts an optimization barrier before the recomputation, so that it waits for the
gradient. XLA's CPU compiler drops barriers before it schedules, and would recompute everything
as early as in the forward: that would save no memory. It does not drop a dependence on data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jaxgraph.ops.core.derivatives import custom_vjp
from jaxgraph.ops.core.derived import known_after
from jaxgraph.ops.core.propagation import Static
from jaxgraph.ops.core.stored import when_ready

Pytree = Any


def recompute(
    function: Callable[..., Pytree],
    *arguments: Pytree,
    keep: Sequence[str],
    offload: Sequence[str] = (),
) -> Pytree:
    """Runs `function(*arguments)`, and saves only named results for the backward.

    References:
      Chen et al., "Training deep nets with sublinear memory cost", 2016.
    """
    leaves, structure = jax.tree.flatten(arguments)

    def of_leaves(leaves: Sequence[Any]) -> Pytree:
        return function(*jax.tree.unflatten(structure, leaves))

    return _recomputed(of_leaves, (tuple(keep), tuple(offload)), *leaves)


@partial(custom_vjp, nondiff_argnums=(0, 1))
def _recomputed(function, names, *leaves):
    return function(leaves)


def _forward(function, names, *leaves):
    wanted = [index for index, leaf in enumerate(leaves) if leaf.perturbed]
    values = [leaf.value for leaf in leaves]

    def of_wanted(*some):
        merged = list(values)
        for index, value in zip(wanted, some, strict=True):
            merged[index] = value
        return function(merged)

    policy = _policy(*names)
    some = [values[index] for index in wanted]
    outputs, pull = jax.vjp(jax.checkpoint(of_wanted, policy=policy), *some)
    return outputs, (pull, Static(tuple(leaf.perturbed for leaf in leaves)))


def _backward(function, names, residuals, gradient):
    pull, is_wanted = residuals
    gradient = jax.tree.map(_materialized, gradient)
    gradients = iter(jax.tree.map(partial(_known_after, when_ready(gradient)), pull)(gradient))
    return tuple(next(gradients) if wanted else None for wanted in is_wanted.value)


def _known_after(zero: jax.Array, kept: jax.Array) -> jax.Array:
    """A residual, fetched from the host where it waits there, only after `zero` is known."""
    if jax.typeof(kept).memory_space == jax.memory.Space.Host:
        kept, _ = lax.optimization_barrier((kept, zero))
        kept = jax.device_put(kept, jax.memory.Space.Device)
    return known_after(zero, kept)


_recomputed.defvjp(_forward, _backward, symbolic_zeros=True)


def _policy(keep: tuple[str, ...], offload: tuple[str, ...]) -> Callable[..., Any]:
    if not offload:
        return jax.checkpoint_policies.save_only_these_names(*keep)
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=keep,
        names_which_can_be_offloaded=offload,
        offload_src="device",
        offload_dst="pinned_host",
    )


def _materialized(gradient: Any) -> jax.Array:
    if not isinstance(gradient, SymbolicZero):
        return gradient
    aval: Any = gradient.aval
    zeros = jnp.zeros(aval.shape, aval.dtype)
    axes = tuple(sorted(aval.manual_axis_type.varying))
    return lax.pcast(zeros, axes, to="varying") if axes else zeros
