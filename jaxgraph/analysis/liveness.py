"""An estimate of the temporary memory of a traced program, before it is compiled.

The program is gone through in the order in which it was written. An array is held from where it is
computed to where it is last read. Elementwise steps are fused into what reads them: their results
take no memory unless a step that cannot be fused reads them, and cheap ones are computed anew in
every reader, which holds their operands as long. A step writes its result over an operand of the
same size that nothing reads later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend import core

from jaxgraph.analysis.traced import is_opaque, live_equations, needed_of_scan, size_of
from jaxgraph.ops.core.message_programs import inner_jaxprs

_FUSED = frozenset(
    (
        *("abs", "add", "add_any", "and", "bitcast_convert_type", "broadcast_in_dim", "clamp"),
        *("convert_element_type", "copy", "cos", "div", "eq", "erf", "exp"),
        *("ge", "gt", "integer_pow", "iota", "is_finite", "le", "log", "log1p", "logistic", "lt"),
        *("max", "min", "mul", "ne", "neg", "not", "or", "pow", "rem"),
        *("platform_index", "random_unwrap", "random_wrap", "round", "rsqrt", "select_n"),
        *("shift_left", "shift_right_logical", "sign", "sin"),
        *("slice", "sqrt", "square", "sub", "tanh", "transpose", "xor", "reduce_precision"),
        *("shift_right_arithmetic", "random_bits", "pad"),
    )
)
_COSTLY = frozenset(
    ("cos", "erf", "exp", "log", "log1p", "logistic", "pow", "rem", "rsqrt", "sin", "sqrt", "tanh")
)
"""Fused steps that XLA computes once, and stores for all their readers, if one cannot be fused."""
_SAME = frozenset(
    (
        *("copy_p", "expand_dims", "jaxgraph_forward_only", "jaxgraph_reverse_only", "name"),
        *("optimization_barrier", "pcast", "pvary", "reshape", "sharding_constraint", "squeeze"),
        *("stop_gradient",),
    )
)
"""Primitives whose results are their operands, in the same order."""
_IN_PLACE = frozenset(
    ("dynamic_update_slice", "ffi_call", "mpmd_map", "pallas_call", "scan", "scatter-add", "while")
)


@dataclasses.dataclass(frozen=True)
class _Op:
    """A step of the flat program: its operands and results by number, and what runs inside."""

    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    inside: int = 0


class _Flat:
    """A program without calls, its variables numbered."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._numbers: dict[int, int] = {}
        self.ops: list[_Op] = []

    def number(self, variable: Any) -> int:
        if id(variable) not in self._numbers:
            self.renew(variable)
        return self._numbers[id(variable)]

    def renew(self, variable: Any) -> int:
        self._numbers[id(variable)] = len(self.sizes)
        self.sizes.append(size_of(variable))
        return len(self.sizes) - 1

    def reads(self, variables: Sequence[Any]) -> tuple[int, ...]:
        return tuple(self.number(each) for each in variables if isinstance(each, core.Var))

    def alias(self, variables: Sequence[Any], others: Sequence[Any]) -> None:
        numbers = [self.number(other) if isinstance(other, core.Var) else None for other in others]
        for variable, number in zip(variables, numbers, strict=True):
            if number is None:
                self.renew(variable)
            else:
                self._numbers[id(variable)] = number

    def add(self, jaxpr: Any, wanted: Sequence[bool]) -> None:
        """Appends the steps of a program whose inputs are numbered."""
        for equation, used in live_equations(jaxpr, wanted):
            name, programs = equation.primitive.name, inner_jaxprs(equation)
            if name in _SAME:
                self.alias(equation.outvars, equation.invars)
                continue
            if is_opaque(equation) or name in ("scan", "cond"):
                inside = _inside(equation, used) if name in ("scan", "cond", "while") else 0
                reads = self.reads(equation.invars)
                writes = tuple(
                    self.renew(each)
                    for each, use in zip(equation.outvars, used, strict=True)
                    if use
                )
                self.ops.append(_Op(name, reads, writes, inside))
                continue
            self.alias(programs[0].invars, equation.invars)
            self.add(programs[0], used)
            self.alias(equation.outvars, programs[0].outvars)


def _inside(equation: Any, used: list[bool]) -> int:
    """The most that one turn of a loop, or a branch, holds beside its operands and results."""
    name, programs = equation.primitive.name, inner_jaxprs(equation)
    if name == "scan":
        wanted = needed_of_scan(equation, used)
        return _peak(programs[0], wanted)
    return max(_peak(program, [True] * len(program.outvars)) for program in programs)


def temporary_bytes(jaxpr: Any) -> int:
    """Estimates the temporary memory of a program on one device."""
    return _peak(jaxpr, [True] * len(jaxpr.outvars))


def _peak(jaxpr: Any, wanted: Sequence[bool]) -> int:
    flat = _Flat()
    arguments = {flat.renew(each) for each in (*jaxpr.constvars, *jaxpr.invars)}
    flat.add(jaxpr, wanted)
    results = set(flat.reads(jaxpr.outvars))
    return max(_held(flat, arguments, results), default=0)


def _held(flat: _Flat, arguments: set[int], results: set[int]) -> Iterator[int]:
    """Bytes held at each step."""
    stored = _stored(flat, arguments, results)
    last = _last_reads(flat, stored, results)
    held = 0
    ends: dict[int, list[int]] = {}
    for number, position in last.items():
        ends.setdefault(position, []).append(number)
    alive: set[int] = set()
    for position, op in enumerate(flat.ops):
        new = [number for number in op.writes if number in stored]
        dying = [number for number in ends.get(position, ()) if number in alive]
        free = [flat.sizes[number] for number in dying]
        grown = 0
        for number in new:
            size = flat.sizes[number]
            if op.name in _IN_PLACE and size in free:
                free.remove(size)
            else:
                grown += size
        yield held + grown + op.inside
        alive.update(new)
        held += sum(flat.sizes[number] for number in new)
        for number in ends.get(position, ()):
            if number in alive:
                alive.remove(number)
                held -= flat.sizes[number]


def _stored(flat: _Flat, arguments: set[int], results: set[int]) -> set[int]:
    """Values that take memory: not arguments, and of fused steps those that others read."""
    stored = set()
    read_whole = set()
    for op in flat.ops:
        if op.name not in _FUSED:
            read_whole.update(op.reads)
            stored.update(op.writes)
    for op in flat.ops:
        if op.name in _FUSED:
            stored.update(number for number in op.writes if number in read_whole)
    return stored - arguments - results


def _last_reads(flat: _Flat, stored: set[int], results: set[int]) -> dict[int, int]:
    """The last step that reads each stored value, itself or through fused steps."""
    sources: dict[int, set[int]] = {}
    last: dict[int, int] = {}
    for position, op in enumerate(flat.ops):
        is_fused = op.name in _FUSED
        read: set[int] = set()
        for number in op.reads:
            read |= sources.get(number, {number}) if is_fused else {number}
        if is_fused:
            is_anew = op.name not in _COSTLY
            sources |= {each: read for each in op.writes if is_anew or each not in stored}
        if not is_fused or any(each in stored or each in results for each in op.writes):
            last |= dict.fromkeys((*read, *op.writes), position)
    return last
