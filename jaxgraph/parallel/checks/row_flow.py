"""Follows the rows of a shard, and sums over them, through the jaxpr of a function of the shard.

The result must not depend on the partition: the function treats every row separately, leaves
padding out of every reduction, and completes reductions over the devices (`shard.sum`) before any
non-linear operation. Equations of jaxgraph itself are trusted where the rules do not apply. So are
those of derivatives: the transpose of a function that does not depend on the partition does not
depend on it either. The slots of edges are followed in a pass of their own, as rows are: only the
rows of one table are `Rows` in a pass, all others are not followed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend import core

from jaxgraph.ops.core.edges import varying_axes
from jaxgraph.parallel.checks.authors import (
    is_derivative,
    is_of_jax,
    is_users,
    is_within,
    user_line,
)
from jaxgraph.parallel.checks.axis_rules import RULES, by_rule, counted_from_end
from jaxgraph.parallel.checks.axis_states import SHARED, Along, Mixed, State, Step
from jaxgraph.parallel.checks.row_padding import filled, has_naturals, is_neutral
from jaxgraph.parallel.checks.row_scatters import SCATTERED, is_by_value, scattered
from jaxgraph.parallel.checks.row_shares import (
    check_linear,
    completed,
    divided,
    divisor,
    entries_of_product,
    reduced,
    shared_out,
)
from jaxgraph.parallel.checks.row_states import (
    UNKNOWN,
    Number,
    RefusedError,
    Rows,
    RowState,
    Same,
    Share,
    Unknown,
    is_natural,
    joined_rows,
    number_of,
    table_of,
)

_REDUCTIONS = frozenset(
    f"reduce_{name}" for name in ("sum", "max", "min", "prod", "and", "or", "xor")
)
_SUMS_OF_DEVICES = ("psum", "psum_invariant", "pmax", "pmin")
_OF_DEVICES = (
    "axis_index",
    "ppermute",
    "all_gather",
    "all_gather_invariant",
    "all_to_all",
    "reduce_scatter",
)
_MANY = 1000
"""A constant of a model may be a smaller number of rows by chance."""
_MOST_NUMBERS = 1 << 20
"""Constants of more numbers are not compared."""
_OPAQUE = ("pure_callback", "io_callback")
_LOOPS = ("while", "scan", "cond", "custom_vjp_call", "custom_vjp_call_jaxpr")


class RowsError(Exception):
    """Raised for an operation that makes a function of a shard depend on the partition.

    Args:
      why: a word of `jaxgraph.parallel.checks.row_check`.
      operation: the primitive.
      line: the user's line, or "".
    """

    def __init__(self, why: str, operation: str, line: str) -> None:
        super().__init__(why, operation, line)
        self.why, self.operation, self.line = why, operation, line


def follow_rows(
    program: core.ClosedJaxpr,
    inputs: Sequence[RowState],
    num_rows: int,
    *,
    has_padding: bool,
    of_edges: bool = False,
    of_messages: bool = False,
) -> list[RowState]:
    """Finds the states of the outputs of a function of a shard, or of a message function."""
    flow = _Flow(num_rows, has_padding, of_edges, of_messages, None)
    return flow.closed(program, inputs)


@dataclasses.dataclass(frozen=True)
class _Flow:
    """Interprets jaxprs; `caller` is the equation whose author counts as that of all, if any.

    JAX caches the traces of its own functions, such as `jnp.where`: the lines in a cached trace are
    those of its first caller.
    """

    num_rows: int
    has_padding: bool
    of_edges: bool
    of_messages: bool
    caller: Any

    def closed(self, program: Any, inputs: Sequence[RowState]) -> list[RowState]:
        jaxpr, consts = getattr(program, "jaxpr", program), getattr(program, "consts", ())
        known: dict[Any, RowState] = dict(zip(jaxpr.invars, inputs, strict=True))
        known |= zip(jaxpr.constvars, map(self._constant, consts), strict=True)
        for equation in jaxpr.eqns:
            states = [self._operand(var, known) for var in equation.invars]
            known |= zip(equation.outvars, self._equation(equation, states), strict=True)
        return [self._operand(var, known) for var in jaxpr.outvars]

    def _operand(self, var: Any, known: dict[Any, RowState]) -> RowState:
        if isinstance(var, core.Literal):
            return Same(value=number_of(var.val))
        return known.get(var, UNKNOWN)

    def _constant(self, value: Any) -> RowState:
        if varying_axes(value) and not self.of_messages:
            return UNKNOWN
        rows = [d for d, size in enumerate(np.shape(value)) if size == self.num_rows]
        if rows and _is_small(value):
            array = np.asarray(value)
            alike = (d for d in rows if (array == array.take([0], d)).all())
            return Same(frozenset(alike))
        return Same(value=number_of(value))

    def _equation(self, equation: Any, states: list[RowState]) -> list[RowState]:
        name = equation.primitive.name
        flow = dataclasses.replace(self, caller=self.caller or equation)
        try:
            if name in _LOOPS and any(not isinstance(state, Same) for state in states):
                return flow._loop(equation, states, self)
            inner = None if name in RULES else _body_of(equation)
            if inner is not None:
                is_one = is_of_jax(inner) or is_derivative(equation)
                return (flow if is_one else self).closed(inner, states)
            flow._check_tables(states)
            found = _with_signs(equation, states, flow._simple(equation, states))
            return _in_table(found, states)
        except RefusedError as refused:
            if not is_users(flow.caller) and refused.why not in ("tables", "devices"):
                return flow._trusted(equation, states)
            line = user_line(flow.caller)
            raise RowsError(refused.why, name, line) from refused

    def _check_tables(self, states: Sequence[RowState]) -> None:
        """Refuses the rows of one graph beside arrays of another."""
        tables = {getattr(state, "table", None) for state in states} - {None}
        has_rows = any(isinstance(state, Rows) for state in states)
        if len(tables) > 1 and has_rows and not is_derivative(self.caller):
            raise RefusedError("tables")

    def _trusted(self, equation: Any, states: Sequence[RowState]) -> list[RowState]:
        self._check_tables(states)
        padding = 0 if self.of_edges or is_derivative(self.caller) else None
        table = table_of(states)

        def state(var: Any) -> RowState:
            if not _varies(var) and not self.of_messages:
                return Same()
            if var.aval.shape[:1] == (self.num_rows,):
                return Rows(Along(0), padding, table=table)
            return Unknown(table)

        return [state(var) for var in equation.outvars]

    def _simple(self, equation: Any, states: list[RowState]) -> list[RowState]:
        name = equation.primitive.name
        if not equation.outvars:
            # An effect, such as a print.
            return []
        if name == "optimization_barrier":
            return states
        waits = name in _SUMS_OF_DEVICES or (name in _OF_DEVICES and name != "axis_index")
        if waits and self.of_messages:
            # Devices run a message for chunks of their own number: one would wait for ever.
            raise RefusedError("devices")
        if name in _SUMS_OF_DEVICES:
            completed(_step(equation, self.num_rows), states)
            if is_within(equation, "pmean"):
                raise RefusedError("parts")
            return [Same(entries=_entries_of_all(equation, state)) for state in states]
        if name in _OF_DEVICES or any(isinstance(state, Unknown) for state in states):
            # Looked at first: who wrote an equation takes longer to find.
            is_by_slot = any(v.aval.shape[:1] == (self.num_rows,) for v in equation.outvars)
            if self.of_edges and is_by_slot and not is_users(self.caller):
                return self._trusted(equation, states)
            return [UNKNOWN if _varies(var) else Same() for var in equation.outvars]
        step = _step(equation, self.num_rows)
        if step.name in SCATTERED and is_by_value(states):
            return self._rows(step, states, equation)
        if any(isinstance(state, Share) for state in states):
            given, made = (var.aval.dtype for var in (equation.invars[0], equation.outvars[0]))
            check_linear(step, states, given, made)
            return shared_out(step, states)
        if any(isinstance(state, Rows) for state in states):
            return self._rows(step, states, equation)
        same = [state for state in states if isinstance(state, Same)]
        results = _same(step, same)
        if same and same[0].entries and step.name in ("div", "mul", "convert_element_type"):
            entries = divided(same[0].entries, divisor(step, same), self.num_rows)
            return [dataclasses.replace(result, entries=entries) for result in results]
        return results

    def _rows(self, step: Step, states: list[RowState], equation: Any) -> list[RowState]:
        rows = next(state for state in states if isinstance(state, Rows))
        axis, name = rows.along.axis, step.name
        numbers = [_number(state) for state in states]
        dtype = np.dtype(equation.invars[0].aval.dtype) if name in _REDUCTIONS else None
        if name in _REDUCTIONS and axis in {a % len(step.inputs[0]) for a in step.params["axes"]}:
            share = reduced(step, step.params["axes"])
            natural = is_natural(states[0])
            if self.has_padding and not is_neutral(share.kind, numbers[0], dtype, natural=natural):
                raise RefusedError("padding")
            return [share]
        if name in SCATTERED and is_by_value(states):
            dtype = np.dtype(equation.invars[0].aval.dtype)
            return [scattered(step, states, numbers, dtype, has_padding=self.has_padding)]
        if name == "dot_general" and _is_summed(step, states):
            if self.has_padding and not any(number == 0 for number in numbers):
                raise RefusedError("padding")
            return [Share("sum", entries_of_product(step, states))]
        if name == "broadcast_in_dim":
            place = step.params["broadcast_dimensions"][axis]
            return [Rows(rows.along.at(place), rows.padding)]
        if name in ("argmax", "argmin") and axis in step.params["axes"]:
            raise RefusedError("mixes")
        if name in _OPAQUE:
            if self.of_messages:
                return self._trusted(equation, states)
            raise RefusedError("opaque")
        if name in ("mul", "div") and any(map(self._is_count, numbers, step.inputs)):
            raise RefusedError("count")
        found = _followed(step, states, axis)
        naturals = [is_natural(state) for state in states]
        return [
            Rows(state, filled(step, numbers, i, naturals)) if isinstance(state, Along) else Same()
            for i, state in enumerate(found)
        ]

    def _is_count(self, number: Number | None, shape: tuple[int, ...]) -> bool:
        """True for a scalar that is, or divides by, a number of rows that is no other by chance."""
        if not number or shape or self.num_rows < _MANY:
            return False
        return self.num_rows in (number, round(1 / number) if abs(number) < 1 else 0)

    def _loop(self, equation: Any, states: list[RowState], inside: _Flow) -> list[RowState]:
        """Follows a loop or a branch; `inside` follows its bodies."""
        if not is_users(self.caller):
            return self._trusted(equation, states)
        params, name = equation.params, equation.primitive.name
        if name == "scan":
            return _scan(equation, states, inside)
        if name == "while":
            first, second = params["cond_nconsts"], params["body_nconsts"]
            of_condition, of_body = states[:first], states[first : first + second]

            def turn(carry: list[RowState]) -> list[RowState]:
                condition = inside.closed(params["cond_jaxpr"], [*of_condition, *carry])[0]
                # Under jax.vmap every row has a loop of its own.
                if not (_may_decide(condition) or isinstance(condition, Rows)):
                    raise RefusedError("branch")
                return inside.closed(params["body_jaxpr"], [*of_body, *carry])

            return _fixed_point(turn, states[first + second :])
        if name == "cond":
            if not _may_decide(states[0]):
                raise RefusedError("branch")
            results = [inside.closed(branch, states[1:]) for branch in params["branches"]]
            return [_joined(each) for each in zip(*results, strict=True)]
        inner = _body_of(equation)
        return self._trusted(equation, states) if inner is None else inside.closed(inner, states)


def _in_table(found: Sequence[RowState], states: Sequence[RowState]) -> list[RowState]:
    """Results with the table of their operands."""
    table = table_of(states)
    return [
        dataclasses.replace(each, table=table) if isinstance(each, Rows | Unknown) else each
        for each in found
    ]


def _is_small(value: Any) -> bool:
    """Tells whether the numbers of a constant are here, and few enough to be compared."""
    if isinstance(value, Tracer) or np.size(value) > _MOST_NUMBERS:
        return False
    if isinstance(value, jax.Array):
        is_key = jax.numpy.issubdtype(value.dtype, jax.dtypes.extended)
        return value.is_fully_addressable and not is_key
    return isinstance(value, np.ndarray)


def _scan_counts(equation: Any) -> tuple[int, int]:
    """Counts the constants and carries of a scan: their rank is the same inside and outside."""
    body = equation.params["jaxpr"]
    body = getattr(body, "jaxpr", body)

    def kept(outside: Any, inside: Any) -> int:
        pairs = zip(outside, inside, strict=True)
        return sum(len(_shape(a)) == len(_shape(b)) for a, b in pairs)

    carries = kept(equation.outvars, body.outvars)
    return kept(equation.invars, body.invars) - carries, carries


def _body_of(equation: Any) -> Any:
    """Finds the jaxpr of a call."""
    for value in equation.params.values():
        if not isinstance(value, core.ClosedJaxpr | core.Jaxpr):
            continue
        jaxpr = value.jaxpr if isinstance(value, core.ClosedJaxpr) else value
        counts = len(jaxpr.invars), len(jaxpr.outvars)
        if counts == (len(equation.invars), len(equation.outvars)):
            return value
    return None


def _shape(var: Any) -> tuple[int, ...]:
    return tuple(getattr(var.aval, "shape", ()))


def _step(equation: Any, num_rows: int) -> Step:
    return Step(
        equation.primitive.name,
        equation.params,
        num_rows,
        tuple(map(_shape, equation.invars)),
        tuple(map(_shape, equation.outvars)),
        tuple(v.val if isinstance(v, core.Literal) else None for v in equation.invars),
    )


def _varies(var: Any) -> bool:
    """Tells whether a variable may differ between devices."""
    variation = getattr(var.aval, "manual_axis_type", None)
    return variation is None or bool(variation.varying)


def _number(state: RowState) -> Number | None:
    if isinstance(state, Same):
        return state.value
    return state.padding if isinstance(state, Rows) else None


def _is_summed(step: Step, states: Sequence[RowState]) -> bool:
    """Tells whether a product sums over rows; refuses factors that depend on a row's position."""
    summed, _ = step.params["dimension_numbers"]
    places = [
        list(axes).index(state.along.axis)
        for state, axes in zip(states, summed, strict=True)
        if isinstance(state, Rows) and state.along.axis in axes
    ]
    if not places:
        return False
    for state, axes in zip(states, summed, strict=True):
        axis = axes[places[0]]
        if isinstance(state, Rows) and state.along.axis != axis:
            raise RefusedError("mixes")
        if isinstance(state, Same) and axis not in state.uniform and state.value is None:
            raise RefusedError("position")
    return True


def _followed(step: Step, states: Sequence[RowState], axis: int) -> list[Along | Mixed | Any]:
    """Finds the states of the outputs by the rules of `axis_rules`."""
    acts_by_number = step.name not in RULES or step.name in ("select_n", "lt")
    if acts_by_number:
        _check_aligned(step, states, axis)

    def along(state: RowState, with_marks: bool) -> State:
        if isinstance(state, Rows):
            return state.along
        assert isinstance(state, Same)
        if with_marks and state.marked is not None:
            return state.marked
        is_uniform = axis in state.uniform and not acts_by_number
        return Along(axis, uniform=True) if with_marks and is_uniform else SHARED

    found: list[State] = []
    for with_marks in (True, False):
        found = by_rule(step, [along(state, with_marks) for state in states])
        if not any(isinstance(state, Mixed) for state in found):
            return found
    mixed = next(state for state in found if isinstance(state, Mixed))
    raise RefusedError("position" if mixed.why == "position" else "mixes")


def _check_aligned(step: Step, states: Sequence[RowState], axis: int) -> None:
    """Refuses arrays with an entry per row that belongs to no node, such as `jnp.arange(rows)`."""
    for state, shape in zip(states, step.inputs, strict=True):
        if not isinstance(state, Same) or state.value is not None or len(shape) <= axis:
            continue
        if shape[axis] > 1 and axis not in state.uniform:
            raise RefusedError("position")


def _same(step: Step, states: list[Same]) -> list[RowState]:
    """Finds the states of outputs computed from values that are the same on every device."""
    results: list[RowState] = []
    for i, shape in enumerate(step.outputs):
        value = filled(step, [state.value for state in states], i)
        dimensions = frozenset(d for d, size in enumerate(shape) if size == step.entries)
        if not dimensions:
            results.append(Same(value=value))
        elif value is not None:
            results.append(Same(dimensions, None, value))
        else:
            results.append(_same_of_rows(step, states, i, dimensions))
    return results


def _same_of_rows(
    step: Step, states: list[Same], output: int, dimensions: frozenset[int]
) -> RowState:
    if step.name == "iota":
        axis = step.params["dimension"]
        marked = Along(axis, content="position") if axis in dimensions else None
        return Same(dimensions - {axis}, marked)
    if step.name == "broadcast_in_dim":
        return _same_broadcast(step, states[0], dimensions)
    uniform = frozenset()
    for axis in {d for state in states for d in state.uniform}:
        given = [
            Along(axis, uniform=True)
            if axis in state.uniform
            else SHARED
            if len(shape) <= axis or shape[axis] != step.entries or state.value is not None
            else Mixed()
            for state, shape in zip(states, step.inputs, strict=True)
        ]
        if any(isinstance(state, Mixed) for state in given):
            continue
        found = by_rule(step, given)[output]
        if isinstance(found, Along) and found.uniform and found.outer == found.inner == 1:
            uniform |= {found.axis}
    marked = None
    if any(state.marked for state in states):
        alike = [Along(min(x.uniform), uniform=True) if x.uniform else SHARED for x in states]
        marks = [state.marked or other for state, other in zip(states, alike, strict=True)]
        found = (counted_from_end(step, marks) or by_rule(step, marks))[output]
        marked = found if isinstance(found, Along) and found.content is not None else None
    return Same(uniform, marked)


def _same_broadcast(step: Step, state: Same, dimensions: frozenset[int]) -> RowState:
    placed = list(step.params["broadcast_dimensions"])
    kept = {d: placed.index(d) for d in dimensions if d in placed}
    uniform = frozenset(
        d
        for d in dimensions
        if d not in kept or step.inputs[0][kept[d]] == 1 or kept[d] in state.uniform
    )
    marked = state.marked and state.marked.at(placed[state.marked.axis])
    return Same(uniform, marked)


def _scan(equation: Any, states: list[RowState], inside: _Flow) -> list[RowState]:
    consts, carries = _scan_counts(equation)
    given, rest = states[:consts], states[consts + carries :]
    body = equation.params["jaxpr"]
    if any(isinstance(state, Rows) and state.along.axis == 0 for state in rest):
        by_itself = not carries and all(isinstance(state, Same) for state in given)
        if not by_itself:
            raise RefusedError("mixes")
        return [Rows(Along(0))] * len(equation.outvars)

    def moved(state: RowState, by: int) -> RowState:
        if isinstance(state, Rows):
            return dataclasses.replace(state, along=state.along.at(state.along.axis + by))
        return Same(value=state.value) if isinstance(state, Same) else state

    outputs: list[RowState] = []

    def turn(carry: list[RowState]) -> list[RowState]:
        nonlocal outputs
        found = inside.closed(body, [*given, *carry, *(moved(state, -1) for state in rest)])
        outputs = found[carries:]
        return found[:carries]

    carry = _fixed_point(turn, states[consts : consts + carries])
    return [*carry, *(moved(state, 1) for state in outputs)]


def _with_signs(
    equation: Any, states: Sequence[RowState], results: Sequence[RowState]
) -> list[RowState]:
    """Marks the outputs that are known to have no negative entry."""
    naturals = [is_natural(state) for state in states]
    return [
        dataclasses.replace(result, natural=True)
        if isinstance(result, Same | Rows) and has_naturals(equation, naturals, i)
        else result
        for i, result in enumerate(results)
    ]


def _entries_of_all(equation: Any, state: RowState) -> int:
    if not isinstance(state, Share) or state.kind != "sum":
        return 0
    axes = [axis for axis in equation.params["axes"] if isinstance(axis, str)]
    return state.entries * math.prod(lax.axis_size(axis) for axis in axes)


def _may_decide(state: RowState) -> bool:
    return isinstance(state, Same | Unknown)


def _fixed_point(turn: Any, carry: list[RowState]) -> list[RowState]:
    """Finds the fixed point of a loop's carry; `turn` was called last with it."""
    while True:
        new = [joined_rows(*pair) for pair in zip(carry, turn(list(carry)), strict=True)]
        if new == carry:
            return carry
        carry = new


def _joined(states: Sequence[RowState]) -> RowState:
    result = states[0]
    for state in states[1:]:
        result = joined_rows(result, state)
    return result
