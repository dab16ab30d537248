"""The states of values in a function of a shard whose result must not depend on the partition.

`row_flow` follows them through the function's jaxpr. A value is the same on every device (`Same`),
has a row for each of the device's nodes (`Rows`), is the device's share of a reduction over all
nodes (`Share`), or is not followed (`UNKNOWN`). Where its rows are, `Along` says.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

Number: TypeAlias = bool | int | float
Shape: TypeAlias = tuple[int, ...]


class RefusedError(Exception):
    """An equation whose result would depend on the partition.

    Args:
      why: a word of `jaxgraph.parallel.checks.row_check`.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


@dataclasses.dataclass(frozen=True)
class Step:
    """An equation.

    Attributes:
      name: its primitive.
      params: its parameters.
      entries: the number of rows.
      inputs, outputs: shapes.
      dtypes: of the first operand, if there is one, and of the outputs.
    """

    name: str
    params: dict[str, Any]
    entries: int
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    dtypes: tuple[Any, ...]

    @classmethod
    def of(cls, equation: Any, entries: int) -> Step:
        """Of a program of some rows."""
        name, params = equation.primitive.name, equation.params
        given, made = ([var.aval for var in some] for some in (equation.invars, equation.outvars))
        dtypes = tuple(getattr(aval, "dtype", None) for aval in (*given[:1], *made))
        return cls(name, params, entries, _shapes(given), _shapes(made), dtypes)


def _shapes(avals: Iterable[Any]) -> tuple[Shape, ...]:
    return tuple(tuple(getattr(aval, "shape", ())) for aval in avals)


@dataclasses.dataclass(frozen=True)
class Along:
    """Where the rows of a value are: entry e along the axis depends on row e of the inputs alone.

    Attributes:
      axis: the dimension that holds them, of size outer * rows * inner.
      outer, inner: sizes of the dimensions that a reshape merged with it, before and after it.
      positions: of indices, whether each column is the number of the row; (): the value depends on
        the row alone.
    """

    axis: int
    outer: int = 1
    inner: int = 1
    positions: tuple[bool, ...] = ()

    def at(self, axis: int) -> Along:
        """Returns the state with the rows in another dimension."""
        return dataclasses.replace(self, axis=axis)

    def plain(self) -> Along:
        """Returns the state of a value that depends on the row alone."""
        return dataclasses.replace(self, positions=())


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

    def is_alike(self, axis: int) -> bool:
        """Tells whether all entries along a dimension are equal."""
        return self.value is not None or axis in self.uniform


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


def number_in(state: RowState) -> Number | None:
    """Returns the number that fills a value, or its padding; None: not known."""
    if isinstance(state, Same):
        return state.value
    return state.padding if isinstance(state, Rows) else None


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
