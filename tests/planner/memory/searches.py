"""An exhaustive search over where every tensor is, which shares no code with the planner."""

import heapq
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from jaxgraph.planner.memory.dataflow import Dataflow

Place = tuple[Any, frozenset[str], frozenset[str]]


def _cheapest(start: Place, follow: Any, is_final: Any) -> float:
    """Dijkstra's algorithm."""
    ties = itertools.count()
    best, heap = {start: 0.0}, [(0.0, next(ties), start)]
    while heap:
        cost, _, place = heapq.heappop(heap)
        if is_final(place):
            return cost
        if cost > best[place]:
            continue
        for price, after in follow(place):
            if cost + price < best.get(after, float("inf")):
                best[after] = cost + price
                heapq.heappush(heap, (cost + price, next(ties), after))
    raise AssertionError("no way")


def _moves(flow: Dataflow, place: Place) -> Iterator[tuple[float, Place]]:
    """Every fetch, save and drop."""
    done, device, host = place
    for tensor in flow.tensors:
        key, size = tensor.key, tensor.bytes
        if key in host - device:
            yield size, (done, device | {key}, host)
        if key in device - host:
            yield size, (done, device, host | {key})
        if key in device:
            yield 0, (done, device - {key}, host)


def _fitting(
    flow: Dataflow, capacity: int, places: Iterable[tuple[float, Place]]
) -> Iterator[tuple[float, Place]]:
    for price, place in places:
        if sum(each.bytes for each in flow.tensors if each.key in place[1]) <= capacity:
            yield price, place


def _start(flow: Dataflow, done: Any) -> Place:
    return done, frozenset(), frozenset(each.key for each in flow.tensors if each.on_host)


def least_bytes(flow: Dataflow, capacity: int) -> float:
    """The fewest bytes between host and device, over all orders."""
    results = {each.key for each in flow.tensors if each.is_result}

    def follow(place: Place) -> Iterator[tuple[float, Place]]:
        done, device, host = place
        runs = [
            (0, (done | {each.name}, device | set(each.writes), host))
            for each in flow.operations
            if each.name not in done and set(each.reads) <= device
        ]
        yield from _fitting(flow, capacity, [*_moves(flow, place), *runs])

    def is_final(place: Place) -> bool:
        return len(place[0]) == len(flow.operations) and results <= place[2]

    return _cheapest(_start(flow, frozenset()), follow, is_final)
