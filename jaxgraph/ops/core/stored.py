"""Control over where XLA materialises arrays, and in which order it computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Pytree = Any


def when_ready(tree: Pytree) -> jax.Array:
    """0, as int32, known only after the first floating array of `tree`.

    A loop starts from zeros plus this. Without it XLA would make the zeros of all loops before the
    first loop (equal constants become one, and a copy per loop). XLA's CPU compiler drops
    optimization barriers before it schedules, but keeps data dependencies.
    """
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.size:
            # The exponential keeps XLA from recomputing this in every loop that waits for it, which
            # would hold the whole array until the last of them.
            first = jnp.exp(leaf[(0,) * leaf.ndim])
            return jnp.minimum(jnp.isnan(first).astype(jnp.int32), 0)
    return jnp.int32(0)


@jax.custom_jvp
def stored(x: jax.Array) -> jax.Array:
    """x, materialised: all its readers read one array.

    XLA's CPU compiler fuses a cheap x into each of its readers, and holds the operands of x until
    the last of them. It drops optimization barriers before it fuses, but it never recomputes the
    result of a loop, even of one without iterations. On other platforms this does nothing: a loop
    there may wait for the host.
    """
    return lax.platform_dependent(x, cpu=_after_empty_loop, default=lambda x: x)


@stored.defjvp
def _stored_tangent(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    return stored(*primals), tangents[0]


def computed_once(tree: Pytree) -> Pytree:
    """Makes every reader of arrays see the same bits, on any platform.

    XLA recomputes a cheap array inside each reader and may round it differently there: it may fuse
    a multiplication with an addition. Arrays whose bits are compared later need this.
    """
    # XLA's GPU compiler drops a barrier after fusion, its CPU compiler before.
    return jax.tree.map(stored, lax.optimization_barrier(tree))


def stored_for(implementation: str, tree: Pytree) -> Pytree:
    """Computes arrays that several loops and sums read, such as a gradient, only once."""
    return jax.tree.map(stored, tree) if implementation == "xla" else tree


def stored_branch(
    number: jax.Array, make: Callable[[], Pytree], otherwise: Callable[[], Pytree]
) -> Pytree:
    """`make()`, computed once for all its readers, on any platform.

    XLA materialises the results of a branch. Use this for long computations, such as sums over
    edges: it compiles them apart from their readers, in less time than with each array `stored`.
    """
    return lax.cond(number >= 0, make, otherwise)


def _after_empty_loop(x: jax.Array) -> jax.Array:
    if x.size == 0:
        return x

    # Reads the state alone: another use of x would hold the operands of x until the loop.
    def may_continue(x: jax.Array) -> jax.Array:
        return when_ready(x[(0,) * x.ndim].astype(jnp.float32)) > 0

    return lax.while_loop(may_continue, _changed, x)


def _changed(x: jax.Array) -> jax.Array:
    """A value other than x: XLA replaces a loop whose body changes nothing by its input."""
    return x * 2 if jnp.issubdtype(x.dtype, jnp.floating) else ~x
