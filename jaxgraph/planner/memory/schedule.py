"""Schedules of fetches, saves, drops and operations, and a simulator that executes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from jaxgraph.planner.memory.dataflow import Dataflow, Operation


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
        if the host has no copy. It is dropped unasked once nothing reads it.
        """
        return cls(dataflow, tuple(_actions(dataflow, steps)))


def _actions(dataflow: Dataflow, steps: Sequence[Step]) -> Iterator[Action]:
    on_host = {each.key for each in dataflow.tensors if each.on_host}
    results = {each.key for each in dataflow.tensors if each.is_result}
    on_device: dict[str, None] = {}

    def leave(keys: Iterable[str], wanted: Collection[str]) -> Iterator[Action]:
        """Drops tensors, and saves first those that the host wants and has not."""
        for key in keys:
            if key in wanted and key not in on_host:
                yield Action("save", key)
                on_host.add(key)
            del on_device[key]
            yield Action("drop", key)

    for now, (operation, drops) in enumerate(steps):
        yield from leave([key for key in on_device if key in drops], dataflow.bytes)
        for key in operation.reads:
            if key not in on_device:
                on_device[key] = None
                yield Action("fetch", key)
        on_device |= dict.fromkeys(operation.writes)
        yield Action("run", operation.name)
        still_read = {key for later in steps[now + 1 :] for key in later.operation.reads}
        yield from leave([key for key in on_device if key not in still_read], results)


@dataclasses.dataclass(frozen=True)
class Usage:
    """The cost of a schedule.

    Attributes:
      fetched, saved: bytes from the host to the device, and back.
      peak: the most bytes on the device at once.
    """

    fetched: int
    saved: int
    peak: int

    @property
    def transferred(self) -> int:
        """Bytes between host and device, both ways."""
        return self.fetched + self.saved


def simulate(schedule: MemorySchedule, capacity: int) -> Usage:
    """Executes a schedule and counts."""
    flow = schedule.dataflow
    operations = {each.name: each for each in flow.operations}
    on_host = {each.key for each in flow.tensors if each.on_host}
    on_device, done = set[str](), set[str]()
    moved = {"fetch": 0, "save": 0}
    peak = 0
    for kind, name in schedule.actions:
        needed = operations[name].reads if kind == "run" else (name,)
        absent = [key for key in needed if key not in (on_host if kind == "fetch" else on_device)]
        if absent:
            raise ValueError(f"{kind} {name}: {absent[0]} is not there")
        if kind == "run":
            done.add(name)
            on_device.update(operations[name].writes)
        elif kind == "drop":
            on_device.remove(name)
        else:
            moved[kind] += flow.bytes[name]
            (on_device if kind == "fetch" else on_host).add(name)
        peak = max(peak, flow.size(on_device))
        if peak > capacity:
            raise ValueError(f"{kind} {name}: the device holds {peak:,} bytes of {capacity:,}")
    lost = [each.key for each in flow.tensors if each.is_result and each.key not in on_host]
    lost += [name for name in operations if name not in done]
    if lost:
        raise ValueError(f"the schedule does not bring {lost[0]} about")
    return Usage(moved["fetch"], moved["save"], peak)
