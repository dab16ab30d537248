"""All implementations of an op from one function: kernels where they reduce what it asks for, XLA.

Which of them reduces over edges is written on the edges, so that a function of a block is the same
for all, and is compiled once for each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from jaxgraph.ops.core.blocks import Block
from jaxgraph.ops.core.kernels import find_kernel
from jaxgraph.ops.core.messages import Inputs, MessageFn
from jaxgraph.ops.core.propagation import propagate_block
from jaxgraph.ops.core.reducers import Reducer
from jaxgraph.ops.cpu.library import missing
from jaxgraph.ops.dispatch import PREFERENCE, Implementation, by_preference, call

__all__ = [
    "allowed_on",
    "call_on_block",
    "implementations_of",
    "propagate_or_refuse",
    "with_implementation",
]

Pytree = Any


def with_implementation(block: Block, name: str) -> Block:
    """The same edges, reduced by the kernels of that name."""
    return dataclasses.replace(block, edges=dataclasses.replace(block.edges, implementation=name))


def allowed_on(
    candidates: tuple[Implementation, ...], placed_for: str
) -> tuple[Implementation, ...]:
    """Finds the implementations that may reduce edges where a call names none.

    Args:
      candidates: the implementations of one op, in order.
      placed_for: the name of the one that the edges were placed for.

    Returns:
      That one, and those that are tried after it.
    """
    first = PREFERENCE.index(placed_for)
    return tuple(each for each in candidates if PREFERENCE.index(each.name) >= first)


def call_on_block(
    candidates: tuple[Implementation, ...], name: str | None, block: Block, /, *arguments: Any
) -> jax.Array:
    """Computes an op on the edges of a block, as `jaxgraph.ops.dispatch.call`.

    Args:
      candidates: the implementations of the op, in order.
      name: which one; it is taken or it fails. None: the one that the graph was placed for, or the
        next that can.
      block: the edges.
      arguments: handed to it after the block.

    Returns:
      What it returns.
    """
    if name is None:
        candidates = allowed_on(candidates, block.edges.implementation)
    return call(candidates, name, block, *arguments)


def propagate_or_refuse(
    block: Block, message: MessageFn, reducer: Reducer, inputs: Inputs
) -> Pytree:
    """`propagate_block` by the implementation that the block names, and by no other.

    Args:
      block, message, reducer, inputs: as for `propagate_block`.

    Returns:
      One row per receiver row of the block.

    Raises:
      NotImplementedError: the block asks for kernels, and none reduces these messages.
    """
    name = block.edges.implementation
    if name != "xla" and find_kernel(block.edges, message, reducer, inputs) is None:
        types = sorted({str(leaf.dtype) for leaf in jax.tree.leaves((inputs.sender, inputs.edge))})
        raise NotImplementedError(
            f"no kernel of {name!r} reduces these messages of {', '.join(types)}"
        )
    return propagate_block(block, message, reducer, inputs)


def implementations_of(
    op: str, compute: Callable[..., jax.Array], self_check: Callable[[Callable[..., Any]], str]
) -> tuple[Implementation, ...]:
    """The implementations of an op over a block of edges, in the order in which they are tried.

    Args:
      op: its name.
      compute: `compute(block, *arguments)`, jitted, by the implementation that the block names;
        raises `NotImplementedError` where that cannot.
      self_check: see `Implementation`.

    Returns:
      "mosaic_gpu", "cpu" and "xla".
    """

    def by(name: str) -> Callable[..., jax.Array]:
        return lambda block, *arguments: compute(with_implementation(block, name), *arguments)

    return by_preference(
        Implementation(op, "xla", by("xla"), self_check),
        Implementation(op, "cpu", by("cpu"), self_check, ("cpu",), missing),
        Implementation(op, "mosaic_gpu", by("mosaic_gpu"), self_check, ("gpu",)),
    )
