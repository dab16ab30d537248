"""The states of values in a function that must treat every entry of one axis by itself.

`row_flow` follows the axis (of rows, or of the edges of a chunk) through a jaxpr. A value has one
of three states. It does not depend on the axis (`SHARED`). It has the axis in a known dimension,
and its entry e depends on entry e of the inputs alone (`Along`). Or it mixes entries (`Mixed`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias


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
    """A value whose entries depend on other entries, or on their order.

    Attributes:
      why: "mixes" or "position".
    """

    why: str = "mixes"


State: TypeAlias = Shared | Along | Mixed


def joined(states: Sequence[State]) -> State:
    """Joins the states of values of one shape, any one of which may be selected."""
    for state in states:
        if isinstance(state, Mixed):
            return state
    along = [state for state in states if isinstance(state, Along)]
    if not along:
        return SHARED
    if any(state.axis != along[0].axis for state in along):
        return Mixed()
    if all(state == along[0] for state in along) and len(along) == len(states):
        return along[0]
    if any(state.depends_on_position for state in along):
        return Mixed("position")
    placed = [state.plain() for state in along if not state.uniform]
    if not placed:
        return along[0].plain()
    return placed[0] if all(state == placed[0] for state in placed) else Mixed()


Shape: TypeAlias = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Step:
    """An equation.

    Attributes:
      name: its primitive.
      params: its parameters.
      entries: length of the axis.
      inputs, outputs: shapes.
      literals: for each input, its value if it is a literal, or None.
    """

    name: str
    params: dict[str, Any]
    entries: int
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    literals: tuple[Any, ...]

    def mixed(self, why: str = "mixes") -> list[State]:
        """Returns the states of outputs that all mix entries."""
        return [Mixed(why)] * len(self.outputs)


Rule = Callable[[Step, Sequence[State]], list[State]]


def by_default(step: Step, states: Sequence[State]) -> list[State]:
    """Keeps the axis of an elementwise primitive, or of one that leaves a leading axis alone."""
    along = [(s, shape) for s, shape in zip(states, step.inputs, strict=True) if s != SHARED]
    state = joined([state for state, _ in along])
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
            results.append(Mixed())
    return results


def only_operand(states: Sequence[State]) -> Along | None:
    """Returns the state of a step's first operand where it has the axis, else None."""
    return states[0] if isinstance(states[0], Along) else None
