"""Rules for products and convolutions, on an axis whose entries must not mix.

Each rule takes a `Step` and the states of its inputs, and returns the states of its outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxgraph.parallel.checks.axis_states import SHARED, Along, State, joined
from jaxgraph.parallel.checks.axis_steps import Step

__all__ = ["convolution", "dot"]


def dot(step: Step, states: Sequence[State]) -> list[State]:
    """Keeps the axis where the product does not sum over it."""
    (left_sum, right_sum), (left_batch, right_batch) = step.params["dimension_numbers"]
    ranks = [len(shape) for shape in step.inputs]
    free = [
        [d for d in range(rank) if d not in summed and d not in batch]
        for rank, summed, batch in zip(
            ranks, (left_sum, right_sum), (left_batch, right_batch), strict=True
        )
    ]
    left, right = states
    if any(isinstance(state, Along) and state.depends_on_position for state in states):
        return step.mixed("position")
    if isinstance(left, Along) and isinstance(right, Along):
        pairs = list(zip(left_batch, right_batch, strict=True))
        if (left.axis, right.axis) not in pairs:
            return step.mixed()
        place = pairs.index((left.axis, right.axis))
        return [joined([left.plain().at(place), right.plain().at(place)], step.name, step.line)]
    if isinstance(left, Along):
        if left.axis not in free[0]:
            return step.mixed()
        return [left.plain().at(len(left_batch) + free[0].index(left.axis))]
    if isinstance(right, Along):
        if right.axis not in free[1]:
            return step.mixed()
        return [right.plain().at(len(left_batch) + len(free[0]) + free[1].index(right.axis))]
    return [SHARED]


def convolution(step: Step, states: Sequence[State]) -> list[State]:
    """Keeps the axis of a batch, of output features, or of groups with a kernel per entry."""
    numbers, (left, right) = step.params["dimension_numbers"], states
    groups, entries = step.params["feature_group_count"], step.entries
    one_batch = step.params["batch_group_count"] == 1
    if isinstance(left, Along) and right == SHARED:
        if left.axis == numbers.lhs_spec[0] and one_batch:
            return [left.plain().at(numbers.out_spec[0])]
    elif isinstance(right, Along) and left == SHARED:
        if right.axis == numbers.rhs_spec[0] and one_batch and groups == 1:
            return [right.plain().at(numbers.out_spec[1])]
    elif isinstance(left, Along) and isinstance(right, Along):
        # vmap makes groups of features where every entry has a kernel of its own.
        grouped = left.axis == numbers.lhs_spec[1] and right.axis == numbers.rhs_spec[0]
        if grouped and left.outer == right.outer == 1 and groups % entries == 0:
            return [right.plain().at(numbers.out_spec[1])]
    else:
        return [SHARED]
    return step.mixed()
