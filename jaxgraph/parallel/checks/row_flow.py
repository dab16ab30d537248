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
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend import core

from jaxgraph.ops.core.edges import varying_axes
from jaxgraph.ops.core.message_programs import scan_sizes
from jaxgraph.parallel.checks.authors import (
    is_derivative,
    is_of_jax,
    is_users,
    is_within,
    user_line,
)
from jaxgraph.parallel.checks.axis_rules import RULES, alike_axes, followed
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
from jaxgraph.parallel.checks.states import (
    UNKNOWN,
    Along,
    Number,
    RefusedError,
    Rows,
    RowState,
    Same,
    Share,
    Step,
    Unknown,
    is_natural,
    joined_rows,
    number_in,
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
            if name in _LOOPS:
                return flow._loop(equation, states, self)
            inner = None if name in RULES else _body_of(equation)
            if inner is not None:
                is_one = is_of_jax(inner) or is_derivative(equation)
                return (flow if is_one else self).closed(inner, states)
            flow._check_tables(states)
            step = Step.of(equation, self.num_rows)
            return _with_facts(step, states, flow._simple(step, equation, states))
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

    def _simple(self, step: Step, equation: Any, states: list[RowState]) -> list[RowState]:
        name = step.name
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
            completed(step, states)
            if is_within(equation, "pmean"):
                raise RefusedError("parts")
            return [Same(entries=_entries_of_all(equation, state)) for state in states]
        if name in _OF_DEVICES or any(isinstance(state, Unknown) for state in states):
            # Looked at first: who wrote an equation takes longer to find.
            is_by_slot = any(shape[:1] == (self.num_rows,) for shape in step.outputs)
            if self.of_edges and is_by_slot and not is_users(self.caller):
                return self._trusted(equation, states)
            return [UNKNOWN if _varies(var) else Same() for var in equation.outvars]
        if name == "select_n" and isinstance(states[0], Same) and states[0].value is not None:
            return [states[1 + int(states[0].value)]]
        if name in SCATTERED and is_by_value(states):
            return [scattered(step, states, has_padding=self.has_padding)]
        if any(isinstance(state, Share) for state in states):
            check_linear(step, states)
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
        axis = next(state.along.axis for state in states if isinstance(state, Rows))
        name, numbers = step.name, list(map(number_in, states))
        naturals = list(map(is_natural, states))
        if name in _REDUCTIONS and axis in {a % len(step.inputs[0]) for a in step.params["axes"]}:
            share = reduced(step, step.params["axes"])
            is_left_out = is_neutral(share.kind, numbers[0], step.dtypes[0], natural=naturals[0])
            if self.has_padding and not is_left_out:
                raise RefusedError("padding")
            return [share]
        if name == "dot_general" and _is_summed(step, states):
            if self.has_padding and not any(number == 0 for number in numbers):
                raise RefusedError("padding")
            return [Share("sum", entries_of_product(step, states))]
        if name in _OPAQUE:
            if self.of_messages:
                return self._trusted(equation, states)
            raise RefusedError("opaque")
        if name in ("mul", "div") and any(map(self._is_count, numbers, step.inputs)):
            raise RefusedError("count")
        if name == "reshape" and 0 in step.outputs[0]:
            return [Same()]
        found = _followed(step, states)
        return [Rows(found, filled(step, numbers, i, naturals)) for i in range(len(step.outputs))]

    def _is_count(self, number: Number | None, shape: tuple[int, ...]) -> bool:
        """True for a scalar that is, or divides by, a number of rows that is no other by chance."""
        if not number or shape or self.num_rows < _MANY:
            return False
        return self.num_rows in (number, round(1 / number) if abs(number) < 1 else 0)

    def _loop(self, equation: Any, states: list[RowState], inside: _Flow) -> list[RowState]:
        """Follows a loop or a branch; `inside` follows its bodies."""
        if any(not isinstance(state, Same) for state in states) and not is_users(self.caller):
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
                if isinstance(condition, Share):
                    raise RefusedError("branch")
                return inside.closed(params["body_jaxpr"], [*of_body, *carry])

            return _fixed_point(turn, states[first + second :])
        if name == "cond":
            if not isinstance(states[0], Same | Unknown):
                raise RefusedError("branch")
            results = [inside.closed(branch, states[1:]) for branch in params["branches"]]
            return [functools.reduce(joined_rows, each) for each in zip(*results, strict=True)]
        inner = _body_of(equation)
        return self._trusted(equation, states) if inner is None else inside.closed(inner, states)


def _with_facts(
    step: Step, states: Sequence[RowState], found: Sequence[RowState]
) -> list[RowState]:
    """Results with the table of their operands; those without negative entries are marked."""
    table, naturals = table_of(states), list(map(is_natural, states))
    results = []
    for i, each in enumerate(found):
        if isinstance(each, Same | Rows) and has_naturals(step, naturals, i):
            each = dataclasses.replace(each, natural=True)
        is_of_table = isinstance(each, Rows | Unknown)
        results.append(dataclasses.replace(each, table=table) if is_of_table else each)
    return results


def _is_small(value: Any) -> bool:
    """Tells whether the numbers of a constant are here, and few enough to be compared."""
    if isinstance(value, Tracer) or np.size(value) > _MOST_NUMBERS:
        return False
    if isinstance(value, jax.Array):
        is_key = jax.numpy.issubdtype(value.dtype, jax.dtypes.extended)
        return value.is_fully_addressable and not is_key
    return isinstance(value, np.ndarray)


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


def _varies(var: Any) -> bool:
    """Tells whether a variable may differ between devices."""
    variation = getattr(var.aval, "manual_axis_type", None)
    return variation is None or bool(variation.varying)


def _is_summed(step: Step, states: Sequence[RowState]) -> bool:
    """Tells whether a product sums over rows; refuses factors that depend on a row's position."""
    summed, _ = step.params["dimension_numbers"]
    places = {
        list(axes).index(state.along.axis)
        for state, axes in zip(states, summed, strict=True)
        if isinstance(state, Rows) and state.along.axis in axes
    }
    if not places:
        return False
    for state, axes in zip(states, summed, strict=True):
        axis = axes[min(places)]
        if isinstance(state, Rows) and state.along.axis != axis:
            raise RefusedError("mixes")
        if isinstance(state, Same) and not state.is_alike(axis):
            raise RefusedError("position")
    return True


def _followed(step: Step, states: Sequence[RowState]) -> Along:
    """The state of the outputs by the rules of `axis_rules`, with positions among operands."""
    given: list[Any] = [state.along if isinstance(state, Rows) else state for state in states]
    marked = [state.marked or state if isinstance(state, Same) else state for state in given]
    try:
        return followed(step, marked)
    except RefusedError:
        return followed(step, given)


def _same(step: Step, states: list[Same]) -> list[RowState]:
    """Finds the states of outputs computed from values that are the same on every device."""
    results: list[RowState] = []
    naturals = [is_natural(state) for state in states]
    for i, shape in enumerate(step.outputs):
        value = filled(step, [state.value for state in states], i, naturals)
        axes = frozenset(d for d, size in enumerate(shape) if size == step.entries)
        if value is not None or not axes:
            results.append(Same(axes, None, value))
        elif step.name == "iota":
            axis = step.params["dimension"]
            marked = Along(axis, positions=(True,)) if axis in axes else None
            results.append(Same(axes - {axis}, marked))
        else:
            results.append(Same(alike_axes(step, states, axes), _marked(step, states)))
    return results


def _marked(step: Step, states: Sequence[Same]) -> Along | None:
    """Where row numbers stay row numbers."""
    if not any(state.marked for state in states):
        return None
    try:
        found = followed(step, [state.marked or state for state in states])
    except RefusedError:
        return None
    return found if found.positions else None


def _scan(equation: Any, states: list[RowState], inside: _Flow) -> list[RowState]:
    consts, carries = scan_sizes(equation)
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
        if isinstance(state, Same):
            uniform = frozenset(axis + by for axis in state.uniform if axis + by >= 0)
            return dataclasses.replace(state, uniform=uniform, marked=None)
        return state

    outputs: list[RowState] = []

    def turn(carry: list[RowState]) -> list[RowState]:
        nonlocal outputs
        found = inside.closed(body, [*given, *carry, *(moved(state, -1) for state in rest)])
        outputs = found[carries:]
        return found[:carries]

    carry = _fixed_point(turn, states[consts : consts + carries])
    return [*carry, *(moved(state, 1) for state in outputs)]


def _entries_of_all(equation: Any, state: RowState) -> int:
    if not isinstance(state, Share) or state.kind != "sum":
        return 0
    axes = [axis for axis in equation.params["axes"] if isinstance(axis, str)]
    return state.entries * math.prod(lax.axis_size(axis) for axis in axes)


def _fixed_point(turn: Any, carry: list[RowState]) -> list[RowState]:
    """Finds the fixed point of a loop's carry; `turn` was called last with it."""
    while True:
        new = [joined_rows(*pair) for pair in zip(carry, turn(list(carry)), strict=True)]
        if new == carry:
            return carry
        carry = new
