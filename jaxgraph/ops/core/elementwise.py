"""Element-wise message functions as programs of registers, which kernels run for every edge.

Every value of such a function is a row of as many numbers as a message has, or a number per edge,
or a number, which a register holds once for every column. So no instruction has a shape. The
instructions that read only the row of one end come first: they run once per row.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from jaxgraph.ops.core.closures import VALUE_CALLS
from jaxgraph.ops.core.message_programs import inner_jaxprs

Pytree = Any
LOADS = ("row", "neighbor", "parameter", "edge", "constant")
MOST_REGISTERS, MOST_SUMS = 32, 8
_RESHAPES = ("broadcast_in_dim", "reshape", "squeeze", "expand_dims")
_SAME = (
    *("copy", "copy_p", "stop_gradient", "pvary", "pcast", "reshard"),
    "optimization_barrier",
)


def _truth(compare: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda a, b: jnp.where(compare(a, b), 1.0, 0.0)


_APPLY: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "max": jnp.maximum,
    "min": jnp.minimum,
    "neg": lambda a: -a,
    "abs": jnp.abs,
    "sign": lambda a: jnp.where(a > 0, 1.0, jnp.where(a < 0, -1.0, a)),
    "exp": jnp.exp,
    "log": jnp.log,
    "tanh": jnp.tanh,
    "logistic": lambda a: 1.0 / (1.0 + jnp.exp(-a)),
    "sqrt": jnp.sqrt,
    "gt": _truth(lambda a, b: a > b),
    "ge": _truth(lambda a, b: a >= b),
    "lt": _truth(lambda a, b: a < b),
    "le": _truth(lambda a, b: a <= b),
    "eq": _truth(lambda a, b: a == b),
    "ne": _truth(lambda a, b: a != b),
    "select_n": lambda when, no, yes: jnp.where(when != 0, yes, no),
}

OPERATIONS = (*LOADS, *_APPLY)
"""The operations of a program; the CPU kernel numbers them in this order (`kernels.h`)."""


@dataclasses.dataclass(frozen=True)
class Load:
    """Where a kernel finds an argument of a function.

    Attributes:
      table: one of `LOADS`.
      index: which array of that kind.
      kind: as of `_Value`: "columns", "edge", "parameter" or "number".
    """

    table: str
    index: int
    kind: str


@dataclasses.dataclass(frozen=True)
class Instruction:
    """Register `to` = operation of other registers, or what a load finds.

    Attributes:
      operation: one of `OPERATIONS`.
      to: a register.
      operands: registers; of a load, the index of its array or constant.
    """

    operation: str
    to: int
    operands: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class RegisterProgram:
    """Instructions on registers.

    Attributes:
      instructions: in order; the first `of_row` need no neighbour and no edge.
      of_row: see above.
      registers: how many there are.
      sums, dots: registers of the results that are summed by row, and by edge over all columns.
      constants: the numbers written in the function.
      columns, dtype: numbers of a row of a message, and their type.
    """

    instructions: tuple[Instruction, ...]
    of_row: int
    registers: int
    sums: tuple[int, ...]
    dots: tuple[int, ...]
    constants: tuple[float, ...]
    columns: int
    dtype: np.dtype

    @property
    def operations(self) -> frozenset[str]:
        """The operations that it takes."""
        return frozenset(each.operation for each in self.instructions)

    def evaluate(self, read: Callable[[str, int], jax.Array]) -> list[jax.Array]:
        """The terms of the sums, by JAX."""
        registers: dict[int, Any] = {}
        for each in self.instructions:
            name, operands = each.operation, each.operands
            if name == "constant":
                registers[each.to] = self.dtype.type(self.constants[operands[0]])
            elif name in LOADS:
                registers[each.to] = read(name, operands[0])
            else:
                registers[each.to] = _APPLY[name](*(registers[i] for i in operands))
        return [registers[i] for i in self.sums]


class _UnsupportedError(Exception):
    """The function is not element-wise, or uses another operation."""


@dataclasses.dataclass(frozen=True)
class _Value:
    """A value of the function.

    Attributes:
      number: of the virtual register.
      kind: "columns" [edges, ...]; "edge" [edges] or [edges, 1, ...]; "parameter" [...]; "number";
        "of_edge", "of_parameter", "of_number": summed over columns, over edges, or over both.
    """

    number: int
    kind: str


def compiled(
    function: Callable[..., Sequence[jax.Array]],
    examples: Sequence[Any],
    loads: Sequence[Load],
    per_edge: Sequence[bool],
    columns: int,
    dtype: Any,
) -> RegisterProgram | None:
    """Compiles an element-wise function of the arrays of a chunk of edges."""
    closed = jax.make_jaxpr(lambda *arguments: function(*arguments))(*examples)
    try:
        made = _Compiler(columns, jnp.dtype(dtype))
        return made.program(closed, loads, per_edge)
    except _UnsupportedError:
        return None


class _Compiler:
    """Turns equations into instructions on virtual registers, and these into real ones."""

    def __init__(self, columns: int, dtype: np.dtype) -> None:
        self._columns, self._dtype = columns, dtype
        self._code: list[tuple[str, tuple[int, ...]]] = []
        self._constants: list[float] = []
        self._known: dict[Any, int] = {}

    def program(
        self, closed: Any, loads: Sequence[Load], per_edge: Sequence[bool]
    ) -> RegisterProgram:
        jaxpr, values = closed.jaxpr, []
        for variable, load in zip(jaxpr.invars, loads, strict=True):
            self._check_type(variable.aval)
            values.append(_Value(self._emit(load.table, (load.index,)), load.kind))
        outputs = list(zip(self._run(jaxpr, values), per_edge, strict=True))
        # Sums over columns or edges are the kernel's, and nobody else's.
        for value, is_dot in outputs:
            if (value.kind == "of_edge") != is_dot and not self._is_zero(value):
                raise _UnsupportedError
        sums, dots = (
            [value.number for value, is_dot in outputs if is_dot == wanted]
            for wanted in (False, True)
        )
        return self._allocated(sums, dots)

    def _emit(self, name: str, operands: tuple[int, ...]) -> int:
        key = (name, operands)
        if key not in self._known:
            self._known[key] = len(self._code)
            self._code.append((name, operands))
        return self._known[key]

    def _constant(self, value: Any) -> _Value:
        if np.size(value) != 1:
            raise _UnsupportedError
        number = float(np.asarray(value).reshape(()))
        # By their text: 0.0 and -0.0 are two constants, and NaN is one.
        texts = list(map(repr, self._constants))
        if repr(number) not in texts:
            self._constants.append(number)
        index = texts.index(repr(number)) if repr(number) in texts else len(texts)
        return _Value(self._emit("constant", (index,)), "number")

    def _is_zero(self, value: _Value) -> bool:
        """True for the gradient of what a function does not read."""
        name, operands = self._code[value.number]
        return name == "constant" and self._constants[operands[0]] == 0

    def _check_type(self, aval: Any) -> None:
        if aval.dtype not in (self._dtype, jnp.dtype(bool)):
            raise _UnsupportedError

    def _run(self, jaxpr: Any, arguments: Sequence[_Value]) -> list[_Value]:
        if jaxpr.constvars:
            raise _UnsupportedError
        env = dict(zip(jaxpr.invars, arguments, strict=True))

        def read(variable: Any) -> _Value:
            if isinstance(variable, core.Literal):
                return self._constant(variable.val)
            return env[variable]

        for equation in jaxpr.eqns:
            results = self._equation(equation, [read(v) for v in equation.invars])
            env |= dict(zip(equation.outvars, results, strict=True))
        return [read(variable) for variable in jaxpr.outvars]

    def _equation(self, equation: Any, given: list[_Value]) -> list[_Value]:
        name = equation.primitive.name
        if name in VALUE_CALLS:
            (body,) = inner_jaxprs(equation)
            return self._run(body, given)
        sums = {value.kind for value in given if value.kind.startswith("of_")}
        if sums and name not in (*_RESHAPES, *_SAME, "reduce_sum"):
            return [self._linear(name, given, *sums)]
        for variable in equation.outvars:
            self._check_type(variable.aval)
        if name in _SAME:
            return given
        if name in _RESHAPES:
            return [self._reshaped(equation, given[0])]
        if name == "convert_element_type":
            from_number = equation.invars[0].aval.dtype != bool
            if from_number and equation.outvars[0].aval.dtype == bool:
                return [self._applied("ne", [given[0], self._constant(0.0)])]
            return given[:1]
        if name == "reduce_sum":
            return [self._reduced(equation, given[0])]
        if name == "integer_pow":
            return [self._power(given[0], equation.params["y"])]
        if name in ("square", "one_minus_square"):
            square = self._applied("mul", [given[0], given[0]])
            is_square = name == "square"
            return [square if is_square else self._applied("sub", [self._constant(1.0), square])]
        if name == "rsqrt":
            root = self._applied("sqrt", given)
            return [self._applied("div", [self._constant(1.0), root])]
        if name in ("and", "or", "not"):
            return [self._logic(name, given)]
        if name in OPERATIONS and name not in LOADS:
            if name == "select_n" and len(given) != 3:
                raise _UnsupportedError
            return [self._applied(name, given)]
        if name == "add_any":
            return [self._applied("add", given)]
        raise _UnsupportedError

    def _applied(self, name: str, given: list[_Value]) -> _Value:
        kinds = {value.kind for value in given} - {"number"}
        kind = kinds.pop() if len(kinds) == 1 else "columns" if kinds else "number"
        return _Value(self._emit(name, tuple(value.number for value in given)), kind)

    def _linear(self, name: str, given: list[_Value], kind: str, *others: str) -> _Value:
        """A linear function of sums over columns, or over edges, computed before the sum."""
        alone = {"of_edge": ("edge", "number"), "of_parameter": ("parameter", "number")}
        kinds = [value.kind for value in given]
        factors = [k in alone.get(kind, ("number",)) for k in kinds]
        is_sum = [k == kind or self._is_zero(v) for k, v in zip(kinds, given, strict=True)]
        is_factor = [a or b for a, b in zip(is_sum, factors, strict=True)]
        fits = {
            "add": is_sum,
            "sub": is_sum,
            "neg": is_sum,
            "mul": [kinds.count(kind) == 1, *is_factor],
            "div": [is_sum[0], *factors[1:]],
            "select_n": [factors[0], *is_sum[1:]],
        }
        name = "add" if name == "add_any" else name
        if others or not all(fits.get(name, [False])):
            raise _UnsupportedError
        return dataclasses.replace(self._applied(name, given), kind=kind)

    def _logic(self, name: str, given: list[_Value]) -> _Value:
        # Truth values are 0 and 1.
        if name == "not":
            return self._applied("sub", [self._constant(1.0), given[0]])
        return self._applied({"and": "mul", "or": "max"}[name], given)

    def _power(self, value: _Value, exponent: int) -> _Value:
        if not 1 <= abs(exponent) <= 8:
            raise _UnsupportedError
        total = value
        for _ in range(abs(exponent) - 1):
            total = self._applied("mul", [total, value])
        return self._applied("div", [self._constant(1.0), total]) if exponent < 0 else total

    def _reshaped(self, equation: Any, value: _Value) -> _Value:
        """A register holds the same numbers for the same columns, or the function is refused."""
        before = equation.invars[0].aval.shape
        after = equation.outvars[0].aval.shape
        if value.kind.startswith("of_"):
            if math.prod(before) != math.prod(after):
                raise _UnsupportedError
            return value
        if value.kind == "number":
            return value
        dims = equation.params.get("broadcast_dimensions")
        if value.kind == "columns":
            # Columns stay in their order; the edges stay in front.
            if math.prod(before) != math.prod(after) or before[0] != after[0]:
                raise _UnsupportedError
            return value
        if value.kind == "edge":
            if dims is not None and (not dims or dims[0] != 0):
                raise _UnsupportedError
            if math.prod(before[1:]) != 1 or after[0] != before[0]:
                raise _UnsupportedError
            return _Value(value.number, "edge" if math.prod(after[1:]) == 1 else "columns")
        # A parameter [...] of all columns, to [1, ...] or [edges, ...].
        if dims is None:
            if math.prod(before) != math.prod(after):
                raise _UnsupportedError
            return value
        last = tuple(range(len(after) - len(before), len(after)))
        if tuple(dims) != last or tuple(after[d] for d in dims) != tuple(before):
            raise _UnsupportedError
        grows = math.prod(after) != math.prod(before)
        return _Value(value.number, "columns" if grows else "parameter")

    def _reduced(self, equation: Any, value: _Value) -> _Value:
        shape, axes = equation.invars[0].aval.shape, set(equation.params["axes"])
        if math.prod(shape[axis] for axis in axes) == 1:
            return value
        if value.kind != "columns":
            raise _UnsupportedError
        features = {axis for axis in range(1, len(shape)) if shape[axis] > 1}
        if axes >= features | {0}:
            return _Value(value.number, "of_number")
        if 0 not in axes and axes >= features:
            return _Value(value.number, "of_edge")
        if 0 in axes and not axes & features:
            return _Value(value.number, "of_parameter")
        raise _UnsupportedError

    def _allocated(self, sums: list[int], dots: list[int]) -> RegisterProgram:
        """The program on as few registers as a linear scan finds."""
        needed: set[int] = set()
        pending = [*sums, *dots]
        while pending:
            number = pending.pop()
            if number not in needed:
                needed.add(number)
                name, operands = self._code[number]
                pending += () if name in LOADS else operands
        of_row = self._of_row(needed)
        order = [n for n in sorted(needed) if n in of_row]
        kept = len(order)
        order += [n for n in sorted(needed) if n not in of_row]
        last_read = {n: len(order) for n in (*sums, *dots)}
        for at, number in enumerate(order):
            name, operands = self._code[number]
            given: tuple[int, ...] = () if name in LOADS else operands
            for each in given:
                last_read[each] = max(last_read.get(each, 0), at)
        # What is computed once per row is read by every edge.
        last_read |= dict.fromkeys(order[:kept], len(order))
        places: dict[int, int] = {}
        free: list[int] = []
        used, instructions = 0, []
        for at, number in enumerate(order):
            name, operands = self._code[number]
            given: tuple[int, ...] = () if name in LOADS else operands
            registers = tuple(places[each] for each in given) or operands
            # Operands that are read for the last time give up their registers.
            free += [places[each] for each in set(given) if last_read[each] == at]
            place = free.pop() if free else used
            used = max(used, place + 1)
            places[number] = place
            instructions.append(Instruction(name, place, registers))
        if used > MOST_REGISTERS or len(sums) > MOST_SUMS or not instructions:
            raise _UnsupportedError
        return RegisterProgram(
            tuple(instructions),
            kept,
            used,
            tuple(places[n] for n in sums),
            tuple(places[n] for n in dots),
            tuple(self._constants),
            self._columns,
            self._dtype,
        )

    def _of_row(self, needed: set[int]) -> set[int]:
        """The instructions that read no neighbour and no edge."""
        found: set[int] = set()
        for number in sorted(needed):
            name, operands = self._code[number]
            if name in ("row", "parameter", "constant") or (
                name not in LOADS and found.issuperset(operands)
            ):
                found.add(number)
        return found
