"""Follows the number that fills an array, or its rows of padding, through an operation."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxgraph.parallel.checks.axis_rules import MOVES
from jaxgraph.parallel.checks.states import Number, Step, number_of

_ALWAYS = frozenset(
    (
        *("abs", "argmax", "argmin", "cosh", "erfc", "exp", "exp2", "iota", "logistic"),
        *("population_count", "rsqrt", "sqrt", "square"),
    )
)
_OF_FIRST = MOVES | {"clamp", "pow"}
_OF_ALL = frozenset(
    (
        *("add", "add_any", "cbrt", "ceil", "concatenate", "convert_element_type", "cummax"),
        *("cummin", "cumsum", "div", "erf", "expm1", "floor", "log1p", "min", "pad", "reduce_max"),
        *("reduce_min", "reduce_sum", "rem", "round", "sign", "sort", "stack", "tanh"),
    )
)
_OF_ALL_FLOATS = frozenset(("cumprod", "dot_general", "integer_pow", "mul", "reduce_prod"))
"""Integers may become negative here, when they overflow."""


def has_naturals(step: Step, naturals: Sequence[bool], output: int) -> bool:
    """Tells whether an output of an equation is known to have no negative entry."""
    name, dtype = step.name, step.dtypes[output - len(step.outputs)]
    if not isinstance(dtype, np.dtype):
        return False
    if dtype.kind in "bu":
        return True
    is_integer = dtype.kind == "i"
    if name == "iota" and is_integer:
        return step.outputs[0][step.params["dimension"]] <= np.iinfo(dtype).max
    if name in _ALWAYS or (name == "integer_pow" and step.params["y"] % 2 == 0):
        return not (is_integer and name in ("square", "integer_pow"))
    if name == "max":
        return any(naturals)
    if name == "select_n":
        return all(naturals[1:])
    if name in _OF_FIRST:
        # For indices out of range JAX fills in the smallest integer.
        return naturals[0] and not (name == "gather" and is_integer)
    return (name in _OF_ALL or (name in _OF_ALL_FLOATS and not is_integer)) and all(naturals)


_KEEPS = MOVES | {
    *("cummax", "cummin", "reduce_and", "reduce_max", "reduce_min", "reduce_or"),
    *("jaxgraph_forward_only", "jaxgraph_reverse_only"),
}
"""Primitives that fill their output with the number that fills their first operand."""

_LARGE = 1e9
"""Numbers of at least this magnitude stand for infinity."""

_COMPARES = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))

_KEEPS_ZERO = frozenset(("reduce_sum", "cumsum", "dot_general", "conv_general_dilated"))

_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        **{name: getattr(np, name) for name in ("abs", "sign", "floor", "ceil", "exp", "expm1")},
        **{name: getattr(np, name) for name in ("log", "log1p", "sqrt", "sin", "cos", "tanh")},
        **{"neg": operator.neg, "square": np.square, "cbrt": np.cbrt},
        **{"add": operator.add, "add_any": operator.add, "sub": operator.sub, "mul": operator.mul},
        **{"max": max, "min": min, "pow": np.power, "xor": operator.xor},
        **{name: getattr(operator, name) for name in _COMPARES},
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "logistic": lambda x: 1 / (1 + np.exp(-np.float64(x))),
        "not": lambda x: not x if isinstance(x, bool) else np.nan,
        "div": lambda x, y: np.float64(x) / y if isinstance(x, float) else np.nan,
        "erf": lambda x: x if x == 0 else np.nan,
        "clamp": lambda low, x, high: min(max(low, x), high),
        "is_finite": np.isfinite,
    }
)
"""Primitives that act element by element."""


def filled(
    step: Step,
    numbers: Sequence[Number | None],
    output: int,
    naturals: Sequence[bool],
) -> Number | None:
    """Finds the number that fills an output."""
    name = step.name
    if name == "sort":
        return numbers[output]
    if name in _KEEPS:
        return numbers[0]
    if name == "convert_element_type":
        return _converted(numbers[0], step.params["new_dtype"])
    if name == "reduce_sum" and numbers[0] is not None:
        times = math.prod(step.inputs[0]) // max(math.prod(step.outputs[0]), 1)
        return number_of(np.float64(numbers[0] * times) if times else 0)
    if name == "mul" or name in _KEEPS_ZERO:
        if any(number == 0 for number in numbers):
            return 0
        return _computed(step, numbers)
    if name == "div" and numbers[0] == 0:
        return 0
    if name in ("add", "add_any", "sub") and None in numbers:
        return _of_large(name, numbers)
    if name in _COMPARES:
        numbers = _with_naturals(name, numbers, naturals)
    if name in ("and", "or"):
        return _logical(name, numbers)
    if name == "select_n":
        return _selected(numbers)
    if name in ("concatenate", "stack", "pad", "dynamic_update_slice"):
        parts = numbers if name in ("concatenate", "stack") else numbers[:2]
        return parts[0] if all(number == parts[0] for number in parts) else None
    return _computed(step, numbers)


def is_neutral(kind: str, number: Number | None, dtype: Any, *, natural: bool = False) -> bool:
    """Tells whether one more number leaves a reduction unchanged."""
    if number is None:
        return False
    if kind in ("sum", "or", "xor"):
        return number == 0
    if kind == "prod":
        return number == 1
    if kind == "and":
        return number in ((True, -1) if np.issubdtype(dtype, np.integer) else (True,))
    if kind == "max" and natural and number == 0:
        return True
    if dtype == np.bool_:
        return number == (kind == "min")
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        return number == (limits.min if kind == "max" else limits.max)
    largest = min(_LARGE, float(jnp.finfo(dtype).max))
    return number <= -largest if kind == "max" else number >= largest


def _of_large(name: str, numbers: Sequence[Number | None]) -> Number | None:
    """Adds a known and an unknown number: the known one if it stands for infinity, else None."""
    first, second = numbers
    if first is not None:
        return first if abs(first) >= _LARGE else None
    if second is None or abs(second) < _LARGE:
        return None
    return -second if name == "sub" else second


def _with_naturals(
    name: str, numbers: Sequence[Number | None], naturals: Sequence[bool]
) -> Sequence[Number | None]:
    """Replaces unknown non-negative numbers by 0: both compare alike with a negative one."""
    is_below = any(number is not None and number < 0 for number in numbers)
    # No non-negative number is less than 0.
    if not is_below and not (name in ("lt", "ge") and numbers[1] == 0):
        return numbers
    pairs = zip(numbers, naturals, strict=True)
    return [0 if number is None and natural else number for number, natural in pairs]


def _converted(number: Number | None, dtype: Any) -> Number | None:
    if number is None or not isinstance(dtype, np.dtype):
        return None
    with np.errstate(all="ignore"):
        return number_of(np.asarray(number).astype(dtype))


def _logical(name: str, numbers: Sequence[Number | None]) -> Number | None:
    if not all(number is None or isinstance(number, bool) for number in numbers):
        return None
    decides = name == "or"
    if any(number is decides for number in numbers):
        return decides
    return None if None in numbers else not decides


def _selected(numbers: Sequence[Number | None]) -> Number | None:
    which, *cases = numbers
    if which is not None:
        return cases[int(which)]
    return cases[0] if all(case == cases[0] for case in cases) else None


def _computed(step: Step, numbers: Sequence[Number | None]) -> Number | None:
    function: Any = _FUNCTIONS.get(step.name)
    if step.name == "integer_pow":
        exponent = step.params["y"]
        function = lambda x: float(x) ** exponent if x or exponent > 0 else np.nan  # noqa: E731
    if function is None or any(number is None for number in numbers):
        return None
    with np.errstate(all="ignore"):
        return number_of(function(*numbers))
