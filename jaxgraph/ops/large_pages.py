"""Large pages under the memory that XLA takes for a whole program, where the process wants them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.stored import stored
from jaxgraph.ops.cpu import calls

__all__ = ["on_large_pages"]

Pytree = Any

_SMALL = 1 << 20
"""Bytes of an array up to which its copy costs little beside the program's other work."""

_WORTHWHILE = 1 << 23
"""Bytes of an array from which on a kernel asks for large pages under it, too (`pages.h`)."""


def on_large_pages(tree: Pytree, largest: int) -> Pytree:
    """The same arrays, with large pages requested for the memory of what a program makes from them.

    XLA's CPU compiler places all that a program makes in one allocation, which is new in every
    call, and the first use of a page of 4 KiB takes longer than to write it. A kernel whose result
    nobody reads is told where the allocation starts, and Linux how far it goes. The kernel does
    nothing before `jaxgraph.process.use_large_pages` is called: the program is the same with and
    without.

    Args:
      tree: what a program starts from, such as its parameters; large arrays are left alone.
      largest: bytes of a large array that is made from them, as far as is known; up to 8 MiB
        nothing is done.

    Returns:
      The arrays, bit for bit.
    """
    if largest <= _WORTHWHILE:
        return tree
    # XLA may lay what is smaller into the memory of a result, such as a new parameter.
    place = 1 + max((leaf.nbytes for leaf in jax.tree.leaves(tree)), default=0)
    is_asked = calls.on_large_pages(jnp.ones(1, bool), place)[0]

    # Stored: fused into the loops that read it, the choice would change how XLA rounds their sums.
    def made_later(leaf: jax.Array) -> jax.Array:
        return stored(jnp.where(is_asked, leaf, 0)) if leaf.nbytes <= _SMALL else leaf

    return jax.tree.map(made_later, tree)
