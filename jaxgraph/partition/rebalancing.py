"""Moves nodes out of overfull parts, at the least cost in cut edges.

The balancing step of multilevel k-way partitioning (Karypis and Kumar, "Multilevel k-way
Partitioning Scheme for Irregular Graphs", 1998), for several weights per node at once (Karypis and
Kumar, "Multilevel Algorithms for Multi-Constraint Graph Partitioning", 1998), which pymetis does
not offer. Each round moves many nodes, so that no loop runs over nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from jaxgraph.partition.adjacency import Adjacency

# A round that moves a node lowers the excess, so this bounds only the time; a few are usual.
_MAX_ROUNDS = 100


def fill_empty_parts(assignment: np.ndarray, num_parts: int, adjacency: Adjacency) -> np.ndarray:
    """Gives every empty part the node with the fewest neighbours of the largest part."""
    filled = assignment.copy()
    counts = np.bincount(filled, minlength=num_parts)
    degrees = np.diff(adjacency.starts)
    for empty in np.flatnonzero(counts == 0):
        donor = int(np.argmax(counts))
        members = np.flatnonzero(filled == donor)
        filled[members[np.argmin(degrees[members])]] = empty
        counts[donor] -= 1
        counts[empty] += 1
    return filled


def rebalance(
    assignment: np.ndarray,
    num_parts: int,
    adjacency: Adjacency,
    weights: np.ndarray,
    limits: np.ndarray,
) -> np.ndarray:
    """Moves nodes until no part exceeds a limit, or no move helps.

    A part over a limit gives up the nodes that cost the fewest cut edges per weight; a part takes
    nodes only while it stays within every limit, and none gives its last node. So a load within its
    limit stays within it, and no excess grows.
    """
    balanced = assignment.copy()
    for _ in range(_MAX_ROUNDS):
        loads = _part_loads(balanced, num_parts, weights)
        if np.all(loads <= limits[:, None]):
            break
        round_ = _Round(balanced, adjacency, weights, limits, loads)
        moves = _within_room(round_, _within_excess(round_, _cheapest_moves(round_)))
        if moves.nodes.size == 0:
            break
        balanced[moves.nodes] = moves.targets
    return balanced


def _part_loads(assignment: np.ndarray, num_parts: int, weights: np.ndarray) -> np.ndarray:
    """Sums the weights of the nodes of each part, int64 [num_weights, num_parts]."""
    loads = [np.bincount(assignment, weight, minlength=num_parts) for weight in weights]
    return np.stack(loads).astype(np.int64)


@dataclass(frozen=True, eq=False)
class _Round:
    """The state at the start of a round; see ``rebalance``."""

    assignment: np.ndarray
    adjacency: Adjacency
    weights: np.ndarray
    limits: np.ndarray
    loads: np.ndarray

    @property
    def excess(self) -> np.ndarray:
        """The weight of each part above its limit, int64 [num_weights, num_parts]."""
        return np.maximum(self.loads - self.limits[:, None], 0)

    @property
    def room(self) -> np.ndarray:
        """The weight that each part can still take, int64 [num_weights, num_parts]."""
        return np.maximum(self.limits[:, None] - self.loads, 0)


@dataclass(frozen=True, eq=False)
class _Moves:
    """Nodes to move.

    Args:
        nodes: int64 [n], node ids.
        sources: int32 [n], the part of each.
        targets: int32 [n], the part to move each to.
        costs: float64 [n], the edges that the move adds to the cut, per weight that it removes.
    """

    nodes: np.ndarray
    sources: np.ndarray
    targets: np.ndarray
    costs: np.ndarray

    def take(self, index: np.ndarray) -> _Moves:
        return _Moves(
            self.nodes[index], self.sources[index], self.targets[index], self.costs[index]
        )


def _cheapest_moves(round_: _Round) -> _Moves:
    """Pairs every node that would lighten an overfull part with the best part that has room."""
    weights, excess, room = round_.weights, round_.excess, round_.room
    lightens = np.any((excess > 0)[:, round_.assignment] & (weights > 0), axis=0)
    nodes = np.flatnonzero(lightens)
    sources = round_.assignment[nodes]
    rows, parts, connections = _connections(round_, nodes)

    at_home = parts == sources[rows]
    at_source = np.zeros(nodes.shape[0], np.int64)
    at_source[rows[at_home]] = connections[at_home]

    # For nodes without a neighbour in a part that has room.
    targets = _roomiest_parts(round_, nodes)
    at_target = np.zeros(nodes.shape[0], np.int64)
    fits = np.all(weights[:, nodes[rows]] <= room[:, parts], axis=0) & ~at_home
    rows, parts, connections = rows[fits], parts[fits], connections[fits]
    # Ascending, so that the strongest connection of a row is the last one written.
    order = np.argsort(connections, kind="stable")
    targets[rows[order]] = parts[order]
    at_target[rows[order]] = connections[order]

    relief = (
        np.minimum(weights[:, nodes], excess[:, sources]) / np.maximum(round_.limits, 1)[:, None]
    )
    costs = (at_source - at_target) / np.sum(relief, axis=0)
    possible = np.all(weights[:, nodes] <= room[:, targets], axis=0) & (targets != sources)
    return _Moves(nodes, sources, targets, costs).take(possible)


def _roomiest_parts(round_: _Round, nodes: np.ndarray) -> np.ndarray:
    """Finds, per node, the part with the most room for the weights that the node has, int32 [n]."""
    relative_room = round_.room / np.maximum(round_.limits, 1)[:, None]
    has_weight = round_.weights[:, nodes] > 0
    kinds = (2 ** np.arange(has_weight.shape[0])) @ has_weight
    roomiest = np.zeros(nodes.shape[0], np.int32)
    for kind in np.unique(kinds):
        needed = relative_room[(kind >> np.arange(has_weight.shape[0])) & 1 == 1]
        roomiest[kinds == kind] = np.argmax(np.min(needed, axis=0))
    return roomiest


def _connections(round_: _Round, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts the neighbours of nodes[row] in each part: (row, part, count), where count > 0."""
    near = round_.adjacency.rows(nodes)
    neighbour_parts = round_.assignment[near.neighbours]
    table = sparse.csr_array(
        (np.ones(neighbour_parts.shape[0], np.int64), neighbour_parts, near.starts),
        shape=(nodes.shape[0], round_.loads.shape[1]),
    )
    table.sum_duplicates()
    rows = np.repeat(np.arange(nodes.shape[0]), np.diff(table.indptr))
    return rows, table.indices, table.data


def _within_excess(round_: _Round, moves: _Moves) -> _Moves:
    """Keeps, per source, the cheapest moves until its excess is gone; one node always stays."""
    moves = moves.take(np.lexsort((moves.costs, moves.sources)))
    weights = round_.weights[:, moves.nodes]
    moved_before = _running_sums(moves.sources, weights) - weights
    still_over = moved_before < round_.excess[:, moves.sources]
    counts = np.bincount(round_.assignment, minlength=round_.loads.shape[1])
    rank = _running_sums(moves.sources, np.ones((1, moves.nodes.shape[0]), np.int64))[0]
    return moves.take(np.any(still_over & (weights > 0), axis=0) & (rank < counts[moves.sources]))


def _within_room(round_: _Round, moves: _Moves) -> _Moves:
    """Keeps, per target, the cheapest moves that fit into it together."""
    moves = moves.take(np.lexsort((moves.costs, moves.targets)))
    taken = _running_sums(moves.targets, round_.weights[:, moves.nodes])
    return moves.take(np.all(taken <= round_.room[:, moves.targets], axis=0))


def _running_sums(groups: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Cumulative sums that start again with each group."""
    totals = np.cumsum(values, axis=1)
    starts = np.searchsorted(groups, groups)
    return totals - totals[:, starts] + values[:, starts]
