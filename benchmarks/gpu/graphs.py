"""A graph on the device, in the library's own layout, and as plain compressed rows for peers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import jax
import numpy as np

import jaxgraph as jg
from benchmarks.generated import generate
from benchmarks.gpu.plan import CHECKS, GRAPHS
from jaxgraph.ops.core.blocks import Block


@dataclass(frozen=True)
class Placed:
    """A graph on one device; rows are those of the block, padding included.

    Attributes:
      block: the edges for the ops.
      num_edges: number of edges, without padding.
    """

    block: Block
    num_edges: int

    @property
    def num_rows(self) -> int:
        """Rows of the tables."""
        return self.block.receiver_rows

    @cached_property
    def compressed(self) -> tuple[np.ndarray, np.ndarray]:
        """The first edge of each row, int32 [rows + 1], and senders, int32 [edges]."""
        side = self.block.edges.by_receiver
        count = int(side.compressed_ptr[1])
        rows, starts = np.asarray(side.compressed_rows), np.asarray(side.compressed_starts)
        degrees = np.zeros(self.num_rows, np.int64)
        degrees[rows[:count]] = np.diff(starts[: count + 1])
        # Compressed rows ascend, so that their edges are in the order of the rows.
        pointers = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int32)
        return pointers, np.asarray(side.neighbors[: self.num_edges])

    @cached_property
    def normalisation(self) -> np.ndarray:
        """1 / sqrt(degree), float32 [rows], 0 for rows without edges."""
        degrees = np.diff(self.compressed[0])
        return np.where(degrees > 0, 1 / np.sqrt(np.maximum(degrees, 1)), 0).astype(np.float32)


def make_graph(name: str) -> jg.Graph:
    """Makes a graph of the plan, with a loop at every node.

    Args:
      name: a name in `GRAPHS`.

    Returns:
      The graph; the one for checks has some empty rows and some with very many edges.
    """
    shape = GRAPHS[name]
    if name in CHECKS:
        return _uneven(name, shape.num_nodes, shape.num_edges)
    graph = generate(shape)
    apart = graph.senders != graph.receivers
    loops = np.arange(graph.num_nodes)
    ends = (np.concatenate([end[apart], loops]) for end in (graph.senders, graph.receivers))
    return jg.Graph.from_edges(*ends, num_nodes=graph.num_nodes, name=name)


def _uneven(name: str, nodes: int, edges: int) -> jg.Graph:
    rng, count = np.random.default_rng(0), edges // CHECKS[name]
    senders, receivers = rng.integers(0, nodes - nodes // 10, (2, edges))
    senders[:count], receivers[count : 2 * count] = 3, 5
    return jg.Graph.from_edges(senders, receivers, num_nodes=nodes, name=name)


def place(graph: jg.Graph, implementation: str) -> Placed:
    """Places a graph on the first device.

    Args:
      graph: the graph.
      implementation: the implementation of its layout.

    Returns:
      The placed graph.
    """
    mesh = jg.parallel.make_mesh(1)
    sharded = jg.parallel.shard(graph, None, mesh, implementation=implementation)
    own = jax.tree.map(lambda leaf: leaf[0], sharded.shards)
    return Placed(jax.block_until_ready(own.relation().block()), graph.num_edges)
