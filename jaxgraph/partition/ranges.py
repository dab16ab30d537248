"""Contiguous ranges of nodes with equal cost, found by binary search on prefix sums.

ROC (section 4.2) numbers a part's nodes consecutively, after Lux, so that N - 1 splitting points
describe the partition, and finds each by binary search on the partial sums of a cost per vertex.
Cost 1 gives the equal-vertex partitioning that NeuGraph uses, the in-degree equal edges; a learned
cost model gives ROC's own.
"""

from __future__ import annotations

import numpy as np


def balanced_ranges(costs: np.ndarray, num_parts: int) -> np.ndarray:
    """Cuts the nodes into ranges of about equal total cost, none of them empty.

    Part i is [b_i, b_{i+1}), where b_i is the splitting point whose prefix sum is nearest to
    i / num_parts of the total; so no part costs more than total / num_parts + max(costs).

    References:
        ROC, "Improving the Accuracy, Scalability, and Performance of Graph Neural Networks with
        Roc", section 4.2.
    """
    num_nodes = costs.shape[0]
    if num_parts > num_nodes:
        raise ValueError(
            f"num_parts: got {num_parts} for {num_nodes} nodes; expected at most one part per node."
        )
    if not np.all(np.isfinite(costs)) or np.min(costs) < 0:
        raise ValueError("costs: expected finite values of at least 0 for every node.")
    prefix = np.concatenate([np.zeros(1, costs.dtype), np.cumsum(costs)])
    if prefix[-1] == 0:
        prefix = np.arange(num_nodes + 1)
    targets = prefix[-1] * (np.arange(1, num_parts) / num_parts)
    above = np.searchsorted(prefix, targets)
    nearer_below = targets - prefix[above - 1] < prefix[above] - targets
    interior = above - nearer_below
    return _strictly_increasing(interior, num_nodes)


def equal_vertices_assignment(num_nodes: int, num_parts: int) -> np.ndarray:
    """Assigns contiguous ranges of nodes whose sizes differ by at most one.

    References:
        NeuGraph, section 3.1 (vertex chunks of equal size); ROC, section 7.6.
    """
    return _assignment(balanced_ranges(np.ones(num_nodes, np.int64), num_parts))


def equal_edges_assignment(in_degrees: np.ndarray, num_parts: int) -> np.ndarray:
    """Assigns contiguous ranges of nodes that about equally many edges enter.

    References:
        ROC, section 4.2, with the in-degree as the cost of a node.
    """
    return _assignment(balanced_ranges(in_degrees, num_parts))


def _strictly_increasing(interior: np.ndarray, num_nodes: int) -> np.ndarray:
    """Moves splitting points apart, as little as needed, so that every range holds a node."""
    steps = np.arange(1, interior.shape[0] + 1)
    raised = np.maximum.accumulate(np.maximum(interior, 1) - steps) + steps
    lowered = np.minimum(raised, num_nodes - interior.shape[0] - 1 + steps)
    return np.concatenate([[0], lowered, [num_nodes]]).astype(np.int64)


def _assignment(boundaries: np.ndarray) -> np.ndarray:
    parts = np.arange(boundaries.shape[0] - 1, dtype=np.int32)
    return np.repeat(parts, np.diff(boundaries))
