"""The states of values in a function that must treat every entry of one axis by itself.

`jaxgraph.parallel.axis_flow` follows the axis (of the edges of a chunk, say) through a jaxpr. A
value either does not depend on the axis (`SHARED`), or has it at a known place (`Along`): its entry
at position e then depends on entry e of the inputs alone; or it mixes entries (`Mixed`).
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
      axis: which dimension holds it, of size outer * entries * inner.
      outer, inner: sizes of what was merged with it by a reshape, before and after it.
      uniform: whether all entries along the dimension are equal.
      content: "position": the number of the entry along the axis; "wrapped": that plus the number
        of entries; "false"; or for indices, whether each of their columns is the position. None:
        anything that depends on the entry alone.
    """

    axis: int
    outer: int = 1
    inner: int = 1
    uniform: bool = False
    content: str | tuple[bool, ...] | None = None

    @property
    def depends_on_position(self) -> bool:
        """Whether the value tells where in the chunk an entry is."""
        return self.content in ("position", "wrapped") or isinstance(self.content, tuple)

    def at(self, axis: int) -> Along:
        """The same with the axis elsewhere."""
        return dataclasses.replace(self, axis=axis)

    def plain(self) -> Along:
        """The same, without its content."""
        return dataclasses.replace(self, content=None)


@dataclasses.dataclass(frozen=True)
class Mixed:
    """A value whose entries are not made each by itself.

    Attributes:
      operation: the primitive that did it.
      why: "mixes", "position", "random", "count" or "devices".
      line: where the user called it, or "".
    """

    operation: str
    why: str
    line: str = ""


State: TypeAlias = Shared | Along | Mixed


def joined(states: list[State], operation: str = "select", line: str = "") -> State:
    """The state of a value of which any of several, of one shape, may be taken."""
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
