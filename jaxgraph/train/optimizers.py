"""Optimizers of optax that compare equal if they were made alike.

An optimizer is a pair of closures, and each call of its factory makes new ones. Compared by
identity, a new but equal optimizer would compile its programs again. This module compares functions
of libraries with fixed code by their code and their closures. It compares all else by identity,
such as a user's schedule, whose code may read globals that change.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Hashable
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import optax

__all__ = ["EvalParams", "Optimizer", "closed_over", "comparable"]

EvalParams = Callable[[Any, Any], Any]
"""`(optimizer_state, params) -> params`: the parameters to evaluate and to keep."""

_FIXED = frozenset(("optax", "jax", "flax", "chex"))
"""Packages whose modules do not change after their import."""


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """A transformation of optax, hashable, and equal to those with the same structure.

    Attributes:
      structure: its functions and constants, which are compared.
      transformation: the transformation.
      eval_params: reads the parameters to evaluate; None: those of the steps.
    """

    structure: Hashable = dataclasses.field(repr=False)
    transformation: optax.GradientTransformation = dataclasses.field(compare=False)
    eval_params: EvalParams | None = dataclasses.field(default=None, compare=False)


def comparable(
    transformation: optax.GradientTransformation, eval_params: EvalParams | None = None
) -> Optimizer:
    """Makes a transformation comparable.

    Args:
      transformation: a transformation of optax.
      eval_params: as for `jaxgraph.train.fit`.

    Returns:
      An optimizer that equals another one if both have the same functions of `_FIXED`, and these
      close over equal numbers, texts and such functions, and otherwise over the same objects.
    """
    structure = _structure((transformation, eval_params), {})
    return Optimizer(structure, transformation, eval_params)


@dataclasses.dataclass(frozen=True, eq=False)
class _Itself:
    """An object that equals itself alone, whatever its own `==` says."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _structure(value: Any, seen: dict[int, tuple[int, Any]]) -> Hashable:
    """Returns the structure of a value; a repeated object, as in a cycle, becomes its number.

    Args:
      value: any object.
      seen: number of each earlier object by `id`, and the object, so that no other gets its `id`.
    """
    kind = type(value)
    # Compared by type and every bit: True == 1 == 1.0, and 0.0 == -0.0.
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
        parts = (value.__defaults__, value.__kwdefaults__, closed_over(value))
        return _Itself(value.__globals__), value.__code__, of_all(parts)
    return _Itself(value)


def _is_fixed(function: FunctionType) -> bool:
    name = function.__globals__.get("__name__", "")
    module = sys.modules.get(name)
    return name.partition(".")[0] in _FIXED and vars(module or sys) is function.__globals__


def closed_over(function: FunctionType) -> list[Any]:
    """The objects in the cells of a function's closure."""
    return [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
