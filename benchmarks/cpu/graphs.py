"""The graphs of the comparison: generated ones of known sizes, and real ones."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

import jaxgraph as jg
from benchmarks.cpu.inputs import Data
from benchmarks.cpu.work import Size
from benchmarks.generated import OGBN_ARXIV, Shape, generate
from jaxgraph.partition.locality import locality_rank

__all__ = ["GENERATED", "REAL", "make", "names", "renumbered", "size_of"]


GENERATED: Mapping[str, Shape] = MappingProxyType(
    {
        "pubmed-size": Shape(19_717, 108_365, 500, 3),
        "blog-size": Shape(10_312, 667_966, 128, 39),
        "reddit-small-size": Shape(58_000, 1_400_000, 602, 41),
        "arxiv-size": OGBN_ARXIV,
        "products/8-size": Shape(306_128, 15_465_000, 100, 47),
    }
)
"""Graphs of the sizes of well-known ones, by name."""

REAL = ("cora", "citeseer", "amazon-photo", "coauthor-cs")
"""Data sets of `jaxgraph.datasets`, read from the folder JAXGRAPH_DATA."""


def names(quick: bool) -> tuple[str, ...]:
    """The graphs of a run; the real ones only where JAXGRAPH_DATA names a folder."""
    if quick:
        return ("pubmed-size", "arxiv-size")
    return (*GENERATED, *REAL) if os.environ.get("JAXGRAPH_DATA") else tuple(GENERATED)


def make(name: str, seed: int = 0) -> Data:
    """Makes or reads a graph, with edge weights drawn from a seed.

    Args:
      name: one of `GENERATED` or a data set's.
      seed: seed of the generator.

    Returns:
      Its arrays.

    Raises:
      ValueError: there is no such graph, or it has no features, classes or training nodes.
    """
    graph = generate(GENERATED[name], seed=seed) if name in GENERATED else jg.datasets.load(name)
    if graph.nodes is None or graph.labels is None or graph.train_mask is None:
        raise ValueError(f"{name} lacks features, classes or a training mask; use another graph")
    if graph.labels.ndim != 1:
        raise ValueError(f"{name} has several labels per node; use a graph with one class per node")
    weights = np.random.default_rng(seed).random(graph.senders.size, np.float32)
    return Data(
        np.asarray(graph.senders, np.int32),
        np.asarray(graph.receivers, np.int32),
        weights,
        graph.nodes if isinstance(graph.nodes, np.ndarray) else graph.nodes.toarray(),
        graph.labels,
        graph.train_mask & (graph.labels >= 0),
        int(graph.labels.max()) + 1,
    )


def renumbered(data: Data, order: str) -> Data:
    """The same graph with other ids of its nodes.

    Args:
      data: the graph.
      order: an order of `jaxgraph.partition.locality_rank`.

    Returns:
      Its arrays, edges in their old order.
    """
    graph = jg.Graph(data.senders, data.receivers, data.num_nodes)
    rank = locality_rank(graph, order)
    by_rank = np.argsort(rank)
    return dataclasses.replace(
        data,
        senders=rank[data.senders],
        receivers=rank[data.receivers],
        nodes=data.nodes[by_rank],
        labels=data.labels[by_rank],
        train_mask=data.train_mask[by_rank],
    )


def size_of(data: Data) -> Size:
    """Counts a graph's nodes, edges, features, classes and missing self-loops."""
    return Size(
        data.num_nodes,
        data.senders.size,
        data.nodes.shape[1],
        data.num_classes,
        data.missing_loops().size,
    )
