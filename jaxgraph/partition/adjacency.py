"""The undirected simple graph on which a cut is measured.

METIS (Karypis and Kumar, "A Fast and High Quality Multilevel Scheme for Partitioning Irregular
Graphs", 1998) takes symmetric adjacency lists in compressed sparse rows, without self-loops and
repeated edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse


@dataclass(frozen=True, eq=False)
class Adjacency:
    """Neighbours in compressed sparse rows: those of node v are at starts[v] to starts[v + 1].

    Args:
        starts: int64 [num_nodes + 1].
        neighbours: int32 or int64 [starts[-1]].
    """

    starts: np.ndarray
    neighbours: np.ndarray

    @property
    def num_nodes(self) -> int:
        """The number of nodes."""
        return int(self.starts.shape[0]) - 1

    def rows(self, nodes: np.ndarray) -> Adjacency:
        """Returns the neighbours of some nodes, as rows in the order of ``nodes``."""
        lengths = self.starts[nodes + 1] - self.starts[nodes]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        shift = np.repeat(self.starts[nodes] - starts[:-1], lengths)
        return Adjacency(starts, self.neighbours[np.arange(starts[-1]) + shift])


def undirected_adjacency(senders: np.ndarray, receivers: np.ndarray, num_nodes: int) -> Adjacency:
    """Makes the adjacency of the undirected graph, without self-loops and repeated edges."""
    proper = senders != receivers
    rows, columns = receivers[proper], senders[proper]
    # Boolean entries: repeated ones merge to True, where a sum of integers could wrap to zero.
    entries = np.ones(rows.shape[0], dtype=np.bool_)
    directed = sparse.coo_array((entries, (rows, columns)), shape=(num_nodes, num_nodes)).tocsr()
    both = directed + directed.T.tocsr()
    both.sort_indices()
    return Adjacency(both.indptr.astype(np.int64), both.indices)
