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
from jaxgraph.partition.choices import checked_choice
from jaxgraph.partition.metis import metis_assignment
from jaxgraph.partition.sorting import counting_argsort, inverse_permutation
from jaxgraph.seeds import checked_seed

__all__ = ["locality_rank", "orders"]

_NODES_PER_GROUP = 1500
"""Nodes of a METIS group: rows of 128 float32 features take 768 KB of a cache of 1 MB."""


def orders() -> list[str]:
    """Returns the names that ``locality_rank`` accepts, and ``partition`` as its order."""
    return list(_ORDERS)


def locality_rank(
    graph: Graph, order: str, seed: int = 0, *, nodes_per_group: int | None = None
) -> np.ndarray:
    """Numbers the nodes of a graph so that neighbours have near numbers.

    Args:
        graph: the graph; directions, self-loops and repeated edges affect degrees only.
        order: "rcm", reverse Cuthill-McKee: level by level of a search from a node of low degree;
            "degree", by descending number of edge ends, so that the rows read most are
            together; "metis", by the parts of a cut into groups of at most about 1500 nodes, which
            finds communities and takes longest, and by degree inside a group, so that consecutive
            rows have about equal lengths.
        seed: seed of METIS, from 0 to 2**32 - 1.
        nodes_per_group: most nodes of a METIS group; None: about 1500.

    Returns:
        int32 [num_nodes], the rank of each node: a permutation.

    Raises:
        ValueError: the order is unknown, or the seed out of range.
        RuntimeError: METIS crashed, failed, or did not end in time.

    References:
        Cuthill and McKee, "Reducing the bandwidth of sparse symmetric matrices", 1969; Karypis and
        Kumar, "A Fast and High Quality Multilevel Scheme for Partitioning Irregular Graphs", 1998.
    """
    check_graph(graph, "locality_rank(graph, order)")
    chosen, seed = _ORDERS[checked_choice("order", order, orders())], checked_seed("seed", seed)
    group = min(nodes_per_group or _NODES_PER_GROUP, _NODES_PER_GROUP)
    by_rank = chosen(graph, seed, group)
    return inverse_permutation(by_rank.astype(np.int32))


def _by_search(graph: Graph, seed: int, nodes_per_group: int) -> np.ndarray:
    adjacency = undirected_adjacency(graph.senders, graph.receivers, graph.num_nodes)
    entries = np.ones(adjacency.neighbours.size, np.int8)
    # csgraph accepts a csr_matrix in every version of scipy.
    matrix = sparse.csr_matrix(
        (entries, adjacency.neighbours, adjacency.starts), shape=(graph.num_nodes, graph.num_nodes)
    )
    return csgraph.reverse_cuthill_mckee(matrix, symmetric_mode=True)


def _by_degree(graph: Graph, seed: int, nodes_per_group: int) -> np.ndarray:
    degrees = graph.in_degrees() + graph.out_degrees()
    largest = int(degrees.max())
    return counting_argsort(largest - degrees, largest + 1)


def _by_group(graph: Graph, seed: int, nodes_per_group: int) -> np.ndarray:
    num_groups = -(-graph.num_nodes // nodes_per_group)
    group = metis_assignment(graph, num_groups, seed=seed)
    by_degree = _by_degree(graph, seed, nodes_per_group)
    return by_degree[counting_argsort(group[by_degree], num_groups)]


_ORDERS: Mapping[str, Callable[[Graph, int, int], np.ndarray]] = MappingProxyType(
    {"rcm": _by_search, "degree": _by_degree, "metis": _by_group}
)
