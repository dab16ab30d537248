"""Edge lists, and sums over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.oracles.tape import Value, concatenate, sum_at


@dataclass(frozen=True, eq=False)
class Edges:
    """Edge e goes from senders[e] to receivers[e]; repeated edges count as often as they occur."""

    senders: np.ndarray  # int [num_edges]
    receivers: np.ndarray  # int [num_edges]
    num_nodes: int
    weight: Any  # float64 [num_edges]
    features: Any  # float64 [num_edges, edge features], of no columns where there are none

    @classmethod
    def of(
        cls,
        senders: np.ndarray,
        receivers: np.ndarray,
        num_nodes: int,
        weight: Any = None,
        features: Any = None,
    ) -> Edges:
        """Edges of weight 1 where `weight` is None."""
        count = len(senders)
        weight = np.ones(count) if weight is None else weight
        features = np.zeros((count, 0)) if features is None else features
        senders, receivers = (np.asarray(each, np.int64) for each in (senders, receivers))
        weight, features = (
            x if isinstance(x, Value) else np.asarray(x, float) for x in (weight, features)
        )
        return cls(senders, receivers, num_nodes, weight, features)

    def with_missing_self_loops(self) -> Edges:
        """Appends, in node order, a self-loop of weight 1 to each node that has none.

        Its features are the mean of those of the edges that enter the node, 0 where none does.
        """
        has_loop = np.zeros(self.num_nodes, bool)
        has_loop[self.senders[self.senders == self.receivers]] = True
        lonely = np.flatnonzero(~has_loop)
        counts = np.maximum(self.in_degrees(), 1)[:, None]
        means = self.sum_by_receiver(self.features) / counts
        return Edges(
            np.concatenate([self.senders, lonely]),
            np.concatenate([self.receivers, lonely]),
            self.num_nodes,
            concatenate([self.weight, np.ones(len(lonely))]),
            concatenate([self.features, means[lonely]]),
        )

    def repetitions(self) -> np.ndarray:
        """The number of earlier edges with the same two ends, for each edge, int [num_edges]."""
        seen: dict[tuple[int, int], int] = {}
        counts = []
        for pair in zip(self.senders.tolist(), self.receivers.tolist(), strict=True):
            counts.append(seen.get(pair, 0))
            seen[pair] = counts[-1] + 1
        return np.array(counts, np.int64)

    def sum_by_receiver(self, values: Any) -> Any:
        """Sums [num_edges, ...] into [num_nodes, ...]."""
        return sum_at(self.receivers, values, self.num_nodes)

    def sum_by_sender(self, values: Any) -> Any:
        """Sums [num_edges, ...] into [num_nodes, ...]."""
        return sum_at(self.senders, values, self.num_nodes)

    def in_degrees(self) -> np.ndarray:
        """Number of edges into each node, float64 [num_nodes]."""
        return self.sum_by_receiver(np.ones(len(self.receivers)))
