"""The graph of the references' tests: seven nodes, with and without data of edges."""

from __future__ import annotations

import numpy as np

from tests.oracles.edges import Edges

IN, OUT, HEADS = 4, 3, 2
# Node 0 has a self-loop, twice; 2 -> 1 occurs three times; 5 has no edge in, 6 no edge at all.
SENDERS = np.array([0, 1, 2, 2, 0, 3, 4, 2, 5, 0, 4])
RECEIVERS = np.array([1, 0, 1, 1, 0, 2, 3, 1, 4, 0, 2])
NUM_NODES = 7
EDGES = Edges.of(SENDERS, RECEIVERS, NUM_NODES)
WEIGHTED = Edges.of(
    SENDERS, RECEIVERS, NUM_NODES, np.random.default_rng(4).uniform(0.5, 2.0, len(SENDERS))
)
NO_EDGES = Edges.of(SENDERS[:0], RECEIVERS[:0], NUM_NODES)
FEATURED = Edges.of(
    SENDERS,
    RECEIVERS,
    NUM_NODES,
    features=np.random.default_rng(5).standard_normal((len(SENDERS), 3)),
)


def features(seed: int = 0, width: int = IN) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((NUM_NODES, width))
