"""A traced function as a list of steps, with every call inlined that holds a barrier.

Values are numbered: arguments, constants, and the results of the steps.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from jaxgraph.ops.core.closures import CALLS, evaluate
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
      name: its primitive.
      operands: what it reads.
      results: the numbers of its results.
      apply: computes the results from the operands; of a barrier it is not called.
      params: of the equation.
    """

    name: str
    operands: tuple[Operand, ...]
    results: tuple[int, ...]
    apply: Callable[[list[Any]], list[Any]]
    params: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def reads(self) -> tuple[int, ...]:
        """The numbers of the values that it reads."""
        return tuple(each for each in self.operands if isinstance(each, int))

    @property
    def is_aggregation(self) -> bool:
        """True for messages that are reduced over all parts."""
        return self.name == messages_barrier.name

    @property
    def is_sum(self) -> bool:
        """True for a sum over all parts."""
        return self.name == sum_barrier.name


@dataclasses.dataclass(frozen=True, eq=False)
class FlatProgram:
    """The steps of a function.

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
    """Inlines the calls of a traced function."""
    numbering = _Numbering()
    constants = {
        numbering.new(v): c for v, c in zip(closed.jaxpr.constvars, closed.consts, strict=True)
    }
    numbering.constants |= constants
    arguments = tuple(numbering.new(v) for v in closed.jaxpr.invars)
    numbering.flatten(closed.jaxpr)
    outputs = tuple(numbering.operand(v) for v in closed.jaxpr.outvars)
    return FlatProgram(
        arguments, numbering.constants, tuple(numbering.steps), outputs, numbering.types
    )


def needed_steps(program: FlatProgram) -> list[Step]:
    """The steps that the outputs depend on, in order."""
    needed = {each for each in program.outputs if isinstance(each, int)}
    steps = []
    for step in reversed(program.steps):
        if needed.intersection(step.results):
            steps.append(step)
            needed |= set(step.reads)
    return steps[::-1]


def used_arguments(closed: Any) -> frozenset[int]:
    """The places of the arguments that the outputs of a traced function depend on."""
    program = flattened(closed)
    used = {each for each in program.outputs if isinstance(each, int)}
    used |= {number for step in needed_steps(program) for number in step.reads}
    return frozenset(i for i, number in enumerate(program.arguments) if number in used)


class _Numbering:
    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.constants: dict[int, Any] = {}
        self.types: dict[int, Any] = {}
        self._numbers: dict[Any, Operand] = {}

    def new(self, variable: Any) -> int:
        """The number of a new variable."""
        number = self._of_type(variable.aval)
        self._numbers[variable] = number
        return number

    def _of_type(self, aval: Any) -> int:
        number = len(self.types)
        self.types[number] = aval
        return number

    def operand(self, variable: Any) -> Operand:
        """The number of a variable, or a literal."""
        return variable if isinstance(variable, core.Literal) else self._numbers[variable]

    def flatten(self, jaxpr: Any) -> None:
        """Appends the steps of a jaxpr whose inputs have numbers."""
        for equation in jaxpr.eqns:
            name = equation.primitive.name
            if equation.effects:
                raise ValueError(
                    f"{name} has an effect beside its results, and mode='stream' runs the function "
                    "in pieces, once for each part and again in the backward; leave it out "
                    "(jax.debug.print, jax.debug.callback), or shard the graph in mode 'sar'"
                )
            operands = [self.operand(variable) for variable in equation.invars]
            if name in CALLS or _has_barrier(equation):
                results = self._inlined(equation, operands)
                self._numbers |= dict(zip(equation.outvars, results, strict=True))
                continue
            numbers = tuple(self.new(variable) for variable in equation.outvars)
            apply = functools.partial(evaluate, equation)
            self.steps.append(Step(name, tuple(operands), numbers, apply, equation.params))

    def _inlined(self, equation: Any, operands: list[Operand]) -> list[Operand]:
        name = equation.primitive.name
        if name in _OWN_DERIVATIVE and not _is_of_the_library(equation):
            raise ValueError(
                f"a function with a derivative of its own ({name}) holds an aggregation or a sum "
                "over all nodes, and mode='stream' differentiates it step by step; leave the "
                "aggregation out of the function, or shard the graph in mode 'sar'"
            )
        if name in _INLINED:
            return self._called(equation.params[_INLINED[name]], operands)
        if name == "scan":
            return self._unrolled(equation, operands)
        where = {"while": "a loop whose length is data (jax.lax.while_loop)"}
        raise ValueError(
            "mode='stream' runs aggregations and sums over all nodes from the host, and one stands "
            f"in {where.get(name, name)}; write a loop of fixed length (a Python loop, "
            "jax.lax.scan, jax.lax.fori_loop with fixed bounds), or shard the graph in mode 'sar'"
        )

    def _called(self, inner: Any, operands: Sequence[Operand]) -> list[Operand]:
        """The results of a program; calls of one function share it, and number it anew."""
        is_closed = isinstance(inner, core.ClosedJaxpr)
        jaxpr, consts = (inner.jaxpr, inner.consts) if is_closed else (inner, ())
        outside = dict(self._numbers)
        for variable, value in zip(jaxpr.constvars, consts, strict=True):
            self.constants[self.new(variable)] = value
        self._numbers |= dict(zip(jaxpr.invars, operands, strict=True))
        self.flatten(jaxpr)
        results = [self.operand(variable) for variable in jaxpr.outvars]
        self._numbers = outside
        return results

    def _unrolled(self, equation: Any, operands: list[Operand]) -> list[Operand]:
        params, body = equation.params, equation.params["jaxpr"]
        length = params["length"]
        # What is scanned or stacked has one axis more outside of the loop than in it.
        jaxpr = body.jaxpr if isinstance(body, core.ClosedJaxpr) else body
        scanned = _deeper(equation.invars, jaxpr.invars)
        carried = len(equation.outvars) - _deeper(equation.outvars, jaxpr.outvars)
        consts = len(operands) - scanned - carried
        if length > MOST_ROUNDS:
            raise ValueError(
                f"a loop of {length} rounds aggregates in each; mode='stream' runs at most "
                f"{MOST_ROUNDS}, each as a pass over the parts. Shard the graph in mode 'sar'"
            )
        fixed, carry = operands[:consts], operands[consts : consts + carried]
        entire = operands[consts + carried :]
        rounds: dict[int, list[Operand]] = {}
        for index in reversed(range(length)) if params["reverse"] else range(length):
            entries = [self._entry(each, index) for each in entire]
            results = self._called(body, [*fixed, *carry, *entries])
            carry, rounds[index] = results[:carried], results[carried:]
        stacked = [
            self._stacked([rounds[index][i] for index in range(length)], variable.aval)
            for i, variable in enumerate(equation.outvars[carried:])
        ]
        return [*carry, *stacked]

    def _entry(self, operand: Operand, index: int) -> int:
        """The value of one round of a scanned operand."""
        aval = self.types[operand] if isinstance(operand, int) else operand.aval
        (number,) = jax.make_jaxpr(lambda values: values[index])(aval).out_avals
        result = self._of_type(number)
        apply = functools.partial(_taken, index)
        self.steps.append(Step("take_entry", (operand,), (result,), apply))
        return result

    def _stacked(self, operands: list[Operand], aval: Any) -> int:
        result = self._of_type(aval)
        self.steps.append(Step("stack", tuple(operands), (result,), _stack))
        return result


def _deeper(outer: Sequence[Any], inner: Sequence[Any]) -> int:
    """The number of variables that have more axes outside of a loop than in it."""
    pairs = zip(outer, inner, strict=True)
    return sum(one.aval.ndim > other.aval.ndim for one, other in pairs)


def _taken(index: int, values: list[Any]) -> list[Any]:
    return [values[0][index]]


def _stack(values: list[Any]) -> list[Any]:
    return [jnp.stack([jnp.asarray(each) for each in values])]


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
