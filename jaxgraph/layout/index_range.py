"""Refuses sizes beyond int32, with which devices index rows, slots and ids."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.partition.assignment import Partition

_LIMIT = np.iinfo(np.int32).max
_EDGES_AT_A_TIME = 1 << 20


def check_sizes(sizes: Mapping[str, int]) -> None:
    """Checks that int32 can index tables."""
    for name, size in sizes.items():
        if size > _LIMIT:
            raise ValueError(
                f"{name}: {size:,} entries; devices index them with int32, expected at most "
                f"{_LIMIT:,}: cut the graph into more parts, or take a smaller graph where this "
                "counts all of its nodes"
            )


def check_graph(graph: Graph, partition: Partition) -> None:
    """Checks the nodes of a graph, and the edges that end in each part, before they are ordered."""
    check_sizes({"num_nodes": graph.num_nodes})
    if graph.num_edges <= _LIMIT:
        return
    counts = np.zeros(partition.num_parts, np.int64)
    for start in range(0, graph.num_edges, _EDGES_AT_A_TIME):
        receivers = graph.receivers[start : start + _EDGES_AT_A_TIME]
        counts += np.bincount(partition.assignment[receivers], minlength=len(counts))
    check_sizes({f"edges that end in part {part}": n for part, n in enumerate(counts.tolist())})
