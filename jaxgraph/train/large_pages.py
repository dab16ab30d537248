"""Programs that ask for large pages under all that they make."""

from __future__ import annotations

from collections.abc import Callable

import jax

from jaxgraph.parallel import ShardedGraph

__all__ = ["compile_on_large_pages"]

_WORTHWHILE = 1 << 26
"""Bytes from which on it is faster. Less than half of it the C library keeps for the next call."""

_SHARE = 15 / 16
"""Of what a program makes: a few arrays of a number per node are there when it asks."""

_MORE = 1.02
"""How much more the program may take for it."""


def compile_on_large_pages(
    sharded: ShardedGraph, lower: Callable[[int], jax.stages.Lowered]
) -> tuple[int, jax.stages.Compiled]:
    """Compiles a program, where it makes much a second time, as only then is known how much.

    Args:
      sharded: the graph that it is for.
      lower: lowers it, given the `num_bytes` of `jaxgraph.ops.large_pages.on_large_pages`.

    Returns:
      The `num_bytes` chosen, and the program with them: other than 0 where the CPU kernels are used
      and the program makes 64 MiB or more on a device; never does it take over 2% more for it.
    """
    compiled = lower(0).compile()
    size = _temporary(compiled)
    if sharded.shards.incoming.implementation != "cpu" or size < _WORTHWHILE:
        return 0, compiled
    num_bytes = int(_SHARE * size)
    again = lower(num_bytes).compile()
    return (num_bytes, again) if _temporary(again) <= _MORE * size else (0, compiled)


def _temporary(compiled: jax.stages.Compiled) -> int:
    """Bytes of what a program makes on a device, without its results; 0 where it is not known."""
    memory = compiled.memory_analysis()
    return 0 if memory is None else memory.temp_size_in_bytes
