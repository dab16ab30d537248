"""Counts the iterations of a while loop of a compiled program.

XLA annotates the loops whose count it knows. For the others the count follows from the condition
when it compares linear forms of the loop's state, and each element of the state in them starts at a
constant and grows by a constant:

    D_k = D_0 + k s,    count = min {k : not (D_k ? 0)},    ? one of <, <=, >, >=, !=, ==
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from jaxgraph.analysis.hlo import Computation, Instruction, Module

__all__ = ["trip_count"]

_KNOWN = re.compile(r'known_trip_count\\?"\s*:\s*\{\s*\\?"n\\?"\s*:\s*\\?"(\d+)')
_IDENTITIES = ("copy", "bitcast", "convert", "reshape", "optimization-barrier")

# The position of a scalar in nested tuples: the tuple indices from the outside in.
_Path = tuple[int, ...]


@dataclass(frozen=True)
class _Linear:
    """constant + sum of coefficient * element of the loop's state."""

    constant: int
    coefficients: dict[_Path, int]

    def plus(self, other: "_Linear", sign: int = 1) -> "_Linear":
        paths = self.coefficients.keys() | other.coefficients.keys()
        total = {
            path: self.coefficients.get(path, 0) + sign * other.coefficients.get(path, 0)
            for path in paths
        }
        nonzero = {path: coefficient for path, coefficient in total.items() if coefficient}
        return _Linear(self.constant + sign * other.constant, nonzero)


@dataclass(frozen=True)
class _Scope:
    """A computation together with the known values of its parameters."""

    module: Module
    computation: Computation
    parameter: Callable[[int, _Path], _Linear | None]

    def enter(self, instruction: Instruction) -> "_Scope":
        """The computation that a fusion or call of this scope runs."""
        return _Scope(
            self.module,
            self.module.computations[instruction.calls[0]],
            lambda number, path: self.value(instruction.operands[number], path),
        )

    def value(self, name: str, path: _Path = ()) -> _Linear | None:
        """The linear form of an integer of this computation, None if it is not one."""
        instruction = self.computation[name]
        opcode, operands = instruction.opcode, instruction.operands
        if opcode == "constant":
            return _constant(instruction)
        if opcode == "parameter":
            return self.parameter(int(instruction.operands_text), path)
        if opcode == "get-tuple-element":
            return self.value(operands[0], (int(instruction.attributes["index"]), *path))
        if opcode == "tuple":
            return self.value(operands[path[0]], path[1:])
        if opcode in _IDENTITIES:
            return self.value(operands[0], path)
        if opcode in ("fusion", "call"):
            inner = self.enter(instruction)
            return inner.value(inner.computation.root.name, path)
        if opcode in ("add", "subtract"):
            left, right = (self.value(operand) for operand in operands)
            if left is None or right is None:
                return None
            return left.plus(right, 1 if opcode == "add" else -1)
        return None

    def comparison(self, name: str) -> tuple[_Linear, str] | None:
        """(left - right, direction) of the comparison that an instruction returns."""
        instruction = self.computation[name]
        if instruction.opcode in _IDENTITIES:
            return self.comparison(instruction.operands[0])
        if instruction.opcode in ("fusion", "call"):
            inner = self.enter(instruction)
            return inner.comparison(inner.computation.root.name)
        if instruction.opcode != "compare":
            return None
        left, right = (self.value(operand) for operand in instruction.operands)
        if left is None or right is None:
            return None
        return left.plus(right, -1), instruction.attributes["direction"]


def trip_count(module: Module, computation: Computation, loop: Instruction) -> int | None:
    """The number of times that the body of a while loop runs.

    Args:
      module: the program.
      computation: the computation that holds the loop.
      loop: the `while` instruction.

    Returns:
      The count, or None where the text does not determine it.
    """
    known = _KNOWN.search(loop.attributes.get("backend_config", ""))
    if known:
        return int(known[1])

    def state(number: int, path: _Path) -> _Linear:
        return _Linear(0, {path: 1})

    condition = module.computations[loop.attributes["condition"].lstrip("%")]
    compared = _Scope(module, condition, state).comparison(condition.root.name)
    if compared is None:
        return None
    difference, direction = compared
    before = _scope_of(module, computation)
    body = module.computations[loop.attributes["body"].lstrip("%")]
    inside = _Scope(module, body, state)
    first, step = difference.constant, 0
    for path, coefficient in difference.coefficients.items():
        start = before.value(loop.operands[0], path)
        after = inside.value(body.root.name, path)
        if start is None or after is None or after.coefficients != {path: 1}:
            return None
        first += coefficient * start.constant
        step += coefficient * after.constant
    return _count(first, step, direction)


def _scope_of(module: Module, computation: Computation) -> _Scope:
    """A computation with the arguments of its caller, where exactly one call runs it."""
    callers = [
        (caller, instruction)
        for caller in module.computations.values()
        for instruction in caller.instructions
        if instruction.opcode == "call" and computation.name in instruction.calls
    ]
    if len(callers) != 1:
        return _Scope(module, computation, lambda number, path: None)
    caller, call = callers[0]
    return _scope_of(module, caller).enter(call)


def _constant(instruction: Instruction) -> _Linear | None:
    try:
        return _Linear(int(instruction.operands_text), {})
    except ValueError:
        return None


def _count(first: int, step: int, direction: str) -> int | None:
    """The smallest k for which `first + k step` no longer compares true to 0."""
    if direction in ("GT", "GE"):
        return _count(-first, -step, "LT" if direction == "GT" else "LE")
    if direction == "LE":
        return _count(first - 1, step, "LT")
    if direction == "EQ":
        return 0 if first else (1 if step else None)
    if (direction == "LT" and first >= 0) or (direction == "NE" and first == 0):
        return 0
    turns = Fraction(-first, step) if step else Fraction(-1)
    if turns < 0 or (direction == "NE" and turns.denominator != 1):
        return None
    return -(-turns.numerator // turns.denominator)
