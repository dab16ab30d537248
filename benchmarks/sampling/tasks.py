"""Tasks on samples, the same for every library.

Imported by workers of every library: it needs NumPy alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.cpu.inputs import Data

BATCH = 1024
"""Seeds of a batch."""
WIDTH, LAYERS, DROPOUT, LEARNING_RATE = 256, 3, 0.5, 3e-3
"""Of the GraphSAGE that is trained."""


@dataclass(frozen=True)
class Sampling:
    """Samples for batches of seeds, with the relations of all layers.

    Attributes:
      fanouts: of each layer, the first layer first.
      how: "uniform", "weighted", "replace" or "labor".
      batches: how many.
    """

    fanouts: tuple[int, ...]
    how: str = "uniform"
    batches: int = 16

    @property
    def label(self) -> str:
        """The task's name in the tables."""
        return f"{self.fanouts}, {self.how}"


@dataclass(frozen=True)
class Training:
    """Steps of a GraphSAGE on batches, samples included.

    Attributes:
      fanouts: of each layer, the first layer first.
      batches: how many.
    """

    fanouts: tuple[int, ...]
    batches: int

    @property
    def label(self) -> str:
        """The task's name in the tables."""
        return f"training {self.fanouts}"


def seeds_of(data: Data, task: Sampling | Training) -> np.ndarray:
    """int64, the seeds of so many batches, or all training nodes if there are fewer, in order."""
    nodes = np.flatnonzero(data.train_mask)
    count = min(task.batches * BATCH, len(nodes))
    return np.sort(np.random.default_rng(0).choice(nodes, count, replace=False))
