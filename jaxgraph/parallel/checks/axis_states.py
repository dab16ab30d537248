"""The states of values in a function that must treat every entry of one axis by itself.

`axis_flow` follows the axis (of the edges of a chunk, say) through a jaxpr. A value has one of
three states. It does not depend on the axis (`SHARED`). It has the axis in a known dimension, and
its entry e depends on entry e of the inputs alone (`Along`). Or it mixes entries (`Mixed`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

__all__ = [
    "SHARED",
    "Along",
    "Mixed",
    "Rule",
    "Shared",
    "State",
    "Step",
    "by_default",
    "joined",
    "only_operand",
]


@dataclasses.dataclass(frozen=True)
class Shared:
    """A value without the axis."""


SHARED = Shared()


@dataclasses.dataclass(frozen=True)
class Along:
    """A value that has the axis.

    Attributes:
      axis: the dimension that holds it, of size outer * entries * inner.
      outer, inner: sizes of the dimensions that a reshape merged with it, before and after it.
      uniform: whether all entries along the dimension are equal.
      content: "position": the position of the entry along the axis; "wrapped": the position plus
        the number of entries; "false": False; a tuple: for each column of indices, whether it is
        the position; None: any value that depends on the entry alone.
    """

    axis: int
    outer: int = 1
    inner: int = 1
    uniform: bool = False
    content: str | tuple[bool, ...] | None = None

    @property
    def depends_on_position(self) -> bool:
        """Tells whether the value depends on the position of an entry along the axis."""
        return self.content in ("position", "wrapped") or isinstance(self.content, tuple)

    def at(self, axis: int) -> Along:
        """Returns the state with the axis in another dimension."""
        return dataclasses.replace(self, axis=axis)

    def plain(self) -> Along:
        """Returns the state without its content."""
        return dataclasses.replace(self, content=None)


@dataclasses.dataclass(frozen=True)
class Mixed:
    """A value whose entries depend on other entries, or on their number or order.

    Attributes:
      operation: the primitive that mixes them.
      why: "mixes", "position", "random", "count" or "devices".
      line: the user's line that called it, or "".
    """

    operation: str
    why: str
    line: str = ""


State: TypeAlias = Shared | Along | Mixed


def joined(states: list[State], operation: str = "select", line: str = "") -> State:
    """Joins the states of values of one shape, any one of which may be selected.

    Args:
      states: of the values.
      operation: the primitive that selects one, for the message.
      line: the user's line that called it, or "".

    Returns:
      The state of the selected value.
    """
    for state in states:
        if isinstance(state, Mixed):
            return state
    along = [state for state in states if isinstance(state, Along)]
    if not along:
        return SHARED
    if any(state.axis != along[0].axis for state in along):
        return Mixed(operation, "mixes", line)
    if all(state == along[0] for state in along) and len(along) == len(states):
        return along[0]
    if any(state.depends_on_position for state in along):
        return Mixed(operation, "position", line)
    placed = [state.plain() for state in along if not state.uniform]
    if not placed:
        return along[0].plain()
    if any(state != placed[0] for state in placed):
        return Mixed(operation, "mixes", line)
    return placed[0]


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
