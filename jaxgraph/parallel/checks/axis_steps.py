"""Equations on an axis whose entries must not mix, and the rule for most of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from jaxgraph.parallel.checks.axis_states import SHARED, Along, Mixed, State, joined

__all__ = ["Rule", "Step", "by_default", "only_operand"]

Shape: TypeAlias = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Step:
    """An equation, traced with two lengths of the axis.

    Attributes:
      name: its primitive.
      params: its parameters in the first trace.
      entries: length of the axis in the first trace.
      inputs, outputs: shapes in the first trace.
      grown: for each output, the dimensions that differ between the traces.
      literals: for each input, its value if it is a literal, or None.
      line: the user's line that called it, or "".
    """

    name: str
    params: dict[str, Any]
    entries: int
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    grown: tuple[Shape, ...]
    literals: tuple[Any, ...]
    line: str

    def mixed(self, why: str = "mixes") -> list[State]:
        """Returns the states of outputs that all mix entries."""
        return [Mixed(self.name, why, self.line)] * len(self.outputs)

    def created(self, output: int, why: str | None) -> State:
        """Returns the state of an output computed from shared values only.

        Args:
          output: its index.
          why: as of `Mixed`, for an output that has the axis; None: its entries are equal.
        """
        grown = list(self.grown[output])
        if not grown:
            return SHARED
        size = self.outputs[output][grown[0]]
        if why is not None or len(grown) > 1 or size % self.entries:
            return Mixed(self.name, why or "mixes", self.line)
        return Along(grown[0], outer=size // self.entries, uniform=True)


Rule = Callable[[Step, Sequence[State]], list[State]]


def by_default(step: Step, states: Sequence[State]) -> list[State]:
    """Keeps the axis of a primitive that acts element by element, or leaves a leading axis alone.

    Args:
      step: the equation.
      states: of its inputs, none of them `Mixed`.

    Returns:
      The states of its outputs.
    """
    along = [(s, shape) for s, shape in zip(states, step.inputs, strict=True) if s != SHARED]
    if not along:
        return [step.created(i, "count") for i in range(len(step.outputs))]
    state = joined([state for state, _ in along], step.name, step.line)
    if not isinstance(state, Along):
        return step.mixed(state.why if isinstance(state, Mixed) else "mixes")
    if state.depends_on_position:
        return step.mixed("position")
    state = state.plain()
    rank = max(len(shape) for _, shape in along)
    # Dimensions of size 1 are broadcast to those of the other operands.
    shapes = [shape for _, shape in along] + list(step.inputs)
    sizes = zip(*(shape for shape in shapes if len(shape) == rank), strict=True)
    widest = tuple(next((size for size in each if size != 1), 1) for each in sizes)
    size = widest[state.axis]
    leads = state.axis == 0 and all(shape[:1] == (size,) for _, shape in along)
    results: list[State] = []
    for shape in step.outputs:
        if shape == widest or (leads and shape[:1] == (size,)):
            results.append(state)
        else:
            results.append(Mixed(step.name, "mixes", step.line))
    return results


def only_operand(states: Sequence[State]) -> Along | None:
    """Returns the state of a step's first operand where it has the axis, else None."""
    return states[0] if isinstance(states[0], Along) else None
