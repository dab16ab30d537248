"""The features that predict the cost of a layer on a part, each stated once in a table.

ROC (table 2) sums features over the vertices of a part. Fetched rows, padding and cache misses are
no such sums: they are terms of `jaxgraph.partition.node_cost.NodeCost`, and the feature is the
value of the term at a cost of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.partition import Partition
from jaxgraph.partition.choices import checked_choice
from jaxgraph.partition.node_cost import CacheMisses, NodeCost
from jaxgraph.partition.report import count_halo_pairs
from jaxgraph.partition.sorting import counting_argsort


@dataclass(frozen=True)
class Access:
    """The way in which a layer on a device reads the rows of senders.

    Args:
        columns: numbers of a sender's row that an edge reads, ROC's d_in.
        row_bytes: bytes of such a row.
        width: numbers that one access to memory loads: of a warp of a GPU (ROC's WS), or of a
            vector of a CPU.
        cache_bytes: size of the second-level cache.
    """

    columns: int
    row_bytes: int
    width: int = 32
    cache_bytes: int = 1 << 20

    @property
    def cached_rows(self) -> float:
        """Rows of senders that the cache holds."""
        return self.cache_bytes / self.row_bytes


@dataclass(frozen=True, eq=False)
class Neighbors:
    """The senders of every node, as the features of a vertex read them."""

    graph: Graph

    @property
    def num_nodes(self) -> int:
        """The number of nodes."""
        return self.graph.num_nodes

    @cached_property
    def in_degrees(self) -> np.ndarray:
        """int [num_nodes], the edges that enter each node."""
        return self.graph.in_degrees()

    @cached_property
    def runs(self) -> tuple[np.ndarray, np.ndarray]:
        """The receiver of every run of consecutive senders and its length, each int [runs].

        ROC's c_i(v); repeated edges count once.
        """
        senders, receivers, nodes = self.graph.senders, self.graph.receivers, self.num_nodes
        order = counting_argsort(senders, nodes)
        order = order[counting_argsort(receivers[order], nodes)]
        senders, receivers = senders[order], receivers[order]
        step = np.diff(senders, prepend=-2)
        other = np.diff(receivers, prepend=-1) != 0
        starts = other | (step > 1)
        lengths = np.bincount(np.cumsum(starts) - 1, starts | (step == 1))
        return receivers[starts], lengths.astype(np.int64)

    def sum_over_runs(self, values: np.ndarray) -> np.ndarray:
        """Sums one value per run at the run's receiver, float64 [num_nodes]."""
        return np.bincount(self.runs[0], values, self.num_nodes).astype(np.float64)


def _id_accesses(neighbors: Neighbors, access: Access) -> np.ndarray:
    return neighbors.sum_over_runs(-(-neighbors.runs[1] // access.width))


def _row_accesses(neighbors: Neighbors, access: Access) -> np.ndarray:
    return neighbors.sum_over_runs(-(-(neighbors.runs[1] * access.columns) // access.width))


FEATURES: Mapping[str, tuple[str, Callable[[Neighbors, Access], np.ndarray] | None]] = {
    # ROC's x1 to x5: the vertex itself, its distinct senders, runs of consecutive senders, and the
    # accesses that load the senders' ids and their rows.
    "nodes": ("per_node", lambda n, a: np.ones(n.num_nodes)),
    "neighbors": ("per_node", lambda n, a: n.sum_over_runs(n.runs[1])),
    "runs": ("per_node", lambda n, a: n.sum_over_runs(np.ones(len(n.runs[1])))),
    "id accesses": ("per_node", _id_accesses),
    "row accesses": ("per_node", _row_accesses),
    # Edges that enter, repeated ones too.
    "edges": ("per_node", lambda n, a: n.in_degrees),
    # 1 for every part.
    "parts": ("per_part", None),
    # Rows of the largest part, which all parts have.
    "padded rows": ("per_padded_row", None),
    # Rows of other parts that the part's edges read.
    "halo rows": ("per_halo_row", None),
    # Rows that every part has room for in its halo, as the largest pair of parts needs.
    "padded halo rows": ("per_padded_halo_row", None),
    # Edges times the share of the sender rows that does not fit the cache.
    "missed edges": ("misses", lambda n, a: n.in_degrees),
}
"""By name: the field of `jaxgraph.partition.node_cost.NodeCost` that a feature belongs to and, if
it is a sum over nodes, `(neighbors, access) -> [num_nodes]`. A new one is one more line."""

ROC_PRINTED = ("nodes", "neighbors", "runs", "id accesses", "row accesses")
"""Table 2 of ROC, as printed."""
DEFAULT = ("padded rows", "nodes", "edges", "halo rows", "padded halo rows", "missed edges")
"""The default features of a cost model."""


def checked_features(names: Sequence[str]) -> tuple[str, ...]:
    """Returns names of features as a tuple."""
    if isinstance(names, str):
        names = (names,)
    for name in names:
        checked_choice("features", name, list(FEATURES))
    if not names or len(set(names)) != len(names):
        raise ValueError(f"features: got {list(names)}; expected one or more, each once.")
    return tuple(names)


def weighted_cost(weights: Mapping[str, float], neighbors: Neighbors, access: Access) -> NodeCost:
    """Makes the cost that is a weighted sum of features.

    cost_p = sum_f weight_f feature_f(p)
    """
    per_node = np.zeros(neighbors.num_nodes)
    terms: dict[str, Any] = {}
    for name, weight in weights.items():
        term, of_vertices = FEATURES[name]
        if of_vertices is None:
            terms[term] = weight
        elif weight:
            costs = weight * of_vertices(neighbors, access)
            if term == "per_node":
                per_node += costs
            else:
                terms[term] = (CacheMisses(costs, access.cached_rows),)
    return NodeCost(per_node, **terms)


def part_features(
    graph: Graph, partition: Partition, access: Access, features: Sequence[str] = DEFAULT
) -> np.ndarray:
    """Evaluates features of all parts.

    References:
        ROC, section 4.1, table 2.
    """
    neighbors, halo = Neighbors(graph), count_halo_pairs(graph, partition)
    columns = [
        weighted_cost({name: 1.0}, neighbors, access).of_parts(partition.assignment, halo)
        for name in features
    ]
    return np.stack(columns, axis=1)
