"""Values without negative entries: degrees, numbers of nodes, squares and exponentials.

Zeros in their padding do not change a maximum, and none of their entries is -1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["has_naturals"]

_ALWAYS = frozenset(
    (
        *("abs", "argmax", "argmin", "cosh", "erfc", "exp", "exp2", "iota", "logistic"),
        *("population_count", "rsqrt", "sqrt", "square"),
    )
)
_OF_FIRST = frozenset(("clamp", "pow", "gather", "dynamic_slice"))
_OF_ALL = frozenset(
    (
        *("add", "add_any", "broadcast_in_dim", "cbrt", "ceil", "concatenate", "copy", "copy_p"),
        *("convert_element_type", "cummax", "cummin", "cumsum", "div", "erf", "expand_dims"),
        *("expm1", "floor", "log1p", "min", "pad", "pcast", "pvary"),
        *("reduce_max", "reduce_min", "reduce_precision", "reduce_sum", "rem", "reshape", "rev"),
        *("round", "sign", "slice", "sort", "split", "squeeze", "stack", "stop_gradient", "tanh"),
        *("tile", "transpose", "unstack"),
    )
)
_OF_ALL_FLOATS = frozenset(("cumprod", "dot_general", "integer_pow", "mul", "reduce_prod"))
"""Integers may become negative here, when they overflow."""


def has_naturals(equation: Any, naturals: Sequence[bool], output: int) -> bool:
    """Tells whether an output of an equation is known to have no negative entry.

    Args:
      equation: of a jaxpr.
      naturals: for each operand, whether no entry is negative.
      output: index of the output.

    Returns:
      Whether it is.
    """
    name, dtype = equation.primitive.name, equation.outvars[output].aval.dtype
    if not isinstance(dtype, np.dtype):
        return False
    if dtype.kind in "bu":
        return True
    is_integer = dtype.kind == "i"
    if name in _ALWAYS or (name == "integer_pow" and equation.params["y"] % 2 == 0):
        return not (is_integer and name in ("square", "integer_pow"))
    if name == "max":
        return any(naturals)
    if name == "select_n":
        return all(naturals[1:])
    if name in _OF_FIRST:
        # For indices out of range JAX fills in the smallest integer.
        return naturals[0] and not (name == "gather" and is_integer)
    return (name in _OF_ALL or (name in _OF_ALL_FLOATS and not is_integer)) and all(naturals)
