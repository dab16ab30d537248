"""The cost of a part as a sum over its nodes, its halo and its padding, for ``method="cost"``.

ROC (section 4.2) predicts the time of a part as the sum of the costs of its vertices. Fetched rows,
padding and cache misses are no such sums; they are separate terms here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from jaxgraph.graph_arrays import refuse_masked


@dataclass(frozen=True, eq=False)
class CacheMisses:
    """The cost of reading senders that a cache does not hold.

        sum_v per_node_v * max(0, 1 - cached_rows / (nodes + halo rows))

    Args:
        per_node: float [num_nodes], the cost of a node if none of its senders is in the cache.
        cached_rows: sender rows that the cache holds.
    """

    per_node: np.ndarray
    cached_rows: float

    def share(self, rows: np.ndarray) -> np.ndarray:
        """Returns the share of this many sender rows that does not fit, float [...]."""
        return np.maximum(0.0, 1.0 - self.cached_rows / np.maximum(rows, 1))


@dataclass(frozen=True, eq=False)
class NodeCost:
    """The cost of a part, in seconds or any other unit.

        cost_p = per_part + sum_{v in p} per_node_v + per_halo_row halo_p + misses_p
                 + per_padded_row max_q nodes_q + per_padded_halo_row (P - 1) max_{q, r} halo_qr

    Args:
        per_node: float [num_nodes], the cost of a node with the edges that enter it.
        per_halo_row: of a row of another part that the part's edges read.
        per_padded_row: of a row of the largest part, to whose rows all parts are padded.
        per_padded_halo_row: of a row of room for the halo: every part has room for as many rows of
            each other part as the largest pair has. It decides between orders of the nodes, and
            moves no cut of an order.
        per_part: constant cost of a part.
        misses: costs of reading past caches.

    Raises:
        ValueError: an array is no vector of numbers, their lengths differ, or a cost is negative or
            not finite.
    """

    per_node: np.ndarray
    per_halo_row: float = 0.0
    per_padded_row: float = 0.0
    per_padded_halo_row: float = 0.0
    per_part: float = 0.0
    misses: tuple[CacheMisses, ...] = ()

    def __post_init__(self) -> None:
        per_node = _checked("per_node", self.per_node, np.size(self.per_node))
        object.__setattr__(self, "per_node", per_node)
        numbers = ("per_halo_row", "per_padded_row", "per_padded_halo_row", "per_part")
        for name in numbers:
            if not 0 <= getattr(self, name) < np.inf:
                raise ValueError(
                    f"{name}: got {getattr(self, name)}; expected a finite cost of at least 0."
                )
        misses = [
            CacheMisses(_checked("misses.per_node", miss.per_node, per_node.size), miss.cached_rows)
            for miss in self.misses
        ]
        object.__setattr__(self, "misses", tuple(misses))

    @property
    def num_nodes(self) -> int:
        """The number of nodes."""
        return self.per_node.size

    @property
    def reads_halo(self) -> bool:
        """True where the cost of a part depends on its halo."""
        return self.per_halo_row > 0 or bool(self.misses)

    def of_parts(self, assignment: np.ndarray, halo_pairs: np.ndarray) -> np.ndarray:
        """Evaluates the cost of every part."""
        parts, halo_rows = len(halo_pairs), halo_pairs.sum(axis=1)
        nodes = np.bincount(assignment, minlength=parts)
        fixed = self.per_part + self.per_padded_row * nodes.max()
        fixed += self.per_padded_halo_row * (parts - 1) * halo_pairs.max()
        costs = fixed + np.bincount(assignment, self.per_node, parts)
        costs += self.per_halo_row * halo_rows
        for miss in self.misses:
            costs += np.bincount(assignment, miss.per_node, parts) * miss.share(nodes + halo_rows)
        return costs


def checked_node_cost(node_cost: ArrayLike | NodeCost | None, num_nodes: int) -> NodeCost:
    """Returns a given cost as a ``NodeCost`` of this many nodes."""
    if node_cost is None:
        raise ValueError(
            "node_cost: method='cost' needs the cost of every node; pass float [num_nodes], such "
            "as 1 + graph.in_degrees(), or jaxgraph.planner.node_cost(model, graph)."
        )
    if isinstance(node_cost, NodeCost):
        _checked("node_cost", node_cost.per_node, num_nodes)
        return node_cost
    refuse_masked("node_cost", node_cost)
    return NodeCost(_checked("node_cost", node_cost, num_nodes))


def _checked(name: str, costs: ArrayLike, count: int) -> np.ndarray:
    array = np.asarray(costs)
    if array.dtype.kind not in "iufb" or array.ndim != 1:
        raise ValueError(
            f"{name}: got {array.dtype} {list(array.shape)}; expected real numbers [num_nodes], "
            "one cost per node."
        )
    if array.size != count:
        raise ValueError(
            f"{name}: got {array.size} costs for {count} nodes; expected one per node."
        )
    array = array.astype(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if wrong.size:
        raise ValueError(
            f"{name}: node {wrong[0]} costs {array[wrong[0]]}, one of {wrong.size} such nodes; "
            "expected finite costs of at least 0."
        )
    array.flags.writeable = False
    return array
