"""A function of a shard, cut at its barriers into stages that run part after part.

Values are of two kinds: *shared*, the same for all parts, and *own*, one for each part. A stage is
what can be computed once the barriers before it are: its shared steps run once, its own steps once
for each part. An own value that a later stage reads is stored on the host between the two, unless
cheap steps make it again from less.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp

from jaxgraph.ops.core.closures import evaluate
from jaxgraph.parallel.streaming.flat_program import FlatProgram, Operand, Step

_NAMES = (
    "abs add and broadcast_in_dim clamp concatenate convert_element_type copy custom_jvp_call "
    "div eq erf exp exp2 expand_dims expm1 ge gt integer_pow iota is_finite le log log1p "
    "logistic lt max min mul name ne neg not or pow random_bits random_fold_in random_unwrap "
    "random_wrap rem reshape rsqrt select_n shift_left shift_right_arithmetic "
    "shift_right_logical sign slice sqrt square squeeze stop_gradient sub tanh transpose xor "
)
_CHEAP = frozenset(_NAMES.split())
"""Steps that cost less than a way to the host and back."""


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """Steps that run as one program.

    Attributes:
      steps: in order.
      reads: numbers of the values that it takes.
      writes: numbers of the values that it returns.
    """

    steps: tuple[Step, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]

    def run(self, values: dict[int, Any], constants: dict[int, Any]) -> dict[int, Any]:
        """Computes what it writes from what it reads."""
        env = constants | values
        for step in self.steps:
            results = evaluate(step.equation, [_value(env, each) for each in step.operands])
            env |= dict(zip(step.results, results, strict=True))
        return {each: jnp.asarray(env[each]) for each in self.writes}


def _value(env: dict[int, Any], operand: Operand) -> Any:
    if isinstance(operand, int):
        return env[operand]
    aval: Any = operand.aval
    return jnp.asarray(operand.val, aval.dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class Stage:
    """The steps between two barriers.

    Attributes:
      shared: those that run once, before `own`.
      own: those that run for every part.
      aggregations: reductions of messages whose inputs exist after this stage.
      sums: sums over all parts of what `own` writes.
    """

    shared: Piece
    own: Piece
    aggregations: tuple[Step, ...]
    sums: tuple[Step, ...]


class StagedProgram:
    """A function of a shard, cut at its barriers.

    Attributes:
      stages: in order.
      own: numbers of all values that parts have one each of.
      active: numbers of the values that depend on the arguments that are differentiated.

    Args:
      program: its steps.
      graph_values: numbers of the arguments that are arrays of a part.
      differentiated: numbers of arguments.
    """

    def __init__(
        self, program: FlatProgram, graph_values: Iterable[int], differentiated: Iterable[int]
    ) -> None:
        self.program, self.graph_values = program, frozenset(graph_values)
        self.own, self.active = set(self.graph_values), set(differentiated)
        self._maker = {number: step for step in program.steps for number in step.results}
        self._level = dict.fromkeys((*program.arguments, *program.constants), 0)
        for step in program.steps:
            self._place(step)
        self.stages = self._stages()

    def _place(self, step: Step) -> None:
        is_barrier = step.is_aggregation or step.is_sum
        level = max((self._level[each] for each in step.reads), default=0)
        self._level |= dict.fromkeys(step.results, level + is_barrier)
        is_own = any(each in self.own for each in step.reads)
        if step.is_sum and not is_own:
            raise ValueError(
                "shard.sum was given a value that is the same for every part; it would be counted "
                "once per part. Sum what differs between parts, such as a sum over own rows"
            )
        if step.is_aggregation or (is_own and not step.is_sum):
            self.own |= set(step.results)
        if any(each in self.active for each in step.reads):
            self.active |= {each for each in step.results if self._is_differentiable(each)}

    def _is_differentiable(self, number: int) -> bool:
        return jnp.issubdtype(self.program.types[number].dtype, jnp.inexact)

    def _stages(self) -> list[Stage]:
        levels = range(max(self._level.values(), default=0) + 1)
        aggregations, sums = (
            [tuple(s for s in steps if self._level[s.results[0]] == level + 1) for level in levels]
            for steps in (
                [step for step in self.program.steps if step.is_aggregation],
                [step for step in self.program.steps if step.is_sum],
            )
        )
        # What aggregations read is stored in any case.
        sent = {number for steps in aggregations for step in steps for number in step.reads}
        stored = (sent & self.own) - self.graph_values
        returned = {each for each in self.program.outputs if isinstance(each, int)}
        shared = returned - self.own
        pieces: list[Piece] = []
        for level in reversed(levels):
            barriers = (*aggregations[level], *sums[level])
            of_barriers = {each for step in barriers for each in step.reads}
            read_here = of_barriers & self.own
            wanted = self._made_here(level, stored | read_here | returned)
            at_hand = {each for each in stored if self._level[each] < level}
            piece = self._own_piece(level, wanted, at_hand | read_here)
            read_here |= self.own.intersection(piece.reads)
            stored |= {n for n in read_here - self.graph_values if self._level[n] < level}
            shared |= of_barriers.union(piece.reads) - self.own
            pieces.append(piece)
        shared_pieces = self._shared_pieces(levels, shared)
        stages = zip(shared_pieces, pieces[::-1], aggregations, sums, strict=True)
        return [Stage(*each) for each in stages]

    def _made_here(self, level: int, numbers: set[int]) -> set[int]:
        """Those of some values that own steps of a level make."""
        own = (numbers & self.own) - self.graph_values
        return {n for n in own if self._level[n] == level and not self._is_aggregated(n)}

    def _is_aggregated(self, number: int) -> bool:
        step = self._maker.get(number)
        return step is not None and step.is_aggregation

    def _own_piece(self, level: int, wanted: set[int], crossing: set[int]) -> Piece:
        """The steps that make some own values of a level; `crossing` are stored in any case."""
        chosen: set[Step] = set()
        reads: set[int] = set()
        costs: dict[int, float] = {}

        def is_given(number: int) -> bool:
            if number in self.own:
                return number in self.graph_values or self._is_aggregated(number)
            return not self._is_made_of_less(number)

        def cost(number: int) -> float:
            """Bytes that must be stored for a value of an earlier level."""
            if number not in costs:
                costs[number] = self._bytes(number)
                if number in crossing or number in self.graph_values or number not in self.own:
                    costs[number] = 0.0
                elif not self._is_aggregated(number) and self._maker[number].name in _CHEAP:
                    again = sum(cost(each) for each in self._maker[number].reads)
                    costs[number] = min(costs[number], again)
            return costs[number]

        def visit(number: int) -> None:
            if number in self.program.constants or number in reads:
                return
            if is_given(number):
                reads.add(number)
                return
            step = self._maker[number]
            if step in chosen:
                return
            if number in self.own and self._level[number] < level:
                again = step.name in _CHEAP and number not in crossing
                if not again or sum(cost(each) for each in step.reads) >= self._bytes(number):
                    reads.add(number)
                    crossing.add(number)
                    costs.clear()
                    return
            chosen.add(step)
            for each in step.reads:
                visit(each)

        for number in sorted(wanted):
            visit(number)
        steps = tuple(step for step in self.program.steps if step in chosen)
        return Piece(steps, tuple(sorted(reads)), tuple(sorted(wanted)))

    def _shared_pieces(self, levels: range, wanted: set[int]) -> list[Piece]:
        """For each level, the shared steps that make the wanted values."""
        pieces: list[Piece] = []
        for level in reversed(levels):
            here = {each for each in wanted if self._level[each] == level and self._is_made(each)}
            steps, need = [], set(here)
            for step in reversed(self.program.steps):
                first = step.results[0]
                is_here = self._is_made(first) and self._level[first] == level
                if is_here and need.intersection(step.results):
                    steps.append(step)
                    need |= set(step.reads)
            made = {number for step in steps for number in step.results}
            reads = need - made - set(self.program.constants)
            wanted |= reads
            pieces.append(Piece(tuple(reversed(steps)), tuple(sorted(reads)), tuple(sorted(here))))
        pieces.reverse()
        return pieces

    def _is_made(self, number: int) -> bool:
        """True for a shared value that a step makes, and no barrier."""
        step = self._maker.get(number)
        return step is not None and number not in self.own and not step.is_sum

    def _is_made_of_less(self, number: int) -> bool:
        """True for a shared value that a cheap step makes of fewer bytes, such as zeros."""
        step = self._maker.get(number)
        if step is None or step.is_sum or step.name not in _CHEAP:
            return False
        return sum(map(self._bytes, step.reads)) < self._bytes(number)

    def _bytes(self, number: int) -> int:
        aval = self.program.types[number]
        size = getattr(aval.dtype, "itemsize", 8)
        return math.prod(aval.shape) * size
