"""Scatters that add each row at an index of its own, such as the class of its node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from jax.lax import GatherScatterMode

from jaxgraph.parallel.checks.row_padding import is_neutral
from jaxgraph.parallel.checks.states import (
    Number,
    RefusedError,
    Rows,
    RowState,
    Same,
    Share,
    Step,
    is_natural,
    number_in,
)

SCATTERED: Mapping[str, str] = MappingProxyType(
    {
        f"scatter{mark}{name}": kind
        for mark in "-_"
        for name, kind in {"add": "sum", "mul": "prod", "max": "max", "min": "min"}.items()
    }
)
"""Primitives whose result does not depend on the order of the rows, and their reductions."""


def is_by_value(states: Sequence[RowState]) -> bool:
    """Tells whether a scatter writes each row at an index of its own, such as its label."""
    operand, indices = states[:2]
    if not isinstance(operand, Same | Share) or not isinstance(indices, Rows):
        return False
    return not indices.along.positions


def scattered(step: Step, states: Sequence[RowState], *, has_padding: bool) -> Share:
    """Returns the state of a scatter that reduces the rows with the same index."""
    operand, indices, updates = states[:3]
    kind, shape, dtype = SCATTERED[step.name], step.inputs[2], step.dtypes[0]
    assert isinstance(indices, Rows)
    window = step.params["dimension_numbers"].update_window_dims
    places = [d for d in range(len(shape)) if d not in window]
    axis = places[indices.along.axis] if indices.along.axis < len(places) else -1
    if isinstance(updates, Share) or (isinstance(operand, Share) and operand.kind != kind):
        raise RefusedError("share")
    if isinstance(updates, Rows) and updates.along.plain() != indices.along.plain().at(axis):
        raise RefusedError("mixes")
    if isinstance(updates, Same) and not updates.is_alike(axis):
        raise RefusedError("position")
    is_started = isinstance(operand, Same) and not is_neutral(kind, operand.value, dtype)
    if is_started and kind in ("sum", "prod"):
        raise RefusedError("added")
    natural = is_natural(updates) and is_natural(operand)
    changes_nothing = _is_left_out(step, number_in(indices)) or is_neutral(
        kind, number_in(updates), dtype, natural=natural
    )
    if has_padding and not changes_nothing:
        raise RefusedError("padding")
    return Share(kind)


def _is_left_out(step: Step, place: Number | None) -> bool:
    """Tells whether an index is outside of the operand, so that nothing is written."""
    if place is None or step.params["mode"] != GatherScatterMode.FILL_OR_DROP:
        return False
    dimensions = step.params["dimension_numbers"].scatter_dims_to_operand_dims
    return place < 0 or all(place >= step.inputs[0][dimension] for dimension in dimensions)
