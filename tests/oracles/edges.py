"""Edge lists, and sums over them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Edges:
    """Edge e goes from senders[e] to receivers[e]; repeated edges count as often as they occur."""

    senders: np.ndarray  # int [num_edges]
    receivers: np.ndarray  # int [num_edges]
    num_nodes: int
    weight: np.ndarray  # float64 [num_edges]
    features: np.ndarray  # float64 [num_edges, edge features], of no columns where there are none

    @classmethod
    def of(
        cls,
        senders: np.ndarray,
        receivers: np.ndarray,
        num_nodes: int,
        weight: np.ndarray | None = None,
        features: np.ndarray | None = None,
    ) -> Edges:
        """Edges of weight 1 where `weight` is None."""
        senders = np.asarray(senders, np.int64)
        weight = np.ones(len(senders)) if weight is None else np.asarray(weight, np.float64)
        features = np.zeros((len(senders), 0)) if features is None else features
        receivers = np.asarray(receivers, np.int64)
        return cls(senders, receivers, num_nodes, weight, np.asarray(features, np.float64))

    def with_missing_self_loops(self) -> Edges:
        """Appends, in node order, a self-loop of weight 1 to each node that has none.

        Its features are the mean of those of the edges that enter the node, 0 where none does.
        """
        has_loop = np.zeros(self.num_nodes, bool)
        has_loop[self.senders[self.senders == self.receivers]] = True
        lonely = np.flatnonzero(~has_loop)
        return Edges(
            np.concatenate([self.senders, lonely]),
            np.concatenate([self.receivers, lonely]),
            self.num_nodes,
            np.concatenate([self.weight, np.ones(len(lonely))]),
            np.concatenate([self.features, self.mean_features()[lonely]]),
        )

    def repetitions(self) -> np.ndarray:
        """The number of earlier edges with the same two ends, for each edge, int [num_edges]."""
        seen: dict[tuple[int, int], int] = {}
        counts = []
        for pair in zip(self.senders.tolist(), self.receivers.tolist(), strict=True):
            counts.append(seen.get(pair, 0))
            seen[pair] = counts[-1] + 1
        return np.array(counts, np.int64)

    def sum_by_receiver(self, values: np.ndarray) -> np.ndarray:
        """Sums [num_edges, ...] into [num_nodes, ...]."""
        return _sum_by(self.receivers, values, self.num_nodes)

    def sum_by_sender(self, values: np.ndarray) -> np.ndarray:
        """Sums [num_edges, ...] into [num_nodes, ...]."""
        return _sum_by(self.senders, values, self.num_nodes)

    def mean_features(self) -> np.ndarray:
        """The mean of the features of the edges that enter each node, 0 where none does."""
        return self.sum_by_receiver(self.features) / np.maximum(self.in_degrees(), 1)[:, None]

    def in_degrees(self) -> np.ndarray:
        """Number of edges into each node, float64 [num_nodes]."""
        return self.sum_by_receiver(np.ones(len(self.receivers)))


def _sum_by(ids: np.ndarray, values: np.ndarray, num_nodes: int) -> np.ndarray:
    total = np.zeros((num_nodes, *values.shape[1:]))
    np.add.at(total, ids, values)
    return total
