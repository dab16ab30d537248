"""Rules for look-ups and writes by index, on an axis whose entries must not mix.

Each rule takes a `Step` and the states of its inputs, and returns the states of its outputs. An
entry may be looked up by its own position: `x[jnp.arange(n), kind]` acts entry by entry.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxgraph.parallel.checks.axis_states import SHARED, Along, State, joined
from jaxgraph.parallel.checks.axis_steps import Step, only_operand

__all__ = ["dynamic_slice", "dynamic_update", "gather", "scatter"]


def dynamic_slice(step: Step, states: Sequence[State]) -> list[State]:
    """Keeps the axis where the slice holds all of it and starts at shared indices."""
    state = only_operand(states)
    if any(start != SHARED for start in states[1:]):
        return step.mixed()
    if state is None:
        return [step.created(0, "count")]
    full = step.outputs[0][state.axis] == step.inputs[0][state.axis]
    return [state] if full else step.mixed()


def dynamic_update(step: Step, states: Sequence[State]) -> list[State]:
    """Keeps the axis where the update holds all of it and starts at shared indices."""
    if any(start != SHARED for start in states[2:]):
        return step.mixed()
    return _updated(step, states[0], states[1], step.inputs[0], step.inputs[1])


def _updated(step: Step, state: State, update: State, old: Any, new: Any) -> list[State]:
    if not isinstance(state, Along):
        return [SHARED] if update == SHARED else step.mixed()
    if new[state.axis] != old[state.axis]:
        return step.mixed()
    return [joined([state, update], step.name, step.line)]


def _position_of(state: Along, columns: Sequence[int]) -> int | None:
    """Finds the dimension of an operand that is indexed by the position along the axis."""
    flags = (True,) if state.content == "position" else state.content
    if not isinstance(flags, tuple) or sum(flags) != 1 or len(flags) != len(columns):
        return None
    return columns[flags.index(True)]


def gather(step: Step, states: Sequence[State]) -> list[State]:
    """Keeps the axis of the indices, of the operand, or of both where they are aligned."""
    operand, indices = states[:2]
    numbers, sizes = step.params["dimension_numbers"], step.params["slice_sizes"]
    rank = len(step.outputs[0])
    batch = [d for d in range(rank) if d not in numbers.offset_dims]
    if not isinstance(operand, Along):
        if not isinstance(indices, Along):
            return [step.created(0, "count")]
        if indices.depends_on_position:
            return step.mixed("position")
        return [indices.plain().at(batch[indices.axis])]
    if not isinstance(indices, Along):
        gone = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
        kept = [d for d in range(len(step.inputs[0])) if d not in gone]
        if operand.axis in gone or sizes[operand.axis] != step.inputs[0][operand.axis]:
            return step.mixed()
        return [operand.plain().at(numbers.offset_dims[kept.index(operand.axis)])]
    if indices.depends_on_position:
        aligned = operand.outer == operand.inner == 1
        if not aligned or _position_of(indices, numbers.start_index_map) != operand.axis:
            return step.mixed("position")
        return [Along(batch[indices.axis])]
    pairs = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    if (operand.axis, indices.axis) not in list(pairs):
        return step.mixed()
    place = batch[indices.axis]
    both: list[State] = [operand.plain().at(place), indices.plain().at(place)]
    return [joined(both, step.name, step.line)]


def scatter(step: Step, states: Sequence[State]) -> list[State]:
    """Keeps the axis of the operand where each entry is written by its own update."""
    operand, indices, updates = states[:3]
    numbers = step.params["dimension_numbers"]
    if not isinstance(operand, Along):
        shared = indices == SHARED and updates == SHARED
        return [SHARED] if shared and not step.grown[0] else step.mixed()
    if operand.depends_on_position:
        return step.mixed("position")
    whole = operand.plain()
    batch = [d for d in range(len(step.inputs[2])) if d not in numbers.update_window_dims]
    if not isinstance(indices, Along):
        gone = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
        kept = [d for d in range(len(step.inputs[0])) if d not in gone]
        if operand.axis in gone:
            return step.mixed()
        place = numbers.update_window_dims[kept.index(operand.axis)]
        if step.inputs[2][place] != step.inputs[0][operand.axis]:
            return step.mixed()
        found = _scattered(step, whole, updates, place)
        are_uniform = operand.uniform and getattr(updates, "uniform", False)
        if are_uniform and indices == SHARED and isinstance(found[0], Along):
            return [dataclasses.replace(found[0], uniform=True)]
        return found
    place = batch[indices.axis]
    if indices.depends_on_position:
        if _position_of(indices, numbers.scatter_dims_to_operand_dims) != operand.axis:
            return step.mixed("position")
        return _scattered(step, whole, updates, place)
    pairs = zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    if (operand.axis, indices.axis) not in list(pairs):
        return step.mixed()
    return _scattered(step, whole, updates, place)


def _scattered(step: Step, operand: Along, updates: State, place: int) -> list[State]:
    if not isinstance(updates, Along) or updates.axis != place or updates.depends_on_position:
        return step.mixed()
    state = joined([updates.plain(), operand.at(place)], step.name, step.line)
    if not isinstance(state, Along):
        return step.mixed()
    return [dataclasses.replace(state, axis=operand.axis, uniform=False)]
