"""The product of a concatenation, split into one product for each of its parts.

[a, b] W = a W_a + b W_b, where W_a and W_b are the rows of W that a and b meet. What is written as
one map of (sender, receiver, edge) becomes three, two of which are made once per node. Sums of ends
are not split: (a - b) W would lose the digits that a and b have in common.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxgraph.ops.core.edges import match_variation
from jaxgraph.ops.core.precision import to_accumulation
from jaxgraph.ops.core.rewriting.steps import Operand, Program, Step


@dataclasses.dataclass(frozen=True)
class _Product:
    """A product of a concatenation and of a matrix that no edge changes.

    Attributes:
      step: the product.
      parts: the values that are concatenated.
      converts: the types that the concatenation is converted to before the product.
      is_left: whether it is the left operand.
    """

    step: Step
    parts: tuple[Operand, ...]
    converts: tuple[Any, ...]
    is_left: bool


def split_products(program: Program) -> tuple[Program, tuple[Step, ...]]:
    """Splits products of concatenations whose parts depend on different ends."""
    makers = {result: step for step in program.steps for result in step.results}
    steps, types, split = [], dict(program.types), []
    for step in program.steps:
        product = _product(program, makers, step)
        if product is None:
            steps.append(step)
            continue
        split.append(step)
        steps += _split(product, program, types)
    return dataclasses.replace(program, steps=tuple(steps), types=types), tuple(split)


def _product(program: Program, makers: dict[int, Step], step: Step) -> _Product | None:
    if step.name != "dot_general":
        return None
    contracted, batch = step.equation.params["dimension_numbers"]
    if any(batch) or any(len(axes) != 1 for axes in contracted):
        return None
    for is_left in (True, False):
        joined, kernel = step.operands if is_left else step.operands[::-1]
        if not isinstance(joined, int) or not isinstance(kernel, int) or program.ends[kernel]:
            continue
        converts, maker = [], makers.get(joined)
        while maker is not None and maker.name == "convert_element_type":
            converts.append(maker.equation.params["new_dtype"])
            maker = makers.get(maker.reads[0]) if maker.reads else None
        if maker is None or maker.name != "concatenate":
            continue
        axis = contracted[0 if is_left else 1][0]
        ends = {program.ends[part] for part in maker.reads}
        if maker.equation.params["dimension"] == axis and len(ends) > 1:
            return _Product(step, maker.operands, tuple(converts[::-1]), is_left)
    return None


def _split(product: _Product, program: Program, types: dict[int, Any]) -> list[Step]:
    """The steps in place of a product: one product per part, sums by end, and the total."""
    step, kernel = product.step, product.step.operands[1 if product.is_left else 0]
    (left, right), _ = step.equation.params["dimension_numbers"]
    axis, of_kernel = (left[0], right[0]) if product.is_left else (right[0], left[0])
    steps: list[Step] = []

    def append(apply: Callable[..., Any], operands: tuple[Operand, ...], name: str) -> int:
        number = len(types)
        types[number] = types[step.results[0]]
        values = lambda given: [apply(*match_variation(given, given))]  # noqa: E731
        steps.append(Step(name, operands, (number,), values, step.equation))
        return number

    by_ends: dict[frozenset[str], list[int]] = {}
    first = 0
    for part in product.parts:
        aval: Any = types[part] if isinstance(part, int) else part.aval
        last = first + aval.shape[axis]
        apply = functools.partial(_part, product, of_kernel, first, last)
        ends = program.ends[part] if isinstance(part, int) else frozenset()
        number = append(apply, (part, kernel), "dot_general")
        by_ends.setdefault(ends, []).append(number)
        first = last
    sums = [
        parts[0] if len(parts) == 1 else append(_total, tuple(parts), "add")
        for parts in by_ends.values()
    ]
    append(_total, tuple(sums), "add")
    steps[-1] = dataclasses.replace(steps[-1], results=step.results)
    return steps


def _part(
    product: _Product, axis: int, first: int, last: int, part: jax.Array, kernel: jax.Array
) -> jax.Array:
    """The product of one part and of the rows of the matrix that it meets."""
    for dtype in product.converts:
        part = lax.convert_element_type(part, dtype)
    rows = lax.slice_in_dim(kernel, first, last, axis=axis)
    params = product.step.equation.params
    return lax.dot_general(
        *((part, rows) if product.is_left else (rows, part)),
        dimension_numbers=params["dimension_numbers"],
        precision=params["precision"],
        preferred_element_type=params["preferred_element_type"],
    )


def _total(*parts: jax.Array) -> jax.Array:
    """The sum of the parts, added up in at least 32 bits."""
    total = functools.reduce(jnp.add, map(to_accumulation, parts))
    return total.astype(parts[0].dtype)
