"""Follows one axis of a function's arguments through its jaxpr.

The function is traced with two lengths of the axis. The two programs differ only by the axis: in
dimensions of values, and in numbers of equations. A value that mixes entries counts only where an
output depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.extend import core

from jaxgraph.parallel.checks.authors import user_line
from jaxgraph.parallel.checks.axis_rules import RULES, counted_from_end
from jaxgraph.parallel.checks.axis_states import (
    SHARED,
    Along,
    Mixed,
    State,
    Step,
    by_default,
    joined,
)

__all__ = ["body_of", "follow_axis", "scan_counts"]

_SMALL = 1024
"""Constants without the axis are compared up to this many numbers."""

_COUNTED = Mixed("a.shape[0]", "count")
"""The state of a value computed from the length of the axis."""


def follow_axis(
    programs: tuple[core.ClosedJaxpr, core.ClosedJaxpr],
    entries: tuple[int, int],
    inputs: Sequence[State],
) -> list[State]:
    """Finds the states of a function's outputs.

    Args:
      programs: the function, traced with two lengths of the axis.
      entries: these lengths.
      inputs: the states of its flat arguments.

    Returns:
      A state for each flat output.
    """
    return _Flow(entries).closed(programs, inputs)


class _Flow:
    """Interprets pairs of jaxprs."""

    def __init__(self, entries: tuple[int, int]) -> None:
        self._entries = entries

    def closed(self, programs: Any, inputs: Sequence[State]) -> list[State]:
        """Follows the axis through two closed jaxprs, and compares their constants."""
        consts = [self._constant(a, b) for a, b in zip(*(p.consts for p in programs), strict=False)]
        return self.run(tuple(p.jaxpr for p in programs), consts, inputs)

    def run(self, jaxprs: Any, consts: Sequence[State], inputs: Sequence[State]) -> list[State]:
        """Follows the axis through two jaxprs and returns the states of their outputs."""
        first, second = jaxprs
        if [e.primitive for e in first.eqns] != [e.primitive for e in second.eqns] or len(
            first.constvars
        ) != len(second.constvars):
            return [_COUNTED] * len(first.outvars)
        known: dict[Any, State] = dict(zip(first.constvars, consts, strict=True))
        known |= dict(zip(first.invars, inputs, strict=True))
        for pair in zip(first.eqns, second.eqns, strict=True):
            states = self._operands(pair[0].invars, pair[1].invars, known)
            results = self._equation(pair, states)
            known |= dict(zip(pair[0].outvars, results, strict=True))
        return self._operands(first.outvars, second.outvars, known)

    def _operands(self, mine: Any, others: Any, known: dict[Any, State]) -> list[State]:
        return [
            self._constant(a.val, b.val)
            if isinstance(a, core.Literal) and isinstance(b, core.Literal)
            else known.get(a, _COUNTED)
            for a, b in zip(mine, others, strict=True)
        ]

    def _constant(self, mine: Any, other: Any) -> State:
        grown = _grown(np.shape(mine), np.shape(other))
        if grown is None or any(isinstance(x, Tracer) for x in (mine, other)):
            return SHARED if grown == () else _COUNTED
        if grown == ():
            if mine is other or np.size(mine) > _SMALL or _is_key(mine):
                return SHARED
            arrays = np.asarray(mine), np.asarray(other)
            can_be_nan = np.issubdtype(arrays[0].dtype, np.inexact)
            same = np.array_equal(*arrays, equal_nan=can_be_nan)
            return SHARED if same else _COUNTED
        values, axis = np.asarray(mine), grown[0]
        if len(grown) > 1 or values.shape[axis] != self._entries[0]:
            return Mixed("a constant", "position")
        if bool(np.all(values == values.take([0], axis))):
            return Along(axis, uniform=True)
        if values.ndim == 1 and np.array_equal(values, np.arange(len(values))):
            return Along(axis, content="position")
        return Mixed("a constant", "position")

    def _equation(self, pair: tuple[Any, Any], states: list[State]) -> list[State]:
        step = self._step(pair)
        special = counted_from_end(step, states)
        if special is not None:
            return special
        name = step.name
        if name == "optimization_barrier":
            return states
        if name == "while":
            return self._while(pair, states, step)
        if name == "scan":
            return self._scan(pair, states, step)
        if name == "cond":
            return self._cond(pair, states, step)
        inner = None if name in RULES else _bodies(pair)
        if inner is not None:
            found = self._body(inner, states)
            return [_with_line(state, step) for state in found]
        for state in states:
            if isinstance(state, Mixed):
                return [_with_line(state, step)] * len(step.outputs)
        return RULES.get(name, by_default)(step, states)

    def _step(self, pair: tuple[Any, Any]) -> Step:
        mine, other = pair
        grown = [
            _grown(_shape(a), _shape(b)) or ()
            for a, b in zip(mine.outvars, other.outvars, strict=True)
        ]
        return Step(
            mine.primitive.name,
            mine.params,
            self._entries[0],
            tuple(_shape(var) for var in mine.invars),
            tuple(_shape(var) for var in mine.outvars),
            tuple(grown),
            tuple(var.val if isinstance(var, core.Literal) else None for var in mine.invars),
            user_line(mine),
        )

    def _body(self, bodies: Any, states: Sequence[State]) -> list[State]:
        if all(isinstance(body, core.ClosedJaxpr) for body in bodies):
            return self.closed(bodies, states)
        return self.run(bodies, [], states)

    def _cond(self, pair: tuple[Any, Any], states: list[State], step: Step) -> list[State]:
        if isinstance(states[0], Mixed):
            return [states[0]] * len(step.outputs)
        branches = zip(*(equation.params["branches"] for equation in pair), strict=True)
        results = [self._body(bodies, states[1:]) for bodies in branches]
        return [joined(list(each), "cond", step.line) for each in zip(*results, strict=True)]

    def _while(self, pair: tuple[Any, Any], states: list[State], step: Step) -> list[State]:
        params = pair[0].params
        first, second = params["cond_nconsts"], params["body_nconsts"]
        of_condition, of_body = states[:first], states[first : first + second]
        bodies = tuple(equation.params["body_jaxpr"] for equation in pair)
        conditions = tuple(equation.params["cond_jaxpr"] for equation in pair)

        def turn(carry: list[State]) -> list[State]:
            condition = self._body(conditions, [*of_condition, *carry])[0]
            if isinstance(condition, Mixed):
                return [_with_line(condition, step)] * len(carry)
            return self._body(bodies, [*of_body, *carry])

        return _fixed_point(turn, states[first + second :], step)

    def _scan(self, pair: tuple[Any, Any], states: list[State], step: Step) -> list[State]:
        consts, carries = scan_counts(pair[0])
        given, rest = states[:consts], states[consts + carries :]
        bodies = tuple(equation.params["jaxpr"] for equation in pair)
        if pair[0].params["length"] != pair[1].params["length"]:
            return self._scan_along(given, states[consts : consts + carries], rest, step)

        def slices(state: State) -> State:
            if isinstance(state, Along):
                return state.at(state.axis - 1)
            return state

        outputs: list[State] = []

        def turn(carry: list[State]) -> list[State]:
            nonlocal outputs
            found = self._body(bodies, [*given, *carry, *map(slices, rest)])
            outputs = found[carries:]
            return found[:carries]

        carry = _fixed_point(turn, states[consts : consts + carries], step)
        stacked = [s.at(s.axis + 1) if isinstance(s, Along) else s for s in outputs]
        return [*carry, *stacked]

    def _scan_along(
        self, given: list[State], carry: list[State], rest: list[State], step: Step
    ) -> list[State]:
        """Follows a scan over the axis itself."""
        for state in (*given, *carry, *rest):
            if isinstance(state, Mixed):
                return [_with_line(state, step)] * len(step.outputs)
        plain = all(
            state == SHARED or (isinstance(state, Along) and state.axis == 0) for state in rest
        )
        if carry or any(state != SHARED for state in given) or not plain:
            return step.mixed()
        if any(isinstance(state, Along) and state.content is not None for state in rest):
            return step.mixed("position")
        return [Along(0)] * len(step.outputs)


def scan_counts(equation: Any) -> tuple[int, int]:
    """Counts the constants and carries of a scan: their rank is the same inside and outside.

    Args:
      equation: of primitive "scan".

    Returns:
      Their numbers.
    """
    body = equation.params["jaxpr"]
    body = getattr(body, "jaxpr", body)

    def kept(outside: Any, inside: Any) -> int:
        pairs = zip(outside, inside, strict=True)
        return sum(len(_shape(a)) == len(_shape(b)) for a, b in pairs)

    carries = kept(equation.outvars, body.outvars)
    return kept(equation.invars, body.invars) - carries, carries


def _fixed_point(turn: Any, carry: list[State], step: Step) -> list[State]:
    """Finds the fixed point of a loop's carry; `turn` was called last with it."""
    while True:
        found = turn(list(carry))
        pairs = zip(carry, found, strict=True)
        new = [joined(list(pair), step.name, step.line) for pair in pairs]
        if new == carry:
            return carry
        carry = new


def _with_line(state: State, step: Step) -> State:
    """Adds the user's line to a mixed state without one."""
    if isinstance(state, Mixed) and not state.line:
        return Mixed(state.operation, state.why, step.line)
    return state


def _bodies(pair: tuple[Any, Any]) -> tuple[Any, Any] | None:
    bodies = body_of(pair[0]), body_of(pair[1])
    return None if bodies[0] is None else bodies


def body_of(equation: Any) -> Any:
    """Finds the jaxpr of a call.

    Args:
      equation: of any primitive.

    Returns:
      The parameter with as many inputs and outputs as the equation, or None.
    """
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


def _grown(mine: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...] | None:
    """The dimensions in which two shapes differ; None where their ranks differ."""
    if len(mine) != len(other):
        return None
    return tuple(i for i, (a, b) in enumerate(zip(mine, other, strict=True)) if a != b)


def _is_key(value: Any) -> bool:
    return isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.extended)
