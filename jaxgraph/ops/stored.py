"""Arrays that XLA is to compute once."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from jaxgraph.ops.edges import when_ready

__all__ = ["stored", "stored_for"]

Pytree = Any


@jax.custom_jvp
def stored(x: jax.Array) -> jax.Array:
    """x, made where it is computed first, from which everything else reads it.

    XLA's CPU compiler would compute a cheap x again inside of everything that uses it, and so keep
    what x is made from. It drops optimization barriers before it fuses; what a loop puts out it
    takes as it is, even of a loop that makes no pass. On other platforms this does nothing: a loop
    there may wait for the host.

    Args:
      x: float, of any shape.

    Returns:
      x.
    """
    return lax.platform_dependent(x, cpu=_behind_a_loop, default=lambda x: x)


@stored.defjvp
def _stored_tangent(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    return stored(*primals), tangents[0]


def stored_for(implementation: str, tree: Pytree) -> Pytree:
    """`tree`, such as a gradient that several loops and sums read, made once for all of them.

    Args:
      implementation: of what reads it. Kernels read arrays anyway, and may write over them.
      tree: pytree of arrays.

    Returns:
      `tree`, for "xla" with each array `stored`: the norm, activation and dropout that a gradient
      came through are otherwise compiled, and computed, in each of their users again.
    """
    return jax.tree.map(stored, tree) if implementation == "xla" else tree


def _behind_a_loop(x: jax.Array) -> jax.Array:
    # Reads the state alone: another use of x would keep what x is made from until the loop.
    return lax.while_loop(lambda x: when_ready(x) > 0, lambda x: x * 2, x)
