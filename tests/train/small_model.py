"""A model, a graph and a counter of compilations for the tests of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxgraph import Graph
from jaxgraph.nn import NodeEmbedding
from jaxgraph.ops.core.randomness import node_keep_mask
from jaxgraph.parallel import ShardedGraph, common_shapes, make_mesh, propagate, shard
from jaxgraph.partition.assignment import Partition
from tests.strategies import random_edges

FEATURES, HIDDEN, CLASSES = 6, 8, 3


class SmallNet(nnx.Module):
    """Centre, tanh, dropout, mean over neighbours, linear: a statistic and randomness per node."""

    def __init__(self, *, dropout: float = 0.0, outputs: int = CLASSES, seed: int = 0) -> None:
        rngs = nnx.Rngs(seed)
        self.in_features = FEATURES
        # No bias before the centring: its gradient is only rounding, which Adam turns into steps.
        self.first = nnx.Linear(FEATURES, HIDDEN, use_bias=False, rngs=rngs)
        self.second = nnx.Linear(HIDDEN, outputs, rngs=rngs)
        self.mean = nnx.BatchStat(jnp.zeros(HIDDEN))
        self.dropout = dropout

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> jax.Array:
        h = self.first(x)
        mean = self.mean[...]
        if train:
            total = shard.sum((shard.mask_rows(h).sum(0), shard.node_mask.sum()))
            mean = total[0] / total[1]
            self.mean[...] = 0.9 * self.mean[...] + 0.1 * mean
        h = jnp.tanh(h - mean)
        if train and self.dropout:
            keep = node_keep_mask(key, shard.node_ids, HIDDEN, self.dropout)
            h = jnp.where(keep, h / (1 - self.dropout), 0)
        h = propagate(shard, lambda s, r, e: s, h, reduce="mean", self_loops=True)
        return self.second(h)


class RowsNet(SmallNet):
    """Dropout, a running statistic, and a learned row for every node."""

    def __init__(self, num_nodes: int = 60, **options: Any) -> None:
        super().__init__(dropout=0.5, **options)
        self.rows = NodeEmbedding(num_nodes, CLASSES, rngs=nnx.Rngs(1))

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> jax.Array:
        return super().__call__(shard, x, key=key, train=train) + self.rows(shard)


class TableNet(nnx.Module):
    """The logits of a node are its row of a table plus those of its neighbours."""

    def __init__(self, num_nodes: int) -> None:
        start = np.random.default_rng(5).standard_normal((num_nodes, CLASSES)) / 10
        self.table = nnx.Param(jnp.asarray(start, jnp.float32), rows="nodes")

    def __call__(self, shard: Any, x: Any, *, key: Any = None, train: bool = False) -> jax.Array:
        own = self.table[...]
        return own + propagate(shard, lambda s, r, e: s, own, reduce="mean")


def small_graph(num_nodes: int = 60, seed: int = 0, **changes: Any) -> Graph:
    """A random graph whose features correlate with the class, in three splits."""
    rng = np.random.default_rng(seed)
    senders, receivers = random_edges(num_nodes, 4 * num_nodes, seed)
    labels = rng.integers(0, CLASSES, num_nodes)
    labels[:CLASSES] = np.arange(CLASSES)
    features = rng.standard_normal((num_nodes, FEATURES)) + 2 * np.eye(FEATURES)[labels]
    split = rng.permutation(num_nodes) % 3
    graph = Graph.from_edges(
        senders,
        receivers,
        nodes=features.astype(np.float32),
        labels=labels.astype(np.int32),
        train_mask=split == 0,
        val_mask=split == 1,
        test_mask=split == 2,
    )
    return graph.replace(**changes)


def multilabel_graph(num_nodes: int = 60, num_labels: int = 4) -> Graph:
    """`small_graph` with several labels per node, planted in the features."""
    graph = small_graph(num_nodes)
    assert graph.nodes is not None
    labels = (graph.nodes[:, :num_labels] > 0.5).astype(np.float32)
    return graph.replace(labels=labels)


def random_partition(graph: Graph, num_parts: int, seed: int = 3) -> Partition:
    """Parts of nearly equal size, at random."""
    order = np.random.default_rng(seed).permutation(graph.num_nodes)
    return Partition.from_assignment((order % num_parts).astype(np.int32), num_parts)


def on_devices(graph: Graph, num_parts: int, mode: str = "sar", **options: Any) -> ShardedGraph:
    """The graph sharded at random."""
    parts = random_partition(graph, num_parts)
    return shard(graph, parts, make_mesh(num_parts), mode=mode, **options)


def on_devices_alike(graphs: Sequence[Graph], num_parts: int) -> list[ShardedGraph]:
    """The graphs sharded at random, padded to the same shapes."""
    pairs = [(graph, random_partition(graph, num_parts)) for graph in graphs]
    shapes, mesh = common_shapes(*pairs), make_mesh(num_parts)
    return [shard(graph, parts, mesh, pad_to=shapes) for graph, parts in pairs]


def memory_of(compiled: jax.stages.Compiled) -> Any:
    """The compiler's report of the memory of a program."""
    memory = compiled.memory_analysis()
    assert memory is not None
    return memory
