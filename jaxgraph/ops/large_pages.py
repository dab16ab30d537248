"""Large pages for the memory of a whole program, where the process enables them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.stored import stored
from jaxgraph.ops.cpu import calls

Pytree = Any

_SMALL = 1 << 20
"""Bytes up to which the copy of an array costs little compared with the program."""

_WORTHWHILE = 1 << 23
"""Bytes from which on a kernel requests large pages for an array (`pages.h`)."""


def on_large_pages(tree: Pytree, largest: int) -> Pytree:
    """The same arrays, after large pages were requested for all memory of the program.

    XLA's CPU compiler places all arrays of a program in one allocation, which is new in every call,
    and the first use of a page of 4 KiB takes longer than writing it. A kernel whose result nobody
    reads learns where the allocation starts, and asks Linux where it ends. The kernel does nothing
    before `jaxgraph.process.use_large_pages` is called: the program is the same with and without.
    """
    if largest <= _WORTHWHILE:
        return tree
    # Larger than the inputs: XLA may place a smaller array in the memory of a result.
    place = 1 + max((leaf.nbytes for leaf in jax.tree.leaves(tree)), default=0)
    is_asked = calls.on_large_pages(jnp.ones(1, bool), place)[0]

    # Stored: fused into the loops that read it, the choice would change how XLA rounds their sums.
    def after_request(leaf: jax.Array) -> jax.Array:
        return stored(jnp.where(is_asked, leaf, 0)) if leaf.nbytes <= _SMALL else leaf

    return jax.tree.map(after_request, tree)
