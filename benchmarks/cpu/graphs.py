"""The graphs of the comparison: generated ones of known sizes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from benchmarks.cpu.inputs import Data
from benchmarks.generated import OGBN_ARXIV, Shape, generate

GENERATED: Mapping[str, Shape] = MappingProxyType(
    {
        "pubmed-size": Shape(19_717, 108_365, 500, 3),
        "arxiv-size": OGBN_ARXIV,
        "products/8-size": Shape(306_128, 15_465_000, 100, 47),
    }
)
"""Graphs of the sizes of well-known ones, by name."""


def make(name: str) -> Data:
    """Makes a graph of `GENERATED`, with edge weights."""
    graph = generate(GENERATED[name])
    assert isinstance(graph.nodes, np.ndarray)
    assert graph.labels is not None and graph.train_mask is not None
    return Data(
        np.asarray(graph.senders, np.int32),
        np.asarray(graph.receivers, np.int32),
        np.random.default_rng(0).random(graph.num_edges, np.float32),
        graph.nodes,
        graph.labels,
        graph.train_mask & (graph.labels >= 0),
        GENERATED[name].num_classes,
    )
