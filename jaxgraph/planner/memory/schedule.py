"""Schedules of fetches, saves, drops and operations, and a simulator that executes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from jaxgraph.planner.memory.dataflow import Dataflow, Operation

__all__ = ["Action", "Line", "MemorySchedule", "Step", "Usage", "simulate"]


class Action(NamedTuple):
    """One action.

    Attributes:
      kind: "fetch" from the host to the device, "save" to the host, "drop" from the device, or
        "run".
      name: key of the tensor, or name of the operation that runs.
    """

    kind: str
    name: str


class Step(NamedTuple):
    """An operation, and the tensors that leave the device before it.

    Attributes:
      operation: the operation.
      drops: keys of tensors on the device.
    """

    operation: Operation
    drops: frozenset[str]


class Line(NamedTuple):
    """The actions for one operation, in this order; tensors by key.

    Attributes:
      operation: its name.
      saves, drops, fetches: actions before it runs.
      kept: tensors on the device while it runs that it does not use.
    """

    operation: str
    saves: tuple[str, ...]
    drops: tuple[str, ...]
    fetches: tuple[str, ...]
    kept: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class MemorySchedule:
    """The actions of a training step in order.

    Attributes:
      dataflow: the step.
      actions: in order.
    """

    dataflow: Dataflow
    actions: tuple[Action, ...]

    @classmethod
    def of_steps(cls, dataflow: Dataflow, steps: Sequence[Step]) -> MemorySchedule:
        """The schedule of steps.

        An operation's inputs are fetched when it needs them. A tensor is saved when it is dropped,
        if it is read again before it is written again and the host has no copy. It is dropped
        unasked once nothing reads it.

        Args:
          dataflow: the operations and their tensors.
          steps: every operation once or, where it is repeated, more often.

        Returns:
          The schedule.
        """
        return cls(dataflow, tuple(_actions(dataflow, steps)))

    def lines(self) -> Iterator[Line]:
        """The actions, a line for every operation that runs."""
        uses = {each.name: each.tensors for each in self.dataflow.operations}
        writes = {each.name: each.writes for each in self.dataflow.operations}
        on_device: dict[str, None] = {}
        done: dict[str, list[str]] = {"save": [], "drop": [], "fetch": []}
        for kind, name in self.actions:
            if kind == "run":
                kept = tuple(key for key in on_device if key not in uses[name])
                saves, drops, fetches = (tuple(names) for names in done.values())
                yield Line(name, saves, drops, fetches, kept)
                on_device |= dict.fromkeys(writes[name])
                done = {"save": [], "drop": [], "fetch": []}
                continue
            done[kind].append(name)
            if kind == "drop":
                del on_device[name]
            elif kind == "fetch":
                on_device[name] = None


def _actions(dataflow: Dataflow, steps: Sequence[Step]) -> Iterator[Action]:
    on_host = {each.key for each in dataflow.tensors if each.on_host}
    results = {each.key for each in dataflow.tensors if each.is_result}
    is_read_next = _next_is_read([step.operation for step in steps])
    on_device: dict[str, None] = {}
    for (operation, drops), still_read in zip(steps, is_read_next, strict=True):
        leaving = [key for key in on_device if key in drops]
        for key in leaving:
            if key not in on_host:
                yield Action("save", key)
                on_host.add(key)
            del on_device[key]
            yield Action("drop", key)
        for key in operation.reads:
            if key not in on_device:
                on_device[key] = None
                yield Action("fetch", key)
        on_device |= dict.fromkeys(operation.writes)
        yield Action("run", operation.name)
        for key in [key for key in on_device if key not in still_read]:
            if key in results and key not in on_host:
                yield Action("save", key)
                on_host.add(key)
            del on_device[key]
            yield Action("drop", key)


def _next_is_read(operations: Sequence[Operation]) -> list[frozenset[str]]:
    """For every step the tensors that are read after it before they are written."""
    found: list[frozenset[str]] = []
    still_read: frozenset[str] = frozenset()
    for operation in reversed(operations):
        found.append(still_read)
        still_read = (still_read - frozenset(operation.writes)) | frozenset(operation.reads)
    return found[::-1]


@dataclasses.dataclass(frozen=True)
class Usage:
    """The cost of a schedule.

    Attributes:
      fetched, saved: bytes from the host to the device, and back.
      peak: the most bytes on the device at once.
      repeated_seconds, repeated_sent_bytes: time and traffic of operations that run again.
    """

    fetched: int
    saved: int
    peak: int
    repeated_seconds: float
    repeated_sent_bytes: int

    @property
    def transferred(self) -> int:
        """Bytes between host and device, both ways."""
        return self.fetched + self.saved


def simulate(schedule: MemorySchedule, capacity: int) -> Usage:
    """Executes a schedule and counts.

    Args:
      schedule: the actions.
      capacity: bytes of the device.

    Returns:
      Its cost.

    Raises:
      ValueError: an action cannot be done, an operation does not run, or a result is lost.
    """
    memory = _Memory(schedule.dataflow, capacity)
    for action in schedule.actions:
        memory.do(action)
    flow = schedule.dataflow
    missing = [each.name for each in flow.operations if each.name not in memory.runs]
    if missing:
        raise ValueError(f"the schedule does not run {missing[0]}")
    lost = [each.key for each in flow.tensors if each.is_result and each.key not in memory.on_host]
    if lost:
        raise ValueError(f"the schedule does not save {lost[0]}, a result")
    repeated = [(memory.operations[name], count - 1) for name, count in memory.runs.items()]
    return Usage(
        memory.moved["fetch"],
        memory.moved["save"],
        memory.peak,
        sum(each.seconds * times for each, times in repeated),
        sum(each.sent_bytes * times for each, times in repeated),
    )


class _Memory:
    """The places of all tensors while a schedule is executed."""

    def __init__(self, dataflow: Dataflow, capacity: int) -> None:
        self.bytes, self.capacity = dataflow.bytes, capacity
        self.operations = {each.name: each for each in dataflow.operations}
        self.on_host = {each.key for each in dataflow.tensors if each.on_host}
        self.on_device: set[str] = set()
        self.used = self.peak = 0
        self.moved = {"fetch": 0, "save": 0}
        self.runs: dict[str, int] = {}

    def do(self, action: Action) -> None:
        kind, name = action
        if kind == "run":
            self._run(self.operations[name])
        elif kind == "fetch":
            if name not in self.on_host:
                raise ValueError(f"{name} is fetched, but the host has no copy; save it first")
            self._bring([name], f"{name} is fetched")
            self.moved["fetch"] += self.bytes[name]
        else:
            if name not in self.on_device:
                raise ValueError(f"{kind} {name}: it is not on the device")
            if kind == "save":
                self.on_host.add(name)
                self.moved["save"] += self.bytes[name]
            else:
                self.on_device.remove(name)
                self.used -= self.bytes[name]

    def _run(self, operation: Operation) -> None:
        absent = sorted(set(operation.reads) - self.on_device)
        if absent:
            raise ValueError(f"{operation.name} reads {absent[0]}, which is not on the device")
        self._bring(operation.writes, f"{operation.name} runs")
        self.runs[operation.name] = self.runs.get(operation.name, 0) + 1

    def _bring(self, keys: Iterable[str], when: str) -> None:
        new = set(keys) - self.on_device
        self.on_device |= new
        self.used += sum(self.bytes[key] for key in new)
        self.peak = max(self.peak, self.used)
        if self.used > self.capacity:
            raise ValueError(
                f"when {when}, the device holds {self.used:,} bytes of {self.capacity:,}; drop a "
                "tensor before"
            )
