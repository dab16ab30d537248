"""The states of values in a function of a shard whose result must not depend on the partition.

`row_flow` follows them through the function's jaxpr. A value is the same on every device (`Same`),
has a row for each of the device's nodes (`Rows`), is the device's share of a reduction over all
nodes (`Share`), or is not followed (`UNKNOWN`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

from jaxgraph.parallel.checks.axis_states import Along

Number: TypeAlias = bool | int | float


class RefusedError(Exception):
    """An equation whose result would depend on the partition.

    Args:
      why: a word of `jaxgraph.parallel.checks.row_check`.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclasses.dataclass(frozen=True)
class Same:
    """A value that is equal on every device.

    Attributes:
      uniform: dimensions with as many entries as the shard has rows, all of them equal.
      marked: for row numbers from `jnp.arange`, the axis of the rows; or None.
      value: the number that fills it; None: not known.
      natural: whether it is known that no entry is negative.
      entries: addends of each entry of a sum over the rows of all devices, padding included; 0: it
        is no such sum, or not known.
    """

    uniform: frozenset[int] = frozenset()
    marked: Along | None = None
    value: Number | None = None
    natural: bool = False
    entries: int = 0


@dataclasses.dataclass(frozen=True)
class Rows:
    """A value with a row for each node of the device, which depends on that node alone.

    Attributes:
      along: where the rows are.
      padding: the number that fills its padding; None: not known.
      natural: whether it is known that no entry is negative.
      table: the number of the sharded graph that the nodes belong to, among those of a call.
    """

    along: Along
    padding: Number | None = None
    natural: bool = False
    table: int | None = None


@dataclasses.dataclass(frozen=True)
class Share:
    """A reduction over the device's nodes, to be completed over the devices.

    Attributes:
      kind: "sum", "max", "min", "prod", "or", "and" or "xor".
      entries: numbers reduced to each entry, padding included; 0: not known.
    """

    kind: str
    entries: int = 0


@dataclasses.dataclass(frozen=True)
class Unknown:
    """A value that is not followed, such as an array of indices.

    Attributes:
      table: as of `Rows`; None: it is of no graph, or of several.
    """

    table: int | None = None


UNKNOWN = Unknown()

RowState: TypeAlias = Same | Rows | Share | Unknown


def number_of(value: Any) -> Number | None:
    """Returns a scalar as a Python number; None for an array, a key or NaN."""
    if np.shape(value) != () or not isinstance(value, bool | int | float | np.generic | np.ndarray):
        return None
    number = np.asarray(value).item()
    if not isinstance(number, bool | int | float) or math.isnan(number):
        return None
    return number


def is_natural(state: RowState) -> bool:
    """Tells whether it is known that no entry of a value is negative."""
    if isinstance(state, Same) and state.value is not None:
        return state.value >= 0
    return isinstance(state, Same | Rows) and state.natural


def table_of(states: Iterable[RowState]) -> int | None:
    """The graph that values belong to; None: none, or several."""
    found = {getattr(state, "table", None) for state in states} - {None}
    return found.pop() if len(found) == 1 else None


def joined_rows(first: RowState, second: RowState) -> RowState:
    """Joins the states of two values, either of which may be selected."""
    if first == second:
        return first
    if isinstance(first, Same) and isinstance(second, Same):
        return Same(first.uniform & second.uniform, natural=is_natural(first) & is_natural(second))
    if isinstance(first, Share) and isinstance(second, Share) and first.kind == second.kind:
        return Share(first.kind)
    for one, other in ((first, second), (second, first)):
        if isinstance(one, Share) and isinstance(other, Same):
            if one.kind == "sum" and other.value != 0:
                raise RefusedError("added")
            return Share(one.kind) if one.kind in ("sum", "max", "min") else UNKNOWN
        if isinstance(one, Rows) and isinstance(other, Same):
            padding = one.padding if one.padding == other.value else None
            return dataclasses.replace(
                one, padding=padding, natural=is_natural(one) and is_natural(other)
            )
    if isinstance(first, Rows) and isinstance(second, Rows):
        padding = first.padding if first.padding == second.padding else None
        if first.along.plain() == second.along.plain():
            natural = first.natural and second.natural
            return Rows(first.along.plain(), padding, natural, table_of((first, second)))
    return UNKNOWN
