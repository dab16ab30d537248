"""Functions whose intermediate results are made a second time in the backward, and only then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jaxgraph.ops.edges import when_ready
from jaxgraph.ops.messages import start_after

__all__ = ["recomputed"]


def recomputed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that keeps its arguments for the backward and nothing else.

    `jax.checkpoint` asks for the same with optimization barriers, which XLA's CPU compiler drops
    before it schedules: it then finds the first computation and the second equal, and keeps the
    results. Here the second computation waits, by its data, for the gradient.

    Args:
      function: of arrays, without collectives; it must not close over arrays. The first argument is
        floating, and large.

    Returns:
      The function, with the same values and gradients.
    """

    @jax.custom_vjp
    def call(*arguments: Any) -> Any:
        return function(*arguments)

    def forward(*arguments: Any) -> tuple[Any, Any]:
        return function(*arguments), arguments

    def backward(arguments: Any, gradient: Any) -> Any:
        first, *rest = arguments
        first = start_after(first, when_ready(gradient))
        return jax.vjp(function, first, *rest)[1](gradient)

    call.defvjp(forward, backward)
    return call
