"""Memory schedules by simple rules: caches that drop tensors by rank."""

from __future__ import annotations

from collections.abc import Callable

from jaxgraph.planner.memory.dataflow import Dataflow
from jaxgraph.planner.memory.schedule import MemorySchedule, Step


def check_capacity(dataflow: Dataflow, capacity: int) -> None:
    """Raises ValueError unless every operation fits the device with all its tensors."""
    least, operation = dataflow.least_capacity()
    if capacity < least:
        raise ValueError(
            f"the device has {capacity:,} bytes, and {operation.name} alone needs {least:,}: the "
            "least that works"
        )


def least_recently_used(dataflow: Dataflow, capacity: int) -> MemorySchedule:
    """Drops the least recently used tensor when an operation needs room."""
    uses = [operation.tensors for operation in dataflow.operations]

    def last_use(key: str, now: int) -> int:
        return max(index for index in range(now) if key in uses[index])

    return _evicting(dataflow, capacity, last_use)


def furthest_read(dataflow: Dataflow, capacity: int) -> MemorySchedule:
    """Drops the tensor whose next read is furthest ahead; arguments as `least_recently_used`.

    It moves the fewest bytes if all tensors have one size and a copy on the host, else nearly so.

    References:
      Belady, "A study of replacement algorithms for a virtual-storage computer", 1966.
    """
    reads = [frozenset(operation.reads) for operation in dataflow.operations]

    def next_read(key: str, now: int) -> int:
        return -min(index for index in range(now, len(reads)) if key in reads[index])

    return _evicting(dataflow, capacity, next_read)


def _evicting(dataflow: Dataflow, capacity: int, rank: Callable[[str, int], int]) -> MemorySchedule:
    """Drops the tensors of the lowest rank first, as many as an operation needs."""
    check_capacity(dataflow, capacity)
    later: list[frozenset[str]] = [frozenset()]
    for operation in reversed(dataflow.operations):
        later.append(later[-1] | frozenset(operation.reads))
    later = later[-2::-1]
    on_device: frozenset[str] = frozenset()
    steps = []
    for now, operation in enumerate(dataflow.operations):
        kept = set(on_device)
        needed = operation.tensors
        for key in sorted(on_device - needed, key=lambda key: (rank(key, now), key)):
            if dataflow.size(kept | needed) <= capacity:
                break
            kept.remove(key)
        steps.append(Step(operation, on_device - kept))
        on_device = frozenset(kept | needed) & later[now]
    return MemorySchedule.of_steps(dataflow, steps)
