"""Large pages under the memory that XLA takes for a whole program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.cpu.calls import reserved

__all__ = ["on_large_pages"]

Pytree = Any

_SMALL = 1 << 20
"""Bytes up to which a copy of an array is nothing beside what a program makes from it."""


def on_large_pages(tree: Pytree, num_bytes: int) -> Pytree:
    """The same arrays, with large pages asked for under the memory of what is made from them.

    XLA's CPU compiler lays all that a program makes into one piece of memory, which is new in every
    call, and the first use of a page of 4 KiB takes longer than to write it. An array that nobody
    reads lies where later ones will, so that to ask under it is to ask under them.

    Args:
      tree: what a program starts from, such as its parameters; large arrays are left alone.
      num_bytes: of that piece, or a little less: with more the program would take more. 0: nothing
        is done.

    Returns:
      The arrays, bit for bit.
    """
    if num_bytes == 0:
        return tree
    is_asked = reserved(num_bytes, jnp.ones(1, bool))[0]

    def made_later(leaf: jax.Array) -> jax.Array:
        return jnp.where(is_asked, leaf, 0) if leaf.nbytes <= _SMALL else leaf

    return jax.tree.map(made_later, tree)
