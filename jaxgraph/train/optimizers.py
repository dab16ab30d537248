"""Optimizers of optax that compare equal where they were made alike.

An optimizer is a pair of closures, new ones for each call of its factory. Compared by identity, an
optimizer that is made anew compiles its programs anew. Here, functions of the libraries whose code
is fixed are compared by their code and by what they close over; all else, such as a schedule of the
user's, whose code may read globals that change, by identity.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Hashable
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import optax

__all__ = ["Optimizer", "comparable"]

_FIXED = frozenset(("optax", "jax", "flax", "chex"))
"""Packages whose modules nobody changes while they are imported."""


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """A transformation of optax, hashable, and equal to those that do the same.

    Attributes:
      structure: what it consists of; compared.
      transformation: the transformation.
    """

    structure: Hashable = dataclasses.field(repr=False)
    transformation: optax.GradientTransformation = dataclasses.field(compare=False)


def comparable(transformation: optax.GradientTransformation) -> Optimizer:
    """Makes a transformation comparable.

    Args:
      transformation: of optax.

    Returns:
      It, equal to another one if both are made of the same functions of `_FIXED`, which close over
      equal numbers, texts and such functions, and over otherwise the same objects.
    """
    return Optimizer(_structure(transformation, {}), transformation)


@dataclasses.dataclass(frozen=True, eq=False)
class _Itself:
    """An object that equals itself alone, whatever its own `==` says."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _structure(value: Any, seen: dict[int, tuple[int, Any]]) -> Hashable:
    """The parts of a value; those that are met again, in a cycle, are their number.

    Args:
      value: any.
      seen: those met before by `id`, with their number; held, so that no other gets its `id`.
    """
    kind = type(value)
    # With the type and every bit: True == 1 == 1.0, and 0.0 == -0.0.
    if value is None or kind in (bool, int, str, bytes, CodeType):
        return kind, value
    if kind in (float, complex):
        return kind, repr(value)
    if isinstance(value, np.generic) and value.dtype.kind in "biufc":
        return kind, value.tobytes()
    if id(value) in seen:
        return "again", seen[id(value)][0]
    seen[id(value)] = len(seen), value

    def of_all(values: Any) -> tuple[Hashable, ...]:
        return tuple(_structure(each, seen) for each in values)

    if isinstance(value, tuple) or kind is list:
        return kind, of_all(value)
    if isinstance(value, dict):
        return kind, of_all(value.keys()), of_all(value.values())
    if isinstance(value, functools.partial):
        return kind, of_all((value.func, value.args, value.keywords))
    if isinstance(value, FunctionType) and _is_fixed(value):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        parts = (value.__defaults__, value.__kwdefaults__, cells)
        return _Itself(value.__globals__), value.__code__, of_all(parts)
    return _Itself(value)


def _is_fixed(function: FunctionType) -> bool:
    name = function.__globals__.get("__name__", "")
    module = sys.modules.get(name)
    return name.partition(".")[0] in _FIXED and vars(module or sys) is function.__globals__


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
