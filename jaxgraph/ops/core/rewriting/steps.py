"""A traced function of edges as steps that have the same numbers for every number of edges.

Values are numbered: first the constants, then the arguments, then the results of the steps. So a
decision that was made on the program of a few edges holds for that of a whole table of rows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from jaxgraph.ops.core.closures import CALLS, evaluate, trace_message
from jaxgraph.ops.core.edges import match_variation

Pytree = Any
Operand = int | core.Literal
"""The number of a value, or a number written in the program."""

ENDS = ("sender", "receiver", "edge")
"""The arguments of a message function."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One equation, or a part of one.

    Attributes:
      name: its primitive.
      operands: what it reads.
      results: the numbers of its results.
      apply: computes the results from the operands.
      equation: the equation, for its parameters and the line of its user.
    """

    name: str
    operands: tuple[Operand, ...]
    results: tuple[int, ...]
    apply: Callable[[list[Any]], list[Any]]
    equation: Any

    @property
    def reads(self) -> tuple[int, ...]:
        """The numbers of the values that it reads."""
        return tuple(each for each in self.operands if isinstance(each, int))


@dataclasses.dataclass(frozen=True)
class Program:
    """A function of sender, receiver and edge, traced for some number of edges.

    Attributes:
      steps: in the order of their evaluation.
      constants: values by number: closed-over arrays.
      arguments: for each end, the numbers of its leaves.
      types: the abstract value of each value.
      outputs: what it returns.
      structure: the structure of the outputs.
    """

    steps: tuple[Step, ...]
    constants: dict[int, Any]
    arguments: dict[str, tuple[int, ...]]
    types: dict[int, Any]
    outputs: tuple[Operand, ...]
    structure: Any

    @functools.cached_property
    def ends(self) -> dict[int, frozenset[str]]:
        """For each value, the ends that it depends on; none: parameters alone."""
        known: dict[int, frozenset[str]] = {i: frozenset() for i in self.constants}
        for end, leaves in self.arguments.items():
            known |= {i: frozenset((end,)) for i in leaves}
        for step in self.steps:
            of_step = frozenset().union(*(known[i] for i in step.reads))
            known |= dict.fromkeys(step.results, of_step)
        return known

    def ends_of(self, step: Step) -> frozenset[str]:
        """The ends that a step depends on."""
        return self.ends[step.results[0]]

    @property
    def outline(self) -> tuple[Any, ...]:
        """The features that programs for other numbers of edges share with this one."""
        steps = [(step.name, step.reads, step.results) for step in self.steps]
        return tuple(steps), self.arguments["edge"], self.structure

    def needed(self, values: Iterable[Operand], known: Iterable[int] = ()) -> list[Step]:
        """The steps that compute some values, in order."""
        given = set(known)
        wanted, chosen = {each for each in values if isinstance(each, int)} - given, []
        for step in reversed(self.steps):
            if wanted.intersection(step.results):
                chosen.append(step)
                wanted |= set(step.reads) - given
        return chosen[::-1]

    def run(
        self, values: Iterable[Operand], known: dict[int, Any], steps: list[Step] | None = None
    ) -> list[Any]:
        """Computes some values, by the steps that they need or by given ones."""
        env, values = self.constants | known, tuple(values)

        def read(operand: Operand) -> Any:
            if isinstance(operand, int):
                return env[operand]
            aval: Any = operand.aval
            return jnp.asarray(operand.val, aval.dtype)

        for step in self.needed(values, known) if steps is None else steps:
            results = step.apply([read(each) for each in step.operands])
            env |= dict(zip(step.results, results, strict=True))
        return [read(each) for each in values]


def abstract(inputs: dict[str, Pytree]) -> dict[str, Pytree]:
    """The types of one row of some arrays."""
    return jax.tree.map(lambda leaf: _of_lanes(leaf, 1), inputs)


def _of_lanes(leaf: Any, lanes: int) -> Any:
    def zeros(like: jax.Array) -> jax.Array:
        return match_variation(jnp.zeros((lanes, *like.shape[1:]), like.dtype), like)

    return jax.eval_shape(zeros, leaf)


def traced(function: Callable[..., Pytree], types: dict[str, Pytree], lanes: int) -> Program:
    """Traces a function of sender, receiver and edge for some number of edges."""
    examples = {end: jax.tree.map(lambda leaf: _of_lanes(leaf, lanes), types[end]) for end in ENDS}
    return numbered(*trace_message(function, *examples.values()), examples)


def numbered(closed: Any, shape: Pytree, arguments: dict[Any, Pytree]) -> Program:
    """The steps of a jaxpr, with the structures of its result and of its arguments."""
    numbering = _Numbering()
    constants = {numbering.of(v): c for v, c in _pairs(closed.jaxpr.constvars, closed.consts)}
    leaves = iter([numbering.of(variable) for variable in closed.jaxpr.invars])
    of_ends = {
        end: tuple(next(leaves) for _ in jax.tree.leaves(tree)) for end, tree in arguments.items()
    }
    numbering.flatten(closed.jaxpr, constants)
    outputs = tuple(numbering.operand(variable) for variable in closed.jaxpr.outvars)
    structure = jax.tree.structure(shape)
    return Program(tuple(numbering.steps), constants, of_ends, numbering.types, outputs, structure)


class _Numbering:
    """Numbers the values of a jaxpr, and of the calls in it, which become steps of their own."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.types: dict[int, Any] = {}
        self._numbers: dict[Any, Operand] = {}

    def of(self, variable: Any) -> int:
        """The number of a new variable."""
        number = len(self.types)
        self.types[number] = variable.aval
        self._numbers[variable] = number
        return number

    def operand(self, variable: Any) -> Operand:
        """The number of a variable, or a literal."""
        return variable if isinstance(variable, core.Literal) else self._numbers[variable]

    def flatten(self, jaxpr: Any, constants: dict[int, Any]) -> None:
        """Appends the steps of a jaxpr whose inputs have numbers."""
        for equation in jaxpr.eqns:
            operands = tuple(self.operand(variable) for variable in equation.invars)
            if equation.primitive.name not in CALLS:
                results = tuple(self.of(variable) for variable in equation.outvars)
                apply = functools.partial(evaluate, equation)
                self.steps.append(Step(equation.primitive.name, operands, results, apply, equation))
                continue
            # Calls of one function share its program: every call numbers its variables anew.
            inner = equation.params[CALLS[equation.primitive.name]]
            outside = dict(self._numbers)
            constants |= {self.of(v): c for v, c in _pairs(inner.jaxpr.constvars, inner.consts)}
            self._numbers |= dict(zip(inner.jaxpr.invars, operands, strict=True))
            self.flatten(inner.jaxpr, constants)
            results = [self.operand(variable) for variable in inner.jaxpr.outvars]
            self._numbers = outside | dict(zip(equation.outvars, results, strict=True))


def _pairs(variables: Any, values: Any) -> Any:
    return zip(variables, values, strict=True)
