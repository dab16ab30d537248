"""Keep, offload or recompute: a choice for every tensor, by a mixed-integer program.

The timeline holds the operations of forward and backward in order. Before each operation of the
backward it holds the operations of the layer's forward that may be repeated for it, each optional.
Between two consecutive uses a tensor stays on the device (g = 1) or not. At a use it is on the
device (o = 1) because it stayed, was fetched (f) or is written. x tells whether an optional
operation runs, and s whether the tensor is saved.

    least   sum_t bytes_t (sum f_t + s_t) / host rate + sum_j x_j (seconds_j + sent_j / link rate)
    where   o = g before + f,  o >= x                      at a read     (x = 1: not optional)
            x <= o <= g before + x                         at a write
            g after <= o,  f <= s
            sum_t bytes_t (o or g of t at j) <= limit      for every operation j

Policies drop nothing within the forward or the backward of one layer: there, g after = o up to the
last use. Inputs may leave between two layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from jaxgraph.planner.memory.dataflow import Dataflow, Operation, Rates
from jaxgraph.planner.memory.schedule import MemorySchedule, Step, simulate

__all__ = ["least_memory", "plan_memory"]

_SOLVED, _INFEASIBLE = 0, 2


def plan_memory(
    dataflow: Dataflow,
    limit: int,
    rates: Rates,
    *,
    kept: Collection[str] = (),
    offload: bool = True,
) -> MemorySchedule:
    """Plans which tensors the device keeps, the host holds, and the backward recomputes.

    Args:
      dataflow: the operations, which run in its order. `seconds` and `sent_bytes` of an operation
        are the price of its repetition.
      limit: bytes of the device.
      rates: of transfers to the host and between devices.
      kept: names of tensors that stay on the device from their first use to their last.
      offload: whether the host may hold what it does not hold from the start.

    Returns:
      The schedule with the least time for transfers and repetitions within the limit.

    Raises:
      ValueError: a name of `kept` is unknown; or no choice fits the limit; the message names the
        least that works.
    """
    program = _program(dataflow, rates, kept, offload=offload)
    schedule = program.solve(limit)
    if schedule is not None:
        return schedule
    least = simulate(program.least(), program.everything).peak
    largest = dataflow.least_capacity()
    raise ValueError(
        f"memory_limit is {limit:,} bytes; the least that works is {least:,}. {largest[1].name} "
        f"alone needs {largest[0]:,}. Raise the limit, or use more devices"
    )


def least_memory(
    dataflow: Dataflow, rates: Rates, *, kept: Collection[str] = (), offload: bool = True
) -> int:
    """The least limit that `plan_memory` can keep, with the same arguments."""
    program = _program(dataflow, rates, kept, offload=offload)
    return simulate(program.least(), program.everything).peak


def _program(dataflow: Dataflow, rates: Rates, kept: Collection[str], *, offload: bool) -> _Program:
    names = sorted({each.name for each in dataflow.tensors})
    unknown = sorted(set(kept) - set(names))
    if unknown:
        raise ValueError(f"kept names {unknown[0]!r}; the dataflow has {', '.join(names)}")
    return _Program(dataflow, rates, frozenset(kept), offload=offload)


_Row = tuple[dict[int, float], float, float]
"""Factors of variables, and the bounds of their sum."""


@dataclasses.dataclass(frozen=True)
class _Slot:
    """An operation on the timeline, in the forward or backward of a layer."""

    operation: Operation
    is_optional: bool
    layer: int | None
    is_backward: bool

    @property
    def unit(self) -> tuple[int, bool] | None:
        return None if self.layer is None else (self.layer, self.is_backward)


def _timeline(dataflow: Dataflow) -> list[_Slot]:
    slots = []
    for operation in dataflow.operations:
        place = operation.layer, operation.is_backward
        slots += [_Slot(each, True, *place) for each in _repeatable(dataflow, operation)]
        slots.append(_Slot(operation, False, *place))
    return slots


def _repeatable(dataflow: Dataflow, operation: Operation) -> list[Operation]:
    """Finds the operations to repeat for the inputs of an operation of the backward."""
    found: set[str] = set()
    wanted = list(operation.reads) if operation.is_backward else []
    while wanted:
        writer = dataflow.writers.get(wanted.pop())
        if writer is None or writer.name in found or writer.layer != operation.layer:
            continue
        if writer.is_repeatable and not writer.is_backward:
            found.add(writer.name)
            wanted += writer.reads
    return [each for each in dataflow.operations if each.name in found]


class _Program:
    """The mixed-integer program of a dataflow; its first variable is the relative limit."""

    def __init__(
        self, dataflow: Dataflow, rates: Rates, kept: frozenset[str], *, offload: bool
    ) -> None:
        self.dataflow, self.rates, self.offload = dataflow, rates, offload
        self.everything = max(1, sum(dataflow.bytes.values()))
        self.slots = _timeline(dataflow)
        self.is_kept = {each.key: each.name in kept for each in dataflow.tensors}
        self.costs: list[float] = []
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.whole: list[bool] = []
        self.rows: list[_Row] = []
        self.occupied: list[dict[str, int]] = [{} for _ in self.slots]
        self._variable()
        self.runs = [self._run(slot) for slot in self.slots]
        for tensor in dataflow.tensors:
            self._add_tensor(tensor.key, tensor.on_host, tensor.is_result)

    def _variable(self, cost: float = 0.0, lower: float = 0.0, *, whole: bool = False) -> int:
        self.costs.append(cost)
        self.lower.append(lower)
        self.upper.append(1.0)
        self.whole.append(whole)
        return len(self.costs) - 1

    def _run(self, slot: _Slot) -> int:
        operation = slot.operation
        cost = operation.seconds + operation.sent_bytes / self.rates.link
        if slot.is_optional:
            return self._variable(cost, whole=True)
        return self._variable(lower=1.0)

    def _row(self, terms: Mapping[int, float], lower: float, upper: float) -> None:
        self.rows.append((dict(terms), lower, upper))

    def _add_tensor(self, key: str, on_host: bool, is_result: bool) -> None:
        seconds = self.dataflow.bytes[key] / self.rates.host
        uses = [i for i, slot in enumerate(self.slots) if key in slot.operation.tensors]
        saved = self._variable(0.0 if on_host or is_result else seconds)
        self.upper[saved] = 1.0 if on_host or self.offload else 0.0
        before: int | None = None
        for position, index in enumerate(uses):
            here = self._use(key, index, before, seconds, saved)
            if position + 1 < len(uses):
                before = self._gap(key, index, uses[position + 1 :], here)

    def _use(self, key: str, index: int, before: int | None, seconds: float, saved: int) -> int:
        """Adds o: whether a tensor is on the device while an operation uses it."""
        here = self._variable(lower=0.0 if self.slots[index].is_optional else 1.0)
        self.occupied[index][key] = here
        run = self.runs[index]
        stayed = {} if before is None else {before: -1.0}
        self._row({here: 1.0, run: -1.0}, 0.0, np.inf)
        if key in self.slots[index].operation.writes:
            self._row({here: 1.0, **stayed, run: -1.0}, -np.inf, 0.0)
        else:
            fetch = self._variable(seconds)
            self._row({here: 1.0, **stayed, fetch: -1.0}, 0.0, 0.0)
            self._row({fetch: 1.0, saved: -1.0}, -np.inf, 0.0)
        return here

    def _gap(self, key: str, index: int, later: Sequence[int], here: int) -> int:
        """Adds g: whether a tensor stays until its next use."""
        stays = self._variable(lower=1.0 if self.is_kept[key] else 0.0, whole=True)
        self._row({stays: 1.0, here: -1.0}, -np.inf, 0.0)
        unit = self.slots[index].unit
        if unit is not None and any(
            self.slots[each].unit == unit and not self.slots[each].is_optional for each in later
        ):
            self._row({stays: 1.0, here: -1.0}, 0.0, np.inf)
        for between in range(index + 1, later[0]):
            self.occupied[between][key] = stays
        return stays

    def solve(self, limit: int) -> MemorySchedule | None:
        """Finds the schedule of the least cost within a limit, or None."""
        costs = np.array(self.costs)
        costs = costs / max(costs.max(), 1e-300)
        at_most = min(limit, self.everything)
        cuts: list[_Row] = []
        while at_most > 0:
            is_set = self._solved(costs, at_most, 1.0, cuts)
            if is_set is None:
                break
            forbidden = self._forbidden(is_set, limit)
            if not forbidden:
                return self._schedule(is_set)
            cuts += forbidden
        return None

    def _forbidden(self, is_set: np.ndarray, limit: int) -> list[_Row]:
        """Makes rows that forbid choices above the limit; the solver itself has a tolerance."""
        rows: list[_Row] = []
        for used in self.occupied:
            sized = {variable: key for key, variable in used.items() if self.dataflow.bytes[key]}
            here = {variable: key for variable, key in sized.items() if is_set[variable]}
            if self.dataflow.size(here.values()) > limit:
                rows.append((dict.fromkeys(here, 1.0), -np.inf, len(here) - 1.0))
        return rows

    def least(self) -> MemorySchedule:
        """Finds the schedule of the least limit."""
        costs = np.zeros(len(self.costs))
        costs[0] = 1.0
        is_set = self._solved(costs, self.everything, 0.0, [])
        assert is_set is not None
        return self._schedule(is_set)

    def _solved(
        self, costs: np.ndarray, limit: int, lower: float, cuts: list[_Row]
    ) -> np.ndarray | None:
        """Finds the variables that are 1, if the relative limit is at least `lower`."""
        found = milp(
            costs,
            integrality=np.array(self.whole, int),
            bounds=_between(Bounds, [lower, *self.lower[1:]], self.upper),
            constraints=self._constraints(limit, cuts),
            options={"mip_rel_gap": 1e-9},
        )
        if found.status not in (_SOLVED, _INFEASIBLE):
            raise RuntimeError(f"the solver of the memory plan stopped: {found.message}")
        return found.x > 0.5 if found.status == _SOLVED else None

    def _constraints(self, limit: int, cuts: list[_Row]) -> LinearConstraint:
        rows = self.rows + cuts
        for used in self.occupied:
            shares = {variable: self.dataflow.bytes[key] / limit for key, variable in used.items()}
            rows.append(({**shares, 0: -1.0}, -np.inf, 0.0))
        factors = [factor for terms, _, _ in rows for factor in terms.values()]
        columns = [variable for terms, _, _ in rows for variable in terms]
        ends = np.cumsum([0, *(len(terms) for terms, _, _ in rows)])
        matrix = sparse.csr_array((factors, columns, ends), shape=(len(rows), len(self.costs)))
        of_rows = partial(LinearConstraint, matrix)
        return _between(of_rows, [row[1] for row in rows], [row[2] for row in rows])

    def _schedule(self, is_set: np.ndarray) -> MemorySchedule:
        steps, everything = [], frozenset(self.dataflow.bytes)
        for slot, run, used in zip(self.slots, self.runs, self.occupied, strict=True):
            if not slot.is_optional or is_set[run]:
                here = {key for key, variable in used.items() if is_set[variable]}
                steps.append(Step(slot.operation, everything - here))
        return MemorySchedule.of_steps(self.dataflow, steps)


def _between(make: Callable[..., Any], lower: Sequence[float], upper: Sequence[float]) -> Any:
    return make(np.array(lower), np.array(upper))
