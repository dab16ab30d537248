"""Arrays that XLA computes once, and in a given order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["computed_once", "stored", "stored_branch", "stored_for", "when_ready"]

Pytree = Any


def when_ready(tree: Pytree) -> jax.Array:
    """0, as int32, known only when the first floating array of `tree` is.

    Adding it to the zeros that a loop starts from keeps XLA from making them all at once before the
    first loop (equal constants become one, and a copy per loop). XLA's CPU compiler drops
    optimization barriers before it schedules, but no dependence on data.
    """
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.size:
            # XLA computes an exponential once, not in every loop that waits for it: that would keep
            # the whole array until the last of them.
            first = jnp.exp(leaf[(0,) * leaf.ndim])
            return jnp.minimum(jnp.isnan(first).astype(jnp.int32), 0)
    return jnp.int32(0)


@jax.custom_jvp
def stored(x: jax.Array) -> jax.Array:
    """x, materialised: all its readers read one array.

    XLA's CPU compiler fuses a cheap x into each of its readers, and holds the operands of x for the
    last of them. It drops optimization barriers before it fuses. The result of a loop it does not
    recompute, even of a loop that makes no pass. On other platforms this does nothing: a loop there
    may wait for the host.

    Args:
      x: of any shape and type.

    Returns:
      x.
    """
    return lax.platform_dependent(x, cpu=_behind_a_loop, default=lambda x: x)


@stored.defjvp
def _stored_tangent(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    return stored(*primals), tangents[0]


def computed_once(tree: Pytree) -> Pytree:
    """Makes every reader of arrays see the same bits, on any platform.

    XLA recomputes a cheap array inside of each reader and may round it in another way there: a
    multiplication and an addition are one step or two. Arrays that are compared with themselves
    later need this.

    Args:
      tree: pytree of arrays.

    Returns:
      `tree`.
    """
    # XLA's GPU compiler keeps a barrier until it has fused, its CPU compiler does not.
    return jax.tree.map(stored, lax.optimization_barrier(tree))


def stored_for(implementation: str, tree: Pytree) -> Pytree:
    """`tree`, such as a gradient that several loops and sums read, computed once for all of them.

    Args:
      implementation: of its readers. Kernels read arrays anyway, and may write over them.
      tree: pytree of arrays.

    Returns:
      `tree`, for "xla" with each array `stored`: the norm, activation and dropout that a gradient
      came through are otherwise compiled, and computed, in each of their users again.
    """
    return jax.tree.map(stored, tree) if implementation == "xla" else tree


def stored_branch(
    number: jax.Array, make: Callable[[], Pytree], otherwise: Callable[[], Pytree]
) -> Pytree:
    """`make()`, made once for everything that reads it, on any platform.

    What a branch returns is an array. For what is made of much, as sums over edges are: compiled
    apart from its users, in less time than with each of its arrays `stored`.

    Args:
      number: int32 scalar from 0 up, as XLA cannot know.
      make: makes the arrays.
      otherwise: makes arrays of the same shapes and types; never used.

    Returns:
      The arrays.
    """
    return lax.cond(number >= 0, make, otherwise)


def _behind_a_loop(x: jax.Array) -> jax.Array:
    if x.size == 0:
        return x

    # Reads the state alone: another use of x would keep what x is made from until the loop.
    def goes_on(x: jax.Array) -> jax.Array:
        return when_ready(x[(0,) * x.ndim].astype(jnp.float32)) > 0

    return lax.while_loop(goes_on, _another, x)


def _another(x: jax.Array) -> jax.Array:
    """Another value than x: a loop whose body changes nothing XLA replaces by its input."""
    return x * 2 if jnp.issubdtype(x.dtype, jnp.floating) else ~x
