"""Rules for a share of a reduction over all nodes: operations allowed before it is completed.

A share of a sum may be multiplied by a value that is the same on every device, and added to another
share. Shares of a maximum may be compared. Other operations do not commute with the reduction over
the devices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from jaxgraph.parallel.checks.axis_rules import MOVES
from jaxgraph.parallel.checks.states import Number, RefusedError, Rows, RowState, Same, Share, Step

_SCALES = frozenset(("mul", "dot_general", "conv_general_dilated", "neg", "real", "imag", "conj"))
_ADDENDS: Mapping[str, slice] = MappingProxyType(
    {
        **dict.fromkeys(("add", "add_any", "sub", "pad", "cumsum"), slice(None)),
        **dict.fromkeys(("concatenate", "stack"), slice(None)),
        **{"select_n": slice(1, None), "dynamic_update_slice": slice(2)},
        **dict.fromkeys(("scatter", "scatter-add", "scatter_add"), slice(0, None, 2)),
    }
)
"""Primitives whose outputs add some operands, or choose among them."""
_REPEATS = {"max": ("max", "reduce_max"), "min": ("min", "reduce_min")}
_REPEATS |= {"or": ("or", "reduce_or"), "and": ("and", "reduce_and")}
_COMPLETES = {
    "psum": ("sum",),
    "psum_invariant": ("sum",),
    "pmax": ("max", "or"),
    "pmin": ("min", "and"),
}


def reduced(step: Step, axes: Sequence[int]) -> Share:
    """Returns the state of a reduction over dimensions that include the rows."""
    shape = step.inputs[0]
    entries = math.prod(shape[axis % len(shape)] for axis in axes)
    return Share(step.name.removeprefix("reduce_"), entries)


def entries_of_product(step: Step, states: Sequence[RowState]) -> int:
    """Counts the addends of each entry of a product of rows, divided by their scale."""
    summed, _ = step.params["dimension_numbers"][0]
    entries = math.prod(step.inputs[0][dimension] for dimension in summed)
    return divided(entries, divisor(step, states), step.entries)


def divided(entries: int, by: Number | None, rows: int) -> int:
    """Checks that a sum over rows is not divided by their number, padding included."""
    if by is None or by < 2 or by != by // 1 or entries % by:
        return entries
    # With as many features as rows it may be a mean over features.
    if by % rows == 0 and (entries // rows) % by:
        raise RefusedError("mean")
    return int(entries // by)


def divisor(step: Step, states: Sequence[RowState]) -> Number | None:
    """Returns the number by which an equation divides its first operand; None: not known."""
    given = [state.value if isinstance(state, Same) else None for state in states]
    if step.name == "div":
        return given[1]
    factor = next((number for number in given if number is not None), None)
    if step.name not in ("mul", "dot_general") or not factor:
        return None
    inverse = 1 / factor
    return round(inverse) if abs(inverse - round(inverse)) < 1e-6 * abs(inverse) else None


def completed(step: Step, states: Sequence[RowState]) -> None:
    """Checks that a reduction over the devices completes shares of the same reduction."""
    for state in states:
        if isinstance(state, Rows):
            raise RefusedError("rows")
        if isinstance(state, Same):
            raise RefusedError("counted")
        if isinstance(state, Share) and state.kind not in _COMPLETES[step.name]:
            raise RefusedError("share")


def check_linear(step: Step, states: Sequence[RowState]) -> None:
    """Checks that a share of a sum is not rounded to integers, or compared with zero."""
    if not (isinstance(states[0], Share) and states[0].kind == "sum"):
        return
    given, made = step.dtypes[:2]
    rounds = np.issubdtype(given, np.inexact) or made == np.bool_ or step.name == "div"
    if rounds and not np.issubdtype(made, np.inexact):
        raise RefusedError("share")


def shared_out(step: Step, states: Sequence[RowState]) -> list[RowState]:
    """Applies an equation to shares."""
    shares = _shares(states)
    if any(isinstance(state, Rows) for state in states) or len({s.kind for s in shares}) > 1:
        raise RefusedError("share")
    share, name = shares[0], step.name
    moves = name in MOVES or name in ("convert_element_type", "optimization_barrier")
    is_joined = name in ("concatenate", "stack") and len(shares) == len(states)
    if (moves and isinstance(states[0], Share)) or is_joined:
        return [share] * len(step.outputs)
    if share.kind == "sum":
        return [_of_sum(step, states, share)] * len(step.outputs)
    if name in _REPEATS.get(share.kind, ()):
        return [Share(share.kind)]
    if name == "neg" and share.kind in ("max", "min"):
        return [Share("min" if share.kind == "max" else "max")]
    raise RefusedError("share")


def _of_sum(step: Step, states: Sequence[RowState], share: Share) -> Share:
    name = step.name
    if len(_shares(states)) == 1 and (
        name in _SCALES or (name == "div" and isinstance(states[0], Share))
    ):
        by = divisor(step, states) if name in ("mul", "div") else None
        return Share("sum", divided(share.entries, by, step.entries))
    if name == "reduce_sum":
        times = math.prod(step.inputs[0]) // max(math.prod(step.outputs[0]), 1)
        return Share("sum", share.entries * times)
    if name not in _ADDENDS:
        raise RefusedError("share")
    addends = states[_ADDENDS[name]]
    if len(_shares(addends)) < len(_shares(states)):
        raise RefusedError("share")
    if all(isinstance(s, Share) or (isinstance(s, Same) and s.value == 0) for s in addends):
        return Share("sum")
    raise RefusedError("added")


def _shares(states: Sequence[RowState]) -> list[Share]:
    return [state for state in states if isinstance(state, Share)]
