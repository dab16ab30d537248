"""The arrays that tasks start from, the same in every library.

Imported by workers of every library: it needs NumPy alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.cpu.tasks import Attention, SpMM


@dataclass(frozen=True)
class Data:
    """A graph as plain arrays.

    Attributes:
      senders, receivers: int32 [edges].
      edge_weight: float32 [edges].
      nodes: float32 [nodes, features].
      labels: int32 [nodes], from 0.
      train_mask: bool [nodes].
      num_classes: number of classes.
    """

    senders: np.ndarray
    receivers: np.ndarray
    edge_weight: np.ndarray
    nodes: np.ndarray
    labels: np.ndarray
    train_mask: np.ndarray
    num_classes: int

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.nodes.shape[0]

    def edges(self, with_loops: bool) -> tuple[np.ndarray, np.ndarray]:
        """Senders and receivers, followed by the missing self-loops if requested."""
        if not with_loops:
            return self.senders, self.receivers
        has_loop = np.zeros(self.num_nodes, bool)
        has_loop[self.senders[self.senders == self.receivers]] = True
        loops = np.flatnonzero(~has_loop).astype(np.int32)
        return np.concatenate([self.senders, loops]), np.concatenate([self.receivers, loops])

    def weights(self, task: SpMM) -> np.ndarray:
        """float32 [edges], the weights of a task: ones where it has none."""
        return self.edge_weight if task.weighted else np.ones_like(self.edge_weight)


def node_features(num_nodes: int, features: int) -> np.ndarray:
    """Normal numbers, float32 [nodes, features]."""
    return np.random.default_rng(features).standard_normal((num_nodes, features), np.float32)


def attention_inputs(num_nodes: int, task: Attention) -> tuple[np.ndarray, ...]:
    """Normal numbers: z [nodes, heads, features], l and r [nodes, heads], the gradient of y."""
    generator = np.random.default_rng((task.heads, task.features))
    rows, logits = (num_nodes, task.heads, task.features), (num_nodes, task.heads)
    shapes = (rows, logits, logits, rows)
    return tuple(generator.standard_normal(shape, np.float32) for shape in shapes)
