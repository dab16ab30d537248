"""The order of nodes and edges by the part that owns them, and the row of each node."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.layout.compressed_rows import CompressedRows
from jaxgraph.partition.assignment import Partition
from jaxgraph.partition.sorting import counting_argsort, index_dtype, smallest_unsigned

_EDGES_AT_A_TIME = 1 << 20
"""Small enough that the temporary arrays of these edges fit the cache."""


@dataclasses.dataclass(frozen=True)
class LocalOrder:
    """Rows of the nodes inside their parts: nodes with an edge to another part first, then by rank.

    Where nodes have levels, all of a lower level come first, in that order.

    Attributes:
      part: unsigned [nodes], the part of each node.
      row: int32 [nodes], its row there.
      nodes: int [nodes], the nodes by (part, row).
      part_ptr: int64 [parts + 1], where each part starts in `nodes`.
      boundary: int64 [parts], the first rows of each part among which all nodes are that have an
        edge to another part; with levels that may be nearly all rows.
      edges: int [edges], the edges by (part of the receiver, edge).
      edge_ptr: int64 [parts + 1], where each part starts in `edges`.
    """

    part: np.ndarray
    row: np.ndarray
    nodes: np.ndarray
    part_ptr: np.ndarray
    boundary: np.ndarray
    edges: np.ndarray
    edge_ptr: np.ndarray

    @property
    def num_parts(self) -> int:
        """The number of parts."""
        return len(self.part_ptr) - 1

    def nodes_of(self, part: int) -> np.ndarray:
        """The nodes of a part by row, int [nodes of the part]."""
        return self.nodes[self.part_ptr[part] : self.part_ptr[part + 1]]

    def leading(self, chosen: np.ndarray) -> LocalOrder:
        """The order of the chosen nodes, bool [nodes], which are the first rows of their parts."""
        counts = np.bincount(self.part[chosen], minlength=self.num_parts)
        return dataclasses.replace(
            self,
            nodes=self.nodes[chosen[self.nodes]],
            part_ptr=np.append(0, np.cumsum(counts)),
            boundary=np.minimum(self.boundary, counts),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class SharedHalos:
    """The rows of senders that the parts read of each other, over all relations of an exchange.

    Attributes:
      order: the owners of the senders.
      of_parts: the rows that each part reads, by their part on the ring.
    """

    order: LocalOrder
    of_parts: Sequence[CompressedRows]


def local_order(graph: Graph, partition: Partition, level: np.ndarray | None = None) -> LocalOrder:
    """Orders nodes and edges by the part that owns them."""
    parts = partition.num_parts
    part = partition.assignment.astype(smallest_unsigned(parts - 1))
    receiver_part = np.empty(graph.num_edges, part.dtype)
    counts, on_boundary = np.zeros(parts, np.int64), np.zeros(graph.num_nodes, bool)
    for start in range(0, graph.num_edges, _EDGES_AT_A_TIME):
        some = slice(start, start + _EDGES_AT_A_TIME)
        senders, receivers = graph.senders[some], graph.receivers[some]
        receiver_part[some] = part[receivers]
        counts += np.bincount(receiver_part[some], minlength=parts)
        cut = np.flatnonzero(part[senders] != receiver_part[some])
        on_boundary[senders[cut]] = True
        on_boundary[receivers[cut]] = True
    edges = np.argsort(receiver_part, kind="stable").astype(index_dtype(graph.num_edges))
    return order_of_nodes(part, on_boundary, edges, counts, partition.rank, level)


def order_of_nodes(
    part: np.ndarray,
    on_boundary: np.ndarray,
    edges: np.ndarray,
    edge_counts: np.ndarray,
    rank: np.ndarray | None = None,
    level: np.ndarray | None = None,
) -> LocalOrder:
    """Orders nodes by the part that owns them, where the edges are ordered already."""
    parts, num_nodes = len(edge_counts), len(part)
    level = np.zeros(num_nodes, np.uint8) if level is None else level
    levels = int(level.max(initial=0)) + 1
    key = part.astype(smallest_unsigned(2 * levels * parts - 1))
    key = (key * levels + level.astype(key.dtype)) * 2 + ~on_boundary
    if rank is None:
        nodes = np.argsort(key, kind="stable")
    else:
        by_rank = counting_argsort(rank, num_nodes)
        nodes = by_rank[np.argsort(key[by_rank], kind="stable")]
    part_ptr = np.append(0, np.cumsum(np.bincount(part, minlength=parts)))
    nodes = nodes.astype(index_dtype(num_nodes))
    row = np.empty(num_nodes, np.int32)
    boundary = np.zeros(parts, np.int64)
    for index, own in enumerate(np.split(nodes, part_ptr[1:-1])):
        row[own] = np.arange(len(own), dtype=np.int32)
        shared = on_boundary[own]
        boundary[index] = len(own) - np.argmax(shared[::-1]) if shared.any() else 0
    return LocalOrder(
        part=part,
        row=row,
        nodes=nodes,
        part_ptr=part_ptr,
        boundary=boundary,
        edges=edges,
        edge_ptr=np.append(0, np.cumsum(edge_counts)),
    )
