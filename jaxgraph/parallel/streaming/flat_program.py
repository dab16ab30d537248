"""A traced function as a list of steps, with every call inlined that holds a barrier.

Values are numbered: arguments, constants, and the results of the steps.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from jaxgraph.ops.core.closures import CALLS, evaluate, evaluate_all
from jaxgraph.parallel.streaming.part import messages_barrier, sum_barrier

Operand = int | core.Literal
"""The number of a value, or a number written in the program."""

BARRIERS = (messages_barrier, sum_barrier)
_OWN_DERIVATIVE = {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}
_RECOMPUTED = {"checkpoint": "jaxpr", "remat": "jaxpr", "remat2": "jaxpr"}
_INLINED = CALLS | _OWN_DERIVATIVE | _RECOMPUTED
MOST_ROUNDS = 256
"""The most rounds of a loop with an aggregation: each becomes a pass over the parts."""


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """One equation.

    Attributes:
      equation: it.
      operands: what it reads.
      results: the numbers of its results.
    """

    equation: Any
    operands: tuple[Operand, ...]
    results: tuple[int, ...]

    @property
    def name(self) -> str:
        """Its primitive."""
        return self.equation.primitive.name

    @property
    def reads(self) -> tuple[int, ...]:
        """The numbers of the values that it reads."""
        return tuple(each for each in self.operands if isinstance(each, int))

    @property
    def is_aggregation(self) -> bool:
        """True for messages that are reduced over all parts."""
        return self.equation.primitive is messages_barrier

    @property
    def is_sum(self) -> bool:
        """True for a sum over all parts."""
        return self.equation.primitive is sum_barrier


@dataclasses.dataclass(frozen=True, eq=False)
class FlatProgram:
    """The steps of a function that its outputs depend on.

    Attributes:
      arguments: the numbers of its arguments.
      constants: closed-over values by number.
      steps: in the order of their evaluation.
      outputs: what it returns.
      types: the type of each value.
    """

    arguments: tuple[int, ...]
    constants: dict[int, Any]
    steps: tuple[Step, ...]
    outputs: tuple[Operand, ...]
    types: dict[int, Any]


def flattened(closed: Any) -> FlatProgram:
    """Inlines the calls of a traced function, by tracing its evaluation."""
    types = [variable.aval for variable in closed.jaxpr.invars]
    flat = jax.make_jaxpr(functools.partial(_results, closed.jaxpr, closed.consts))(*types)
    jaxpr, numbers = flat.jaxpr, dict[Any, int]()
    for variable in (*jaxpr.constvars, *jaxpr.invars):
        numbers[variable] = len(numbers)
    for variable in (each for equation in jaxpr.eqns for each in equation.outvars):
        numbers[variable] = len(numbers)

    def of(variables: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(v if isinstance(v, core.Literal) else numbers[v] for v in variables)

    outputs, steps = of(jaxpr.outvars), list[Step]()
    needed = {each for each in outputs if isinstance(each, int)}
    for equation in reversed(jaxpr.eqns):
        step = Step(equation, of(equation.invars), of(equation.outvars))
        if needed.intersection(step.results):
            steps.append(step)
            needed |= set(step.reads)
    constants = dict(zip(of(jaxpr.constvars), flat.consts, strict=True))
    avals = {number: variable.aval for variable, number in numbers.items()}
    return FlatProgram(of(jaxpr.invars), constants, tuple(steps[::-1]), outputs, avals)


def _results(jaxpr: Any, consts: Sequence[Any], *arguments: Any) -> list[Any]:
    return evaluate_all(jaxpr, consts, arguments, _evaluate)


def _evaluate(equation: Any, values: list[Any]) -> list[Any]:
    """Evaluates an equation; one that holds a barrier, step by step."""
    name = equation.primitive.name
    if equation.effects:
        raise ValueError(
            f"{name} has an effect beside its results, and mode='stream' runs the function in "
            "pieces, once for each part and again in the backward; leave it out (jax.debug.print, "
            "jax.debug.callback), or shard the graph in mode 'sar'"
        )
    if name not in CALLS and not _has_barrier(equation):
        return evaluate(equation, values)
    if name in _OWN_DERIVATIVE and not _is_of_the_library(equation):
        raise ValueError(
            f"a function with a derivative of its own ({name}) holds an aggregation or a sum "
            "over all nodes, and mode='stream' differentiates it step by step; leave the "
            "aggregation out of the function, or shard the graph in mode 'sar'"
        )
    if name in _INLINED:
        return _results(*_program(equation.params[_INLINED[name]]), *values)
    if name == "scan":
        return _unrolled(equation, values)
    where = {"while": "a loop whose length is data (jax.lax.while_loop)"}
    raise ValueError(
        "mode='stream' runs aggregations and sums over all nodes from the host, and one stands "
        f"in {where.get(name, name)}; write a loop of fixed length (a Python loop, "
        "jax.lax.scan, jax.lax.fori_loop with fixed bounds), or shard the graph in mode 'sar'"
    )


def _program(inner: Any) -> tuple[Any, Sequence[Any]]:
    """A program inside of an equation, and its constants."""
    return (inner.jaxpr, inner.consts) if isinstance(inner, core.ClosedJaxpr) else (inner, ())


def _unrolled(equation: Any, values: list[Any]) -> list[Any]:
    length, (body, closed) = equation.params["length"], _program(equation.params["jaxpr"])
    if length > MOST_ROUNDS:
        raise ValueError(
            f"a loop of {length} rounds aggregates in each; mode='stream' runs at most "
            f"{MOST_ROUNDS}, each as a pass over the parts. Shard the graph in mode 'sar'"
        )
    # What is scanned or stacked has one axis more outside of the loop than in it.
    carried = len(equation.outvars) - _deeper(equation.outvars, body.outvars)
    scanned = len(values) - _deeper(equation.invars, body.invars)
    consts, carry = values[: scanned - carried], values[scanned - carried : scanned]
    rounds: dict[int, list[Any]] = {}
    for index in range(length)[:: -1 if equation.params["reverse"] else 1]:
        entries = [_entry(each, index) for each in values[scanned:]]
        results = _results(body, closed, *consts, *carry, *entries)
        carry, rounds[index] = results[:carried], results[carried:]
    stacked = range(len(equation.outvars) - carried)
    return [*carry, *(_stack([rounds[at][i] for at in range(length)]) for i in stacked)]


# One step each, which JAX does not take apart.
_entry = jax.jit(lambda values, index: values[index], static_argnums=1)
_stack = jax.jit(lambda entries: jnp.stack(entries))


def _deeper(outer: Sequence[Any], inner: Sequence[Any]) -> int:
    """The number of variables that have more axes outside of a loop than in it."""
    pairs = zip(outer, inner, strict=True)
    return sum(one.aval.ndim > other.aval.ndim for one, other in pairs)


def _is_of_the_library(equation: Any) -> bool:
    """True for a derivative that the library states, which is that of the function's steps."""
    rule = equation.params.get("bwd")
    module = getattr(getattr(rule, "f", rule), "__module__", None) or ""
    return module.startswith("jaxgraph.")


def _has_barrier(equation: Any) -> bool:
    """True for a call, a loop or a branch in whose programs a barrier stands."""
    return any(map(_holds_barrier, core.jaxprs_in_params(equation.params)))


def _holds_barrier(jaxpr: Any) -> bool:
    return any(equation.primitive in BARRIERS or _has_barrier(equation) for equation in jaxpr.eqns)
