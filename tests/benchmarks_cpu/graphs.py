"""A tiny graph in the form that workers read."""

import numpy as np

from benchmarks.cpu.inputs import Data


def tiny() -> Data:
    """30 nodes; one has a self-loop, one has no edges, one edge occurs twice."""
    generator = np.random.default_rng(0)
    senders = np.append(generator.integers(0, 29, 100), [3, 4, 4]).astype(np.int32)
    receivers = np.append((senders[:100] + 1 + generator.integers(0, 28, 100)) % 29, [3, 5, 5])
    return Data(
        senders,
        receivers.astype(np.int32),
        generator.random(103, np.float32),
        generator.standard_normal((30, 6), np.float32),
        generator.integers(0, 4, 30, np.int32),
        np.arange(30) % 2 == 0,
        4,
    )


def adjacency(data: Data, weighted: bool = False) -> np.ndarray:
    """float64 [receivers, senders], sums of weights or counts of edges."""
    matrix = np.zeros((data.num_nodes, data.num_nodes))
    weights = data.edge_weight.astype(np.float64) if weighted else np.ones(data.senders.size)
    np.add.at(matrix, (data.receivers, data.senders), weights)
    return matrix
