"""Contiguous ranges of nodes whose slowest part costs least, halo and padding included.

ROC (section 4.2) finds splitting points by binary search on prefix sums of a cost per vertex. Here
the search is for the cost of the slowest part: a bound is feasible if the longest ranges under it
reach the last node. Halo rows are no sum over vertices: for one start of a range, one pass over the
edges after it counts them for all ends. So trying a bound takes time linear in the edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.partition.assignment import Partition
from jaxgraph.partition.node_cost import NodeCost
from jaxgraph.partition.report import count_halo_pairs
from jaxgraph.partition.sorting import counting_argsort, index_dtype, inverse_permutation

_PRECISION = 2e-3
"""Relative precision of the slowest part's cost. Predictions err by over ten times as much."""
_CAPS = 24
"""Bounds tried for the number of nodes of the largest part, if padding has a cost."""


def cheapest_ranges(
    graph: Graph, node_cost: NodeCost, ranks: Sequence[np.ndarray | None], num_parts: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Cuts each of some orders by ``cost_ranges``, and keeps that with the cheapest slowest part.

    The costs that are compared are whole: with room for halo rows, which no range has by itself.
    """
    found = []
    for rank in ranks:
        order = np.arange(graph.num_nodes) if rank is None else inverse_permutation(rank)
        sizes = np.diff(cost_ranges(graph, node_cost, order, num_parts))
        assignment = np.empty(graph.num_nodes, np.int32)
        assignment[order] = np.repeat(np.arange(num_parts, dtype=np.int32), sizes)
        found.append((assignment, rank))
    if len(found) == 1:
        return found[0]
    slowest = []
    for assignment, _ in found:
        pairs = count_halo_pairs(graph, Partition(assignment, num_parts))
        slowest.append(node_cost.of_parts(assignment, pairs).max())
    return found[int(np.argmin(slowest))]


def cost_ranges(
    graph: Graph, node_cost: NodeCost, by_rank: np.ndarray, num_parts: int
) -> np.ndarray:
    """Cuts an order of the nodes into ranges, none of them empty, with the cheapest slowest part.

        minimise  max_p cost_p  over  0 = b_0 < b_1 < ... < b_P = num_nodes

    Without halo, a bound takes O(P log V) after one pass for the prefix sums. With halo, bounds are
    bisected between the best cost without it and the slowest part of those ranges with it, until
    the interval is 0.2% of the cost. The result is the best, to this precision, if no range costs
    more than one that contains it, which holds if a halo row costs no more than a node. It is never
    worse than the ranges that ignore the halo.

    References:
        ROC, section 4.2.
    """
    line = _Line.of(node_cost, by_rank)
    cap = _best_cap(line, num_parts)
    bound, cuts = _least_bound(line, num_parts, cap)
    if not node_cost.reads_halo or num_parts == 1:
        return cuts
    edges = _Edges.of(graph, by_rank)
    best, cost = cuts, _slowest(line, edges, cuts)
    low = bound
    while cost - low > _PRECISION * cost:
        middle = (low + cost) / 2
        found = _greedy(line, edges, num_parts, cap, middle)
        if found is None:
            low = middle
            continue
        best, cost = found, min(middle, _slowest(line, edges, found))
    return best


@dataclass(frozen=True, eq=False)
class _Line:
    """Prefix sums of the costs along the order, each float64 [num_nodes + 1]."""

    cost: NodeCost
    prefix: np.ndarray
    missed: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, cost: NodeCost, by_rank: np.ndarray) -> _Line:
        def sums(costs: np.ndarray) -> np.ndarray:
            return np.concatenate([[0.0], np.cumsum(costs[by_rank])])

        return cls(cost, sums(cost.per_node), tuple(sums(miss.per_node) for miss in cost.misses))

    @property
    def num_nodes(self) -> int:
        return self.prefix.size - 1

    def costs(self, start: int, ends: np.ndarray, halo_rows: np.ndarray) -> np.ndarray:
        """Returns the costs of ranges from a start to some ends, without padding and `per_part`."""
        costs = self.prefix[ends] - self.prefix[start] + self.cost.per_halo_row * halo_rows
        for miss, sums in zip(self.cost.misses, self.missed, strict=True):
            costs += (sums[ends] - sums[start]) * miss.share(ends - start + halo_rows)
        return costs


def _best_cap(line: _Line, num_parts: int) -> int:
    """Finds the bound on the nodes of a part at which the slowest part, padded, costs least."""
    least = -(-line.num_nodes // num_parts)
    free = line.num_nodes - num_parts + 1
    if line.cost.per_padded_row == 0 or num_parts == 1:
        return free
    caps = np.unique(np.geomspace(least, max(least, free), _CAPS).astype(int))
    totals = [
        _least_bound(line, num_parts, int(cap))[0] + line.cost.per_padded_row * cap for cap in caps
    ]
    return int(caps[int(np.argmin(totals))])


def _least_bound(line: _Line, num_parts: int, cap: int) -> tuple[float, np.ndarray]:
    """Finds the cheapest slowest part without halo, and its ranges of at most `cap` nodes."""
    prefix = line.prefix
    if prefix[-1] == 0:
        prefix = np.arange(prefix.size, dtype=np.float64)
    low = prefix[-1] / num_parts
    high = low + float(np.max(np.diff(prefix)))
    cuts = _reach(prefix, num_parts, cap, high)
    while cuts is None:  # The cap can ask for more than a node over the mean.
        high *= 2
        cuts = _reach(prefix, num_parts, cap, high)
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        found = _reach(prefix, num_parts, cap, middle)
        if found is None:
            low = middle
        else:
            cuts = found
            loads = np.diff(prefix[found])
            high = min(middle, float(loads.max()))
    return low, cuts


def _reach(prefix: np.ndarray, num_parts: int, cap: int, bound: float) -> np.ndarray | None:
    """Cuts the longest ranges under a bound and a cap; None if they end too early."""
    num_nodes = prefix.size - 1
    cuts = [0]
    for part in range(num_parts):
        start = cuts[-1]
        # The prefix sums round, so that a range of exactly the bound may seem to be above it.
        slack = 1e-12 * prefix[-1]
        end = int(np.searchsorted(prefix, prefix[start] + bound + slack, side="right")) - 1
        end = min(end, start + cap, num_nodes - (num_parts - 1 - part))
        if end <= start:
            return None
        cuts.append(end)
    return np.array(cuts, np.int64) if cuts[-1] == num_nodes else None


@dataclass(frozen=True, eq=False)
class _Edges:
    """The edges by position of their receiver.

    Args:
        starts: int64 [num_nodes + 1], where the edges of each receiver start.
        receivers, senders: int [num_edges], the position of each end.
        previous: int [num_edges], the last position before the edge's receiver, or the receiver's
            own, that an edge of the same sender entered; -1: none.
    """

    starts: np.ndarray
    receivers: np.ndarray
    senders: np.ndarray
    previous: np.ndarray

    @classmethod
    def of(cls, graph: Graph, by_rank: np.ndarray) -> _Edges:
        num_nodes = graph.num_nodes
        dtype = index_dtype(num_nodes)
        place = np.empty(num_nodes, dtype)
        place[by_rank] = np.arange(num_nodes, dtype=dtype)
        receivers, senders = place[graph.receivers], place[graph.senders]
        order = counting_argsort(receivers, num_nodes)
        receivers, senders = receivers[order], senders[order]
        by_sender = counting_argsort(senders, num_nodes)
        theirs = receivers[by_sender]
        same = np.diff(senders[by_sender], prepend=-1) == 0
        previous = np.empty_like(receivers)
        previous[by_sender] = np.where(same, np.roll(theirs, 1), -1)
        starts = np.searchsorted(receivers, np.arange(num_nodes + 1, dtype=dtype))
        return cls(starts, receivers, senders, previous)

    def halo_rows(self, start: int, end: int) -> np.ndarray:
        """Counts the halo of the ranges from `start` to each of start + 1, ..., end."""
        span = slice(self.starts[start], self.starts[end])
        first = np.flatnonzero(self.previous[span] < start)
        receivers = self.receivers[span][first] - start
        offset = self.senders[span][first] - start
        # A sender before its receiver, but in the range, is in every range that has the receiver.
        outside = (offset < 0) | (offset > receivers)
        size = end - start
        rows = np.bincount(receivers[outside], minlength=size)
        # A sender after its receiver is no halo row of a range that reaches the sender.
        reached = offset[outside & (offset >= 0) & (offset < size)]
        return np.cumsum(rows - np.bincount(reached, minlength=size))


def _slowest(line: _Line, edges: _Edges, cuts: np.ndarray) -> float:
    """Returns the cost of the slowest of some ranges, without padding and `per_part`."""
    costs = []
    for start, end in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        halo = edges.halo_rows(start, end)[-1:]
        costs.append(float(line.costs(start, np.array([end]), halo)[0]))
    return max(costs)


def _greedy(
    line: _Line, edges: _Edges, num_parts: int, cap: int, bound: float
) -> np.ndarray | None:
    """Cuts the longest ranges under a bound, halo included; None if they end too early."""
    cuts = [0]
    for part in range(num_parts):
        start = cuts[-1]
        furthest = int(np.searchsorted(line.prefix, line.prefix[start] + bound, side="right")) - 1
        furthest = min(furthest, start + cap, line.num_nodes - (num_parts - 1 - part))
        if furthest <= start:
            return None
        ends = np.arange(start + 1, furthest + 1)
        costs = line.costs(start, ends, edges.halo_rows(start, furthest))
        possible = np.flatnonzero(costs <= bound)
        if possible.size == 0:
            return None
        cuts.append(int(ends[possible[-1]]))
    return np.array(cuts, np.int64) if cuts[-1] == line.num_nodes else None
