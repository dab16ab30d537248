"""Where the primitives of JAX leave the entries of an axis that must not mix.

One table states for each primitive the dimension of its outputs that holds what a dimension of an
operand held, entry by entry. A primitive without a line in it acts element by element, or leaves a
leading dimension alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from jaxgraph.parallel.checks.states import Along, RefusedError, Same, Shape, Step

State: TypeAlias = Along | Same
"""Of an operand with the axis, or without."""

Places: TypeAlias = list[list[int | None]]
"""For each operand and each of its dimensions, that of the outputs; None: its entries meet."""

Rule: TypeAlias = Callable[[Step, Sequence[State]], Places]


def followed(step: Step, states: Sequence[State]) -> Along:
    """The state of the outputs of an equation of which some operands have the axis."""
    along = [state for state in states if isinstance(state, Along)]
    if step.name == "reshape":
        return _reshaped(step, along[0])
    places = places_of(step, states)
    operands = list(zip(states, step.inputs, places, strict=True))
    moved = [
        (dimensions[state.axis], state.outer)
        for state, _, dimensions in operands
        if isinstance(state, Along)
    ]
    place, outer = moved[0]
    if place is None or any(other != moved[0] for other in moved):
        raise RefusedError("mixes")
    for state, shape, dimensions in operands:
        if isinstance(state, Same) and not _is_alike(state, shape, dimensions, place):
            raise RefusedError("position")
    size, inner = step.outputs[0][place], along[0].inner
    if step.name == "tile":
        outer = size // (step.entries * inner)
    positions = _positions(step, states, along)
    return Along(place, outer, size // (step.entries * outer), positions)


def alike_axes(step: Step, states: Sequence[Same], axes: Iterable[int]) -> frozenset[int]:
    """Those dimensions of the outputs along which all entries are equal."""
    operands = list(zip(states, step.inputs, places_of(step, states), strict=True))
    held = {place for _, _, dimensions in operands for place in dimensions}
    is_filled = step.name == "broadcast_in_dim"
    return frozenset(
        axis
        for axis in axes
        if (is_filled or axis in held) and all(_is_alike(*each, axis) for each in operands)
    )


def places_of(step: Step, states: Sequence[State]) -> Places:
    """The dimensions of the outputs that hold what those of the operands held."""
    return RULES.get(step.name, _by_default)(step, states)


def _is_alike(state: Same, shape: Shape, dimensions: list[int | None], place: int) -> bool:
    held = [axis for axis, to in enumerate(dimensions) if to == place]
    return all(shape[axis] == 1 or state.is_alike(axis) for axis in held)


def _positions(step: Step, states: Sequence[State], along: list[Along]) -> tuple[bool, ...]:
    """Positions in the outputs; refuses other values that depend on them."""
    name, first = step.name, along[0]
    if not any(state.positions for state in along):
        return ()
    if name in ("convert_element_type", "copy", "pcast", "pvary"):
        return first.positions
    if name in MOVES - {"gather", "tile"} and len(first.positions) == 1:
        return first.positions
    if name == "concatenate" and step.params["dimension"] == len(step.outputs[0]) - 1:
        columns = [state.positions if isinstance(state, Along) else () for state in states]
        if all(shape[-1] == 1 for shape in step.inputs) and all(len(c) < 2 for c in columns):
            return tuple(map(bool, columns))
    if name == "gather" or name in SCATTERS:
        own, others = _own(step, states), [s for s in along if s is not states[1]]
        is_own = own is not None and (isinstance(states[0], Same) or first == Along(own))
        if is_own and not any(state.positions for state in others):
            return ()
    raise RefusedError("position")


def _unmet(meeting: Callable[[Any, int], Iterable[int]]) -> Rule:
    """Dimensions stay, but for some whose entries meet."""

    def rule(step: Step, states: Sequence[State]) -> Places:
        return [_stay(shape, meeting(step.params, len(shape))) for shape in step.inputs]

    return rule


def _stay(shape: Shape, meeting: Iterable[int]) -> list[int | None]:
    met = {axis % len(shape) for axis in meeting if shape}
    return [None if axis in met else axis for axis in range(len(shape))]


def _without(removed: Callable[[Any], Iterable[int]]) -> Rule:
    """Dimensions stay when others are removed."""

    def rule(step: Step, states: Sequence[State]) -> Places:
        rank = len(step.inputs[0])
        gone = {axis % rank for axis in removed(step.params)}
        places = [None if a in gone else a - sum(g < a for g in gone) for a in range(rank)]
        return [places[: len(shape)] for shape in step.inputs]

    return rule


def _by_default(step: Step, states: Sequence[State]) -> Places:
    """Dimensions stay where it acts element by element; a leading one stays elsewhere, too."""
    has_rows = any(isinstance(state, Along) for state in states)

    def place(state: State, shape: Shape, axis: int) -> int | None:
        # What another operand has there may meet each entry.
        if has_rows and isinstance(state, Same) and shape[axis] > 1:
            return axis
        stays = all(made[axis : axis + 1] == (shape[axis],) for made in step.outputs)
        return axis if stays and (axis == 0 or is_by_element(len(shape))) else None

    def is_by_element(rank: int) -> bool:
        # Dimensions of size 1 are broadcast to those of the other operands.
        sizes = zip(*(shape for shape in step.inputs if len(shape) == rank), strict=True)
        widest = tuple(next((size for size in each if size != 1), 1) for each in sizes)
        return all(made == widest for made in step.outputs)

    operands = zip(states, step.inputs, strict=True)
    return [[place(state, shape, a) for a in range(len(shape))] for state, shape in operands]


def _whole(step: Step, states: Sequence[State]) -> Places:
    """Dimensions stay of which the outputs hold all entries."""

    def stays(axis: int, size: int) -> bool:
        return all(made[axis : axis + 1] == (size,) for made in step.outputs)

    return [[a if stays(a, n) else None for a, n in enumerate(shape)] for shape in step.inputs]


def _updated(step: Step, states: Sequence[State]) -> Places:
    sizes = zip(*step.inputs[:2], strict=True)
    whole = [axis if old == new else None for axis, (old, new) in enumerate(sizes)]
    return [whole, whole, *([] for _ in step.inputs[2:])]


def _reshape(step: Step, states: Sequence[State]) -> Places:
    if step.params.get("dimensions") is not None:
        return _nowhere(step, states)
    old, new = step.inputs[0], step.outputs[0]
    strides = {(size, math.prod(new[axis + 1 :])): axis for axis, size in enumerate(new)}
    return [[strides.get((size, math.prod(old[axis + 1 :]))) for axis, size in enumerate(old)]]


def _reshaped(step: Step, state: Along) -> Along:
    """Finds the axis by the distance between its entries."""
    old, new, order = step.inputs[0], step.outputs[0], step.params.get("dimensions")
    if order is not None:
        old, state = tuple(old[d] for d in order), state.at(tuple(order).index(state.axis))
    stride, after = state.inner * math.prod(old[state.axis + 1 :]), 1
    for axis in range(len(new) - 1, -1, -1):
        size, inner = new[axis], stride // after
        if stride % after == 0 and size and size % (step.entries * inner) == 0:
            found = Along(axis, size // (step.entries * inner), inner, state.positions)
            if state.positions and found != Along(axis, positions=(True,)):
                raise RefusedError("position")
            return found
        after *= size
    raise RefusedError("mixes")


def _stack(step: Step, states: Sequence[State]) -> Places:
    new = step.params["axis"] % len(step.outputs[0])
    return [[axis + (axis >= new) for axis in range(len(shape))] for shape in step.inputs]


def _tile(step: Step, states: Sequence[State]) -> Places:
    rank = len(step.inputs[0])
    return [[*range(len(step.outputs[0]) - rank, len(step.outputs[0]))]]


def _dot(step: Step, states: Sequence[State]) -> Places:
    summed, batched = step.params["dimension_numbers"]
    places, made = [], len(batched[0])
    for shape, gone, batch in zip(step.inputs, summed, batched, strict=True):
        free = _others(shape, (*gone, *batch))
        to = {axis: number for number, axis in enumerate(batch)}
        to |= {axis: number for number, axis in enumerate(free, made)}
        places.append([to.get(axis) for axis in range(len(shape))])
        made += len(free)
    return places


def _convolution(step: Step, states: Sequence[State]) -> Places:
    """A batch stays, or output features, or groups of features with a kernel for each entry."""
    numbers, groups = step.params["dimension_numbers"], step.params["feature_group_count"]
    places: Places = [[None] * len(shape) for shape in step.inputs]
    # vmap makes groups of features where every entry has a kernel of its own.
    if all(isinstance(state, Along) and state.outer == 1 for state in states):
        if groups % step.entries == 0:
            places[0][numbers.lhs_spec[1]] = places[1][numbers.rhs_spec[0]] = numbers.out_spec[1]
    elif step.params["batch_group_count"] == 1:
        places[0][numbers.lhs_spec[0]] = numbers.out_spec[0]
        places[1][numbers.rhs_spec[0]] = numbers.out_spec[1] if groups == 1 else None
    return places


def _triangular_solve(step: Step, states: Sequence[State]) -> Places:
    """The columns stay, too, or the rows where the matrix is on the right."""
    matrix, columns = _unmet(_last(2))(step, states)
    column = len(columns) - (1 if step.params["left_side"] else 2)
    columns[column] = column
    return [matrix, columns]


def _own(step: Step, states: Sequence[State]) -> int | None:
    """Finds the dimension of an operand in which each index is the position of its entry."""
    numbers, indices = step.params["dimension_numbers"], states[1]
    is_gather = step.name == "gather"
    columns = numbers.start_index_map if is_gather else numbers.scatter_dims_to_operand_dims
    flags = indices.positions if isinstance(indices, Along) else ()
    if sum(flags) != 1 or len(flags) != len(columns):
        return None
    own = columns[flags.index(True)]
    return own if step.inputs[0][own] == step.entries else None


def _entries(step: Step, states: Sequence[State]) -> tuple[dict[int, int], list[int]]:
    """The operand's dimension of each dimension of the entries; the dimensions of the indices."""
    numbers, shape = step.params["dimension_numbers"], step.inputs[0]
    if step.name == "gather":
        some, gone = step.outputs[0], numbers.collapsed_slice_dims
        windows, batching = numbers.offset_dims, numbers.start_indices_batching_dims
    else:
        some, gone = step.inputs[2], numbers.inserted_window_dims
        windows, batching = numbers.update_window_dims, numbers.scatter_indices_batching_dims
    kept, batch = _others(shape, (*gone, *numbers.operand_batching_dims)), _others(some, windows)
    pairs = {to: axis for to, axis in zip(windows, kept, strict=True) if some[to] == shape[axis]}
    pairs |= zip((batch[at] for at in batching), numbers.operand_batching_dims, strict=True)
    own, indices = _own(step, states), states[1]
    if own is not None and isinstance(indices, Along):
        pairs[batch[indices.axis]] = own
    return pairs, batch


def _gather(step: Step, states: Sequence[State]) -> Places:
    pairs, batch = _entries(step, states)
    taken = {axis: to for to, axis in pairs.items()}
    return [[taken.get(axis) for axis in range(len(step.inputs[0]))], [*batch, None]]


def _scatter(step: Step, states: Sequence[State]) -> Places:
    """Entries stay that are each written by an update of their own."""
    pairs, batch = _entries(step, states)
    operand = [a if a in pairs.values() else None for a in range(len(step.inputs[0]))]
    updates = [pairs.get(axis) for axis in range(len(step.inputs[2]))]
    return [operand, [*map(pairs.get, batch), None], updates]


def _others(shape: Shape, gone: Collection[int]) -> list[int]:
    return [axis for axis in range(len(shape)) if axis not in gone]


def _last(count: int) -> Callable[[Any, int], Iterable[int]]:
    """The last dimensions, those of matrices."""
    return lambda params, rank: range(-min(count, rank), 0)


def _reduced(params: Any) -> Iterable[int]:
    return params["axes"] if "axes" in params else params["dimensions"]


def _along_dimension(params: Any, rank: int) -> Iterable[int]:
    names = ("axis", "dimension", "reduction_dimension")
    return [next((params[name] for name in names if name in params), -1)]


def _in_windows(params: Any, rank: int) -> Iterable[int]:
    sizes = [params["window_dimensions"], params["window_strides"]]
    sizes += [params[n] for n in ("base_dilation", "window_dilation") if params.get(n)]
    pads = params["padding"]
    return [a for a in range(rank) if tuple(pads[a]) != (0, 0) or any(s[a] != 1 for s in sizes)]


def _nowhere(step: Step, states: Sequence[State]) -> Places:
    return [[None] * len(shape) for shape in step.inputs]


_ALONG = "sort cumsum cumprod cummax cummin cumlogsumexp top_k approx_top_k"
_REDUCTIONS = "sum max min prod and or xor"
_WINDOWS = (
    "reduce_window reduce_window_sum reduce_window_max reduce_window_min select_and_scatter "
    "select_and_gather_add select_and_scatter_add"
)
_MATRICES = (
    "cholesky cholesky_update lu qr geqrf geqp3 householder_product ormqr eigh eig svd schur "
    "hessenberg tridiagonal symmetric_product"
)
_MIXING = (
    "rng_bit_generator rng_uniform iota_2x32_shape ragged_dot_general psum psum_invariant pmax "
    "pmin ppermute pbroadcast all_gather all_gather_invariant all_to_all ragged_all_to_all "
    "reduce_scatter axis_index"
)
_SCATTERED = ("add", "sub", "mul", "min", "max")
SCATTERS = ("scatter", *(f"scatter{mark}{name}" for mark in "-_" for name in _SCATTERED))
MOVES = frozenset(
    (
        *("broadcast_in_dim", "copy", "copy_p", "dynamic_slice", "expand_dims", "gather", "pcast"),
        *("pvary", "reduce_precision", "reshape", "rev", "slice", "split", "squeeze"),
        *("stop_gradient", "tile", "transpose", "unstack"),
    )
)
"""Primitives that move the numbers of their first operand, or copy them."""

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "reshape": _reshape,
        "transpose": lambda step, _: [[*np.argsort(step.params["permutation"]).tolist()]],
        "broadcast_in_dim": lambda step, _: [[*step.params["broadcast_dimensions"]]],
        "squeeze": _without(lambda params: params["dimensions"]),
        "unstack": _without(lambda params: [params["axis"]]),
        "stack": _stack,
        "tile": _tile,
        "concatenate": _unmet(lambda params, _: [params["dimension"]]),
        "pad": _unmet(
            lambda params, rank: [
                a for a, c in enumerate(params["padding_config"]) if rank and tuple(c) != (0, 0, 0)
            ]
        ),
        "rev": _unmet(lambda params, _: params["dimensions"]),
        "fft": _unmet(lambda params, rank: range(rank - len(params["fft_lengths"]), rank)),
        **dict.fromkeys(("slice", "split", "dynamic_slice", "bitcast_convert_type"), _whole),
        "dynamic_update_slice": _updated,
        "gather": _gather,
        "dot_general": _dot,
        "conv_general_dilated": _convolution,
        "triangular_solve": _triangular_solve,
        **dict.fromkeys(("tridiagonal_solve", "lu_pivots_to_permutation"), _unmet(_last(1))),
        **dict.fromkeys(("reduce", "argmax", "argmin"), _without(_reduced)),
        **{f"reduce_{name}": _without(_reduced) for name in _REDUCTIONS.split()},
        **dict.fromkeys(_ALONG.split(), _unmet(_along_dimension)),
        **dict.fromkeys(_WINDOWS.split(), _unmet(_in_windows)),
        **dict.fromkeys(_MATRICES.split(), _unmet(_last(2))),
        **dict.fromkeys(_MIXING.split(), _nowhere),
        **dict.fromkeys(SCATTERS, _scatter),
    }
)
