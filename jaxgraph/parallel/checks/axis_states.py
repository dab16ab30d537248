"""The states of values in a function that must treat every entry of one axis by itself.

`axis_flow` follows the axis (of the edges of a chunk, say) through a jaxpr. A value has one of
three states. It does not depend on the axis (`SHARED`). It has the axis in a known dimension, and
its entry e depends on entry e of the inputs alone (`Along`). Or it mixes entries (`Mixed`).
"""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

__all__ = ["SHARED", "Along", "Mixed", "Shared", "State", "joined"]


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
