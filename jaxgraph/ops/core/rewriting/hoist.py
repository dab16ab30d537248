"""Turns the values that a message function closes over into its arguments.

A message runs inside loops whose trip counts differ between devices, where no collective may run.
The gradient of a parameter that is the same on all devices ends in one, at the point where the
parameter meets values that differ between devices. What depends on closed-over values alone is
computed once, outside the loops, and enters the rest as an argument that differs between devices.
Its gradient is then summed over the mesh once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jaxgraph.ops.core.closures import use_trace
from jaxgraph.ops.core.edges import match_variation
from jaxgraph.ops.core.rewriting.steps import Program, Step, numbered

Pytree = Any


def hoist(
    function: Callable[..., Pytree], *examples: Pytree
) -> tuple[Callable[..., Pytree], tuple[jax.Array, ...]]:
    """Splits a function into one without closed-over arrays and the values it needs instead."""

    def split(closed: Any, shape: Pytree) -> Any:
        program = numbered(closed, shape, dict(enumerate(examples)))
        numbers, inside = _cut(program)
        params = tuple(match_variation(each, examples) for each in program.run(numbers, {}))
        leaves = [number for each in program.arguments.values() for number in each]

        def converted(params: tuple[jax.Array, ...], *arguments: Pytree) -> Pytree:
            known = dict(zip(leaves, jax.tree.leaves(arguments), strict=True))
            known |= dict(zip(numbers, params, strict=True))
            return jax.tree.unflatten(
                program.structure, program.run(program.outputs, known, inside)
            )

        # A difference that JAX does not accept shows here, not in a gradient.
        jax.eval_shape(converted, params, *examples)
        return converted, params

    return use_trace(function, examples, split)


def _cut(program: Program) -> tuple[list[int], list[Step]]:
    """The values of closed-over arrays alone that the other steps or the outputs read; those steps.

    Steps whose results nobody reads are among them: they may print.
    """
    outside, inside = set(program.constants), []
    read = {each for each in program.outputs if isinstance(each, int)}
    for step in program.steps:
        if step.reads and outside.issuperset(step.reads):
            outside.update(step.results)
        else:
            inside.append(step)
            read.update(step.reads)
    return sorted(outside & read), inside
