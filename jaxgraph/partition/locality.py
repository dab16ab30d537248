"""Ranks of nodes under which neighbours are close together, so that gathers stay in the cache.

They affect speed alone: results are returned by node id, and all randomness is drawn by node id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from jaxgraph.graph import Graph
from jaxgraph.kinds import check_graph
from jaxgraph.partition.adjacency import undirected_adjacency
from jaxgraph.partition.assignment import checked_num_parts
from jaxgraph.partition.choices import checked_choice
from jaxgraph.partition.metis import metis_assignment
from jaxgraph.partition.sorting import counting_argsort, inverse_permutation
from jaxgraph.seeds import checked_seed

_NODES_PER_GROUP = 1500
"""Nodes of a METIS group: rows of 128 float32 features take 768 KB of a cache of 1 MB."""
_GROUPS_PER_PART = 16
"""Groups at least in a part that is a range of the order: few of them are cut."""


def orders() -> list[str]:
    """Returns the names that ``locality_rank`` accepts, and ``partition`` as its order."""
    return list(_ORDERS)


def locality_rank(
    graph: Graph, order: str, seed: int = 0, *, num_parts: int | None = None
) -> np.ndarray:
    """Numbers the nodes of a graph so that neighbours have near numbers.

    References:
        Cuthill and McKee, "Reducing the bandwidth of sparse symmetric matrices", 1969; Karypis and
        Kumar, "A Fast and High Quality Multilevel Scheme for Partitioning Irregular Graphs", 1998.
    """
    check_graph(graph, "locality_rank(graph, order)")
    chosen, seed = _ORDERS[checked_choice("order", order, orders())], checked_seed("seed", seed)
    parts = None if num_parts is None else checked_num_parts(num_parts)
    by_rank = chosen(graph, seed, parts)
    return inverse_permutation(by_rank.astype(np.int32))


def _by_search(graph: Graph, seed: int, num_parts: int | None) -> np.ndarray:
    adjacency = undirected_adjacency(graph.senders, graph.receivers, graph.num_nodes)
    entries = np.ones(adjacency.neighbours.size, np.int8)
    # csgraph accepts a csr_matrix in every version of scipy.
    matrix = sparse.csr_matrix(
        (entries, adjacency.neighbours, adjacency.starts), shape=(graph.num_nodes, graph.num_nodes)
    )
    return csgraph.reverse_cuthill_mckee(matrix, symmetric_mode=True)


def _by_degree(graph: Graph, seed: int, num_parts: int | None) -> np.ndarray:
    degrees = graph.in_degrees() + graph.out_degrees()
    largest = int(degrees.max())
    return counting_argsort(largest - degrees, largest + 1)


def _by_group(graph: Graph, seed: int, num_parts: int | None) -> np.ndarray:
    num_groups, balance = -(-graph.num_nodes // _NODES_PER_GROUP), "nodes"
    if num_parts is not None:
        least = min(graph.num_nodes, _GROUPS_PER_PART * num_parts)
        num_groups, balance = max(num_groups, least), "edges"
    group = metis_assignment(graph, num_groups, seed=seed, balance=balance)
    by_degree = _by_degree(graph, seed, num_parts)
    return by_degree[counting_argsort(group[by_degree], num_groups)]


_ORDERS: Mapping[str, Callable[[Graph, int, int | None], np.ndarray]] = MappingProxyType(
    {"rcm": _by_search, "degree": _by_degree, "metis": _by_group}
)
