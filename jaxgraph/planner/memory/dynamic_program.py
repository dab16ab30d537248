"""The schedule that moves the fewest bytes between host and device: ROC's algorithm 1.

Jia et al., "Improving the accuracy, scalability, and performance of graph neural networks with
ROC", 2020, section 5. A state S is a set of operations that have run, valid if it holds all
operations that they depend on. Its active tensors A(S) have been read or written by S and will be
read outside of it. COST(S, T) is the least transfer that runs S and leaves T, a subset of A(S), on
the device.

**Differences from the paper.** As printed, line 14 takes T' = (T \\ OUT(o)) ∩ A(S') as the tensors
on the device before the last operation o, and the recursion starts from T = ∅. A tensor that o
reads for the last time is not in T, so it is never in T' either: the algorithm caches nothing. For
three operations x -> a -> b -> c on tensors of size 1, and room for all, it fetches x, a and b, 3,
where the optimum is 1. Here T' ranges over the subsets of A(S') that fit beside the tensors of o.
Saves count too: a tensor without a copy on the host is saved before it is dropped, so a state also
tells which tensors of T the host has. The recursion runs forward, from the states of n operations
to those of n + 1.

**What the search leaves out, and why none of it can be better.**

- Early fetches, and drops that no operation needs room for: later ones move no more bytes. So
  before an operation only maximal sets stay, to which no further tensor could be added.
- A state (T, clean) of S that another state of S can be turned into at no more than its cost, by
  fetches of missing tensors and saves of surplus or unsaved ones: whatever follows costs the other
  one no more.
- A state whose cost, plus the least that follows, reaches that of a known schedule. Active tensors
  that are not on the device and inputs not yet read must be fetched, and results saved. In any
  order, a tensor must also outlast an operation o still to run if an operation that o depends on
  uses it and one that depends on o reads it. Those that do not fit beside o are fetched once more,
  and saved if the host has no copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

from jaxgraph.planner.memory.cache_policies import (
    check_capacity,
    furthest_read,
    least_recently_used,
)
from jaxgraph.planner.memory.dataflow import Dataflow, Operation
from jaxgraph.planner.memory.schedule import MemorySchedule, Step, simulate


def active_tensors(dataflow: Dataflow, done: frozenset[str]) -> frozenset[str]:
    """A(S): tensors that operations of S read or wrote and that others will read."""
    touched, wanted = set[str](), set[str]()
    for operation in dataflow.operations:
        if operation.name in done:
            touched |= operation.tensors
        else:
            wanted |= set(operation.reads)
    return frozenset(touched & wanted)


def _ready(dataflow: Dataflow) -> Callable[[frozenset[str]], list[Operation]]:
    """Makes a function from the operations that have run to those that may follow."""
    needs = {
        each.name: frozenset(dataflow.writers[k].name for k in each.reads if k in dataflow.writers)
        for each in dataflow.operations
    }

    def ready(done: frozenset[str]) -> list[Operation]:
        left = [each for each in dataflow.operations if each.name not in done]
        return [each for each in left if needs[each.name] <= done]

    return ready


class _State(NamedTuple):
    """A way to run some operations. Sets of tensors are bits of integers.

    Attributes:
      cost: bytes moved.
      on_device: T.
      clean: the tensors of T of which the host has a copy.
      steps: the steps so far, as nested pairs (earlier steps, step).
    """

    cost: int
    on_device: int
    clean: int
    steps: tuple | None


def least_transfer(dataflow: Dataflow, capacity: int) -> MemorySchedule:
    """Finds the schedule that moves the fewest bytes between host and device.

    The search covers all orders of the operations. Nothing is recomputed.
    """
    check_capacity(dataflow, capacity)
    rules = [rule(dataflow, capacity) for rule in (furthest_read, least_recently_used)]
    costs = [simulate(each, capacity).transferred for each in rules]
    search = _Search(dataflow, capacity, bound=min(costs))
    level = {frozenset[str](): [_State(0, 0, 0, None)]}
    for _ in dataflow.operations:
        level = search.next_level(level)
    if not any(level.values()):
        return rules[costs.index(min(costs))]
    (final,) = level.values()
    steps = []
    link = min(final, key=lambda state: state.cost).steps
    while link is not None:
        link, step = link
        steps.append(step)
    return MemorySchedule.of_steps(dataflow, steps[::-1])


class _Search:
    """The dynamic program over one dataflow, from states of n operations to those of n + 1."""

    def __init__(self, dataflow: Dataflow, capacity: int, bound: int) -> None:
        self.dataflow, self.capacity, self.bound = dataflow, capacity, bound
        self.ready = _ready(dataflow)
        self.keys = [each.key for each in dataflow.tensors]
        self.sizes = [each.bytes for each in dataflow.tensors]
        self.bit = {key: 1 << index for index, key in enumerate(self.keys)}
        self.size = cache(lambda bits: sum(self.sizes[index] for index in _members(bits)))
        self.weights = np.array(self.sizes, np.float64)
        self.around = self._around()
        self.inputs = self.bits(each.key for each in dataflow.tensors if each.on_host)
        self.results = self.bits(each.key for each in dataflow.tensors if each.is_result)

    def bits(self, keys: Iterable[str]) -> int:
        return sum(self.bit[key] for key in set(keys))

    def _around(self) -> dict[str, tuple[int, int, int]]:
        """By operation: its tensors, those used before it in any order, those read after it."""
        writers, operations = self.dataflow.writers, self.dataflow.operations
        used = {each.name: self.bits(each.tensors) for each in operations}
        before: dict[str, set[str]] = {}
        for each in operations:
            direct = {writers[key].name for key in each.reads if key in writers}
            before[each.name] = direct.union(*(before[name] for name in direct))
        return {
            name: (
                used[name],
                self.bits(key for e in operations if e.name in before[name] for key in e.tensors),
                self.bits(key for e in operations if name in before[e.name] for key in e.reads),
            )
            for name in used
        }

    def next_level(
        self, level: dict[frozenset[str], list[_State]]
    ) -> dict[frozenset[str], list[_State]]:
        """Extends the states by one operation, and prunes them."""
        found: dict[frozenset[str], dict[tuple[int, int], _State]] = {}
        for done, states in level.items():
            for operation in self.ready(done):
                after = done | {operation.name}
                best = found.setdefault(after, {})
                active = self.bits(active_tensors(self.dataflow, after))
                for state in states:
                    for each in self._after(state, operation, active):
                        key = each.on_device, each.clean
                        if key not in best or each.cost < best[key].cost:
                            best[key] = each
        kept = {done: self._promising(done, list(best.values())) for done, best in found.items()}
        return {done: self._undominated(states) for done, states in kept.items() if states}

    def _promising(self, done: frozenset[str], states: list[_State]) -> list[_State]:
        """Keeps the states whose cost plus the least that follows is below the bound."""
        here = self._matrix([state.on_device for state in states])
        clean = here & self._matrix([state.clean for state in states])
        left = [each for each in self.dataflow.operations if each.name not in done]
        active = self.bits(active_tensors(self.dataflow, done))
        touched = self.bits(
            key for each in self.dataflow.operations if each.name in done for key in each.tensors
        )
        at_host = self.inputs | self.results
        ahead = self.bits(key for each in left for key in each.tensors) & ~touched
        once = self.size(active) + self.size(ahead & at_host)
        least = np.array([state.cost for state in states]) + once - self._bytes(here, active)
        more = np.zeros(len(states))
        for operation in left:
            used, before, after = self.around[operation.name]
            there, coming = active & after & ~used, ahead & before & after & ~used
            room = self.capacity - self.size(used)
            excess = np.maximum(self._bytes(here, there) + self.size(coming) - room, 0)
            unsaved = excess - self._bytes(clean, there) - self.size(coming & at_host)
            more = np.maximum(more, excess + np.maximum(unsaved, 0))
        is_kept = least + more < self.bound
        return [state for state, kept in zip(states, is_kept, strict=True) if kept]

    def _bytes(self, rows: np.ndarray, bits: int) -> np.ndarray:
        """Bytes of the tensors `bits` in each row of a matrix."""
        return rows @ (self._matrix([bits])[0] * self.weights)

    def _after(self, state: _State, operation: Operation, active: int) -> Iterator[_State]:
        """Yields the states after an operation, one for each maximal set that stays."""
        reads, writes = self.bits(operation.reads), self.bits(operation.writes)
        needed = reads | writes
        here = state.on_device
        fetched = reads & ~here
        cost = state.cost + self.size(fetched) + self.size(writes & self.results)
        room = self.capacity - self.size(needed)
        for stays in self._maximal(here & ~needed, room):
            drops = here & ~needed & ~stays
            on_device = (stays | needed) & active
            clean = ((state.clean & ~drops) | fetched | (writes & self.results)) & on_device
            saved = self.size(drops & ~state.clean)
            step = Step(operation, frozenset(self.keys[index] for index in _members(drops)))
            yield _State(cost + saved, on_device, clean, (state.steps, step))

    def _maximal(self, bits: int, room: int) -> Iterator[int]:
        """Yields the subsets that fit into the room and to which no member can be added."""
        if self.size(bits) <= room:
            yield bits
            return
        members = sorted(_members(bits), key=lambda index: -self.sizes[index])
        sizes = [self.sizes[index] for index in members]
        rest = [sum(sizes[position:]) for position in range(len(sizes) + 1)]

        def chosen(position: int, taken: int, room: int, smallest_left: float) -> Iterator[int]:
            if smallest_left + rest[position] <= room:
                return  # The smallest that was left out would fit as well.
            if rest[position] <= room:
                yield taken | sum(1 << index for index in members[position:])
                return
            size = sizes[position]
            if size <= room:
                with_it = taken | 1 << members[position]
                yield from chosen(position + 1, with_it, room - size, smallest_left)
            yield from chosen(position + 1, taken, room, min(smallest_left, size))

        yield from chosen(0, 0, room, float("inf"))

    def _undominated(self, states: list[_State]) -> list[_State]:
        """Keeps the states that no other one can be turned into at no more cost."""
        states = sorted(states, key=lambda state: state.cost)
        cost = np.array([state.cost for state in states], np.float64)
        here = self._matrix([state.on_device for state in states])
        clean = self._matrix([state.clean for state in states])
        keep = np.ones(len(states), bool)
        for index in range(1, len(states)):
            if not keep[index]:
                continue
            earlier = np.flatnonzero(keep[:index])
            fetch = ~here[earlier] & here[index]
            save = here[earlier] & ~clean[earlier] & (~here[index] | clean[index])
            price = (fetch | save) @ self.weights
            keep[index] = not np.any(cost[earlier] + price <= cost[index])
        return [state for state, is_kept in zip(states, keep, strict=True) if is_kept]

    def _matrix(self, sets: list[int]) -> np.ndarray:
        """bool [sets, tensors]"""
        width = (len(self.keys) + 7) // 8
        rows = np.frombuffer(b"".join(each.to_bytes(width, "little") for each in sets), np.uint8)
        flags = np.unpackbits(rows.reshape(len(sets), width), axis=1, bitorder="little")
        return flags[:, : len(self.keys)].astype(bool)


def _members(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
