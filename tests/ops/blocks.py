"""Blocks of one device for tests of ops, with NaN in all padding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgraph import Graph
from jaxgraph.layout.common_shapes import common_shapes
from jaxgraph.layout.manifest import Manifest
from jaxgraph.ops import Block
from jaxgraph.ops.core.choice import choose_stages
from jaxgraph.ops.core.edges import with_implementation
from jaxgraph.ops.core.kernel_stages import KernelStages
from jaxgraph.ops.usable import usable_implementation
from jaxgraph.parallel import make_mesh, shard
from jaxgraph.partition.assignment import Partition
from tests.oracles.edges import Edges
from tests.strategies import SMALL_GRAPHS, complete, random_edges


@dataclass(frozen=True, eq=False)
class Placed:
    """A graph as one block.

    Attributes:
      graph: the graph.
      block: its edges.
      row_of_node: int [num_nodes].
      slot_of_edge: int [num_edges].
    """

    graph: Graph
    block: Block
    row_of_node: np.ndarray
    slot_of_edge: np.ndarray

    def rows(self, values: Any) -> jax.Array:
        """[num_nodes, ...] by row."""
        values = np.asarray(values)
        placed = np.full((self.block.receiver_rows, *values.shape[1:]), np.nan, values.dtype)
        placed[self.row_of_node] = values
        return jnp.asarray(placed)

    def slots(self, values: Any) -> jax.Array:
        """[num_edges, ...] by slot."""
        values = np.asarray(values)
        placed = np.full((self.block.edge_slots, *values.shape[1:]), np.nan, values.dtype)
        placed[self.slot_of_edge] = values
        return jnp.asarray(placed)

    def nodes(self, rows: Any) -> np.ndarray:
        """[rows, ...] by node; rows of padding must be 0."""
        rows = np.asarray(rows)
        assert not rows[np.setdiff1d(np.arange(len(rows)), self.row_of_node)].any()
        return rows[self.row_of_node]

    def edges(self, slots: Any) -> np.ndarray:
        """[slots, ...] by edge; slots without an edge must be 0."""
        slots = np.asarray(slots)
        assert not slots[np.setdiff1d(np.arange(len(slots)), self.slot_of_edge)].any()
        return slots[self.slot_of_edge]

    def oracle(self, self_loops: bool = False) -> Edges:
        """The same edges in the oracle's form."""
        edges = Edges.of(self.graph.senders, self.graph.receivers, self.graph.num_nodes)
        return edges.with_missing_self_loops() if self_loops else edges


def numbered(graph: Graph) -> Graph:
    """The graph without data, except the number of each edge, from 1."""
    numbers = np.arange(1, graph.num_edges + 1, dtype=np.float32)[:, None]
    return Graph.from_edges(
        graph.senders, graph.receivers, num_nodes=graph.num_nodes, edges=numbers, name=graph.name
    )


@lru_cache(maxsize=64)
def place_block(graph: Graph, *, pad_to: Manifest | None = None) -> Placed:
    """Places a graph on one device.

    Args:
      graph: the graph.
      pad_to: shapes to pad to.
    """
    # Laid out for XLA, whose edges also serve other implementations.
    sharded = shard(numbered(graph), None, make_mesh(1), pad_to=pad_to, implementation="xla")
    own = jax.tree.map(lambda leaf: leaf[0], sharded.shards)
    row_of_node = np.empty(graph.num_nodes, np.int64)
    real = np.flatnonzero(np.asarray(own.node_mask))
    row_of_node[np.asarray(own.node_ids)[real]] = real
    numbers = np.asarray(own.edges)[:, 0].astype(np.int64)
    slot_of_edge = np.empty(graph.num_edges, np.int64)
    slots = np.flatnonzero(numbers)
    slot_of_edge[numbers[slots] - 1] = slots
    block = with_implementation(own.local_block(), usable_implementation(None, jax.devices()[0]))
    return Placed(graph, block, row_of_node, slot_of_edge)


@cache
def shared_shapes() -> Manifest:
    """Shapes of `SMALL_GRAPHS` and of all `graphs()`: a function compiles once for them."""
    graphs = [numbered(graph) for graph in SMALL_GRAPHS]
    for hubs in (1, 2, 3, 6, 12, 20, 30, 40):
        senders, receivers = random_edges(40, 240, seed=hubs)
        graphs.append(numbered(complete(senders % hubs, receivers, 40, "few-senders")))
        graphs.append(numbered(complete(senders, receivers % hubs, 40, "few-receivers")))
    whole = [Partition(np.zeros(g.num_nodes, np.int32), 1, "whole") for g in graphs]
    return common_shapes(*zip(graphs, whole, strict=True), headroom=0.3)


def by_kernels(block: Block, message: Any, reducer: Any, inputs: Any, **options: Any) -> Any:
    """`block.propagate` by the implementation of the block, and by no other."""
    stages = choose_stages(block.edges, message, reducer, inputs)
    assert isinstance(stages, KernelStages) == (block.implementation != "xla")
    return block.propagate(message, reducer, inputs, **options)


def with_one(values: Any) -> np.ndarray:
    """All numbers of an array and 1, so that an error counts relative to 1 where all are smaller.

    For gradients through a softmax, which are differences of numbers around 1.
    """
    return np.append(np.asarray(values).astype(np.float64), 1.0)
