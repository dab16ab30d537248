"""Rules for the primitives of JAX, on an axis whose entries must not mix.

Every rule takes a `Step` and the states of its inputs, none of them `Mixed`, and returns the states
of its outputs. A primitive without a rule acts element by element, or on trailing dimensions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from jaxgraph.parallel.checks.axis_states import (
    SHARED,
    Along,
    Rule,
    State,
    Step,
    by_default,
    joined,
    only_operand,
)


def dynamic_slice(step: Step, states: Sequence[State]) -> list[State]:
    """Keeps the axis where the slice holds all of it and starts at shared indices."""
    state = only_operand(states)
    if any(start != SHARED for start in states[1:]):
        return step.mixed()
    if state is None:
        return [SHARED]
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
    return [joined([state, update])]


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
            return [SHARED]
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
    return [joined(both)]


def scatter(step: Step, states: Sequence[State]) -> list[State]:
    """Keeps the axis of the operand where each entry is written by its own update."""
    operand, indices, updates = states[:3]
    numbers = step.params["dimension_numbers"]
    if not isinstance(operand, Along):
        shared = indices == SHARED and updates == SHARED
        return [SHARED] if shared else step.mixed()
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
    state = joined([updates.plain(), operand.at(place)])
    if not isinstance(state, Along):
        return step.mixed()
    return [dataclasses.replace(state, axis=operand.axis, uniform=False)]


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
        return [joined([left.plain().at(place), right.plain().at(place)])]
    if isinstance(left, Along):
        if left.axis not in free[0]:
            return step.mixed()
        return [left.plain().at(len(left_batch) + free[0].index(left.axis))]
    right = _along([right])
    if right.axis not in free[1]:
        return step.mixed()
    return [right.plain().at(len(left_batch) + len(free[0]) + free[1].index(right.axis))]


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
    return step.mixed()


def _along(states: Sequence[State]) -> Along:
    """The state of the only operand, which has the axis."""
    (state,) = states
    assert isinstance(state, Along)
    return state


def _never(step: Step, states: Sequence[State]) -> list[State]:
    return step.mixed()


def _reshape(step: Step, states: Sequence[State]) -> list[State]:
    state = _along(states)
    old, new = step.inputs[0], step.outputs[0]
    if 0 in new:
        return [SHARED]
    order = step.params.get("dimensions")
    if order is not None:
        old, state = tuple(old[d] for d in order), state.at(tuple(order).index(state.axis))
    after = math.prod(old[state.axis + 1 :])
    merged = state.outer * state.inner
    inners = [state.inner]
    if state.uniform:
        inners = [i for i in range(1, merged + 1) if merged % i == 0]
    for inner in inners:
        found = _place(new, step.entries, inner * after)
        if found is None:
            continue
        rows = math.prod(new[found.axis + 1 :])
        inside = rows % after == 0 and (after * old[state.axis]) % (rows * new[found.axis]) == 0
        content = state.content if found.outer == found.inner == 1 else None
        if state.depends_on_position and not isinstance(content, str):
            return step.mixed("position")
        return [dataclasses.replace(found, uniform=state.uniform and inside, content=content)]
    return step.mixed()


def _place(shape: tuple[int, ...], entries: int, stride: int) -> Along | None:
    """Finds the axis among the dimensions of a shape, by the distance between its entries."""
    after = 1
    for axis in range(len(shape) - 1, -1, -1):
        size = shape[axis]
        if stride % after == 0 and size % (entries * (stride // after)) == 0 and size:
            inner = stride // after
            return Along(axis, size // (entries * inner), inner)
        after *= size
    return None


def _transpose(step: Step, states: Sequence[State]) -> list[State]:
    state = _along(states)
    if isinstance(state.content, tuple):
        return step.mixed("position")
    return [state.at(tuple(step.params["permutation"]).index(state.axis))]


def _without(axis: int, removed: Sequence[int], rank: int) -> int:
    gone = {dimension % rank for dimension in removed}
    return axis - sum(dimension < axis for dimension in gone)


def _squeeze(step: Step, states: Sequence[State]) -> list[State]:
    state = _along(states)
    if isinstance(state.content, tuple):
        return step.mixed("position")
    removed, rank = step.params["dimensions"], len(step.inputs[0])
    return [state.at(_without(state.axis, removed, rank))]


def _stack(step: Step, states: Sequence[State]) -> list[State]:
    state = joined([s for s in states if s != SHARED])
    if not isinstance(state, Along):
        return [state]
    if state.depends_on_position:
        return step.mixed("position")
    before = step.params["axis"] % len(step.outputs[0]) <= state.axis
    return [state.plain().at(state.axis + before)]


def _unstack(step: Step, states: Sequence[State]) -> list[State]:
    state, axis = _along(states), step.params["axis"] % len(step.inputs[0])
    if state.axis == axis or isinstance(state.content, tuple):
        return step.mixed()
    return [state.at(state.axis - (axis < state.axis))] * len(step.outputs)


def _tile(step: Step, states: Sequence[State]) -> list[State]:
    state = _along(states)
    if state.depends_on_position:
        return step.mixed("position")
    axis = state.axis + len(step.outputs[0]) - len(step.inputs[0])
    times = step.outputs[0][axis] // step.inputs[0][state.axis]
    return [dataclasses.replace(state.plain(), axis=axis, outer=state.outer * times)]


def _reduce(step: Step, states: Sequence[State]) -> list[State]:
    axes = step.params["axes"] if "axes" in step.params else step.params["dimensions"]
    results: list[State] = []
    operands = list(zip(states, step.inputs, strict=True))[: len(step.outputs)]
    for state, shape in operands:
        if not isinstance(state, Along):
            results.append(SHARED)
        elif state.axis in {axis % len(shape) for axis in axes}:
            return step.mixed()
        elif state.depends_on_position:
            return step.mixed("position")
        else:
            results.append(state.plain().at(_without(state.axis, axes, len(shape))))
    return results


def _along_dimension(step: Step, states: Sequence[State]) -> list[State]:
    """Keeps the axis unless a sort, a cumulative sum or the like runs along it."""
    rank = len(step.inputs[0])
    if step.name == "fft":
        meeting = set(range(rank - len(step.params["fft_lengths"]), rank))
    elif step.name == "rev":
        meeting = {axis % rank for axis in step.params["dimensions"]}
    else:
        names = ("axis", "dimension", "reduction_dimension")
        axis = next((step.params[name] for name in names if name in step.params), rank - 1)
        meeting = {axis % rank}
    state = joined(list(states))
    if not isinstance(state, Along):
        return [state] * len(step.outputs)
    if state.axis in meeting:
        return step.mixed()
    return step.mixed("position") if state.depends_on_position else [state] * len(step.outputs)


def _trailing(dimensions: int) -> Rule:
    """Makes the rule of linear algebra on the last dimensions."""

    def rule(step: Step, states: Sequence[State]) -> list[State]:
        state = joined(list(states))
        if not isinstance(state, Along):
            return [state] * len(step.outputs)
        ranks = [len(s) for s, x in zip(step.inputs, states, strict=True) if x != SHARED]
        leads = state.axis < min(ranks) - dimensions
        return [state.plain()] * len(step.outputs) if leads else step.mixed()

    return rule


def _triangular_solve(step: Step, states: Sequence[State]) -> list[State]:
    """Keeps the axis of the columns, or of the rows where the matrix is on the right."""
    matrix, columns = states
    column = len(step.inputs[1]) - (1 if step.params["left_side"] else 2)
    if matrix == SHARED and isinstance(columns, Along) and columns.axis == column:
        return [columns.plain()]
    return _trailing(2)(step, states)


def _whole(step: Step, states: Sequence[State]) -> list[State]:
    """Keeps the axis where a slice or a split takes all of it, in order."""
    state = joined(list(states))
    if not isinstance(state, Along):
        return [state] * len(step.outputs)
    if isinstance(state.content, tuple):
        return step.mixed("position")
    same = [shape[state.axis] == step.inputs[0][state.axis] for shape in step.outputs]
    reverses = any(stride < 0 for stride in step.params.get("strides") or ())
    return [state] * len(step.outputs) if all(same) and not reverses else step.mixed()


def _pad(step: Step, states: Sequence[State]) -> list[State]:
    state = only_operand(states)
    if state is None:
        return [SHARED] if states[1] == SHARED else step.mixed()
    if tuple(step.params["padding_config"][state.axis]) != (0, 0, 0):
        return step.mixed()
    return step.mixed("position") if state.depends_on_position else [state.plain()]


def _concatenate(step: Step, states: Sequence[State]) -> list[State]:
    dimension = step.params["dimension"]
    along = [state for state in states if isinstance(state, Along)]
    if any(state.axis == dimension for state in along) or len(along) < len(states):
        return step.mixed()
    if not any(state.depends_on_position for state in along):
        return [joined([state.plain() for state in along])]
    are_columns = all(shape[dimension] == 1 for shape in step.inputs)
    is_last = dimension == len(step.outputs[0]) - 1
    if not (are_columns and is_last) or any(s.content == "wrapped" for s in along):
        return step.mixed("position")
    columns = tuple(state.content == "position" for state in along)
    return [Along(along[0].axis, content=columns)]


def counted_from_end(step: Step, states: Sequence[State]) -> list[State] | None:
    """Recognises position + number of entries, which JAX adds to read negative indices."""
    if step.name != "add" or step.literals[1] is None or step.literals[1] != step.entries:
        return None
    if isinstance(states[0], Along) and states[0].content == "position":
        return [dataclasses.replace(states[0], content="wrapped")]
    return None


def _less(step: Step, states: Sequence[State]) -> list[State]:
    """Knows that `position < 0`, which JAX asks of every index, is False."""
    first, second = states
    if isinstance(first, Along) and first.content == "position" and second == SHARED:
        if step.literals[1] is not None and step.literals[1] == 0:
            return [dataclasses.replace(first, uniform=True, content="false")]
        return step.mixed("position")
    return by_default(step, states)


def _select(step: Step, states: Sequence[State]) -> list[State]:
    which = states[0]
    if isinstance(which, Along) and which.content == "false":
        return [states[1]]
    if which == SHARED and len(set(states[1:])) == 1:
        return [states[1]]
    return by_default(step, states)


def _each(step: Step, states: Sequence[State]) -> list[State]:
    return list(states)


def _window(step: Step, states: Sequence[State]) -> list[State]:
    state = joined([s for s in states if s != SHARED])
    if not isinstance(state, Along):
        return [state] * len(step.outputs)
    params, axis = step.params, state.axis
    dilations = (params.get("base_dilation"), params.get("window_dilation"))
    trivial = (
        params["window_dimensions"][axis] == 1
        and params["window_strides"][axis] == 1
        and tuple(params["padding"][axis]) == (0, 0)
        and all(dilation is None or dilation[axis] == 1 for dilation in dilations)
    )
    return [state.plain()] * len(step.outputs) if trivial else step.mixed()


def _cast_bits(step: Step, states: Sequence[State]) -> list[State]:
    state = _along(states)
    same = step.outputs[0][state.axis : state.axis + 1] == (step.inputs[0][state.axis],)
    return [state.plain()] if same else step.mixed()


_REDUCTIONS = "sum max min prod and or xor"
_ALONG = "sort cumsum cumprod cummax cummin cumlogsumexp rev top_k approx_top_k fft"
_WINDOWS = "reduce_window reduce_window_sum reduce_window_max reduce_window_min select_and_scatter"
_MATRICES = (
    "cholesky cholesky_update lu qr geqrf geqp3 householder_product ormqr eigh eig svd schur "
    "hessenberg tridiagonal symmetric_product"
)
_SCATTERS = "add sub mul min max"
_COLLECTIVES = (
    "psum psum_invariant pmax pmin ppermute pbroadcast all_gather all_gather_invariant all_to_all "
    "ragged_all_to_all reduce_scatter axis_index"
)

RULES: dict[str, Rule] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "squeeze": _squeeze,
    "convert_element_type": _each,
    "copy": _each,
    "bitcast_convert_type": _cast_bits,
    "pvary": _each,
    "pcast": _each,
    "lt": _less,
    "select_n": _select,
    "concatenate": _concatenate,
    "stack": _stack,
    "unstack": _unstack,
    "tile": _tile,
    "pad": _pad,
    "slice": _whole,
    "split": _whole,
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update,
    "gather": gather,
    "dot_general": dot,
    "conv_general_dilated": convolution,
    "reduce": _reduce,
    "argmax": _reduce,
    "argmin": _reduce,
    "rng_bit_generator": _never,
    "rng_uniform": _never,
    "iota_2x32_shape": _never,
    "ragged_dot_general": _never,
    "triangular_solve": _triangular_solve,
    "tridiagonal_solve": _trailing(1),
    "lu_pivots_to_permutation": _trailing(1),
    "select_and_gather_add": _window,
    "select_and_scatter_add": _window,
}
RULES |= {f"reduce_{name}": _reduce for name in _REDUCTIONS.split()}
RULES |= dict.fromkeys(_ALONG.split(), _along_dimension)
RULES |= dict.fromkeys(_WINDOWS.split(), _window)
RULES |= dict.fromkeys(_MATRICES.split(), _trailing(2))
RULES |= dict.fromkeys(_COLLECTIVES.split(), _never)
RULES |= dict.fromkeys(
    ["scatter", *(f"scatter{mark}{name}" for mark in "-_" for name in _SCATTERS.split())], scatter
)


def by_rule(step: Step, states: Sequence[State]) -> list[State]:
    """The states of the outputs of an equation, by the rule of its primitive."""
    if all(state == SHARED for state in states):
        return [SHARED] * len(step.outputs)
    return RULES.get(step.name, by_default)(step, states)
