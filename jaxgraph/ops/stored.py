"""Arrays that XLA is to compute once."""

from __future__ import annotations

import jax
from jax import lax

from jaxgraph.ops.edges import when_ready

__all__ = ["stored"]


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


def _behind_a_loop(x: jax.Array) -> jax.Array:
    # Reads the state alone: another use of x would keep what x is made from until the loop.
    return lax.while_loop(lambda x: when_ready(x) > 0, lambda x: x * 2, x)
