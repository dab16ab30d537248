"""Graphs of several tables and relations, sharded by a partition that scatters their nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from jaxgraph.parallel import ShardedGraph, make_mesh, shard
from jaxgraph.partition.assignment import Partition
from jaxgraph.typed_graph import TypedGraph

Array = np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Edges:
    """Edges from the nodes of one table to those of another, or of the same."""

    senders: str
    receivers: str
    ends: Array


def scattered(graph: TypedGraph, num_parts: int) -> dict[str, Partition]:
    """A partition that cuts most edges."""
    return {
        name: Partition(np.arange(nodes.num_nodes) * 7919 % num_parts, num_parts)
        for name, nodes in graph.node_sets.items()
    }


def typed_shards(
    nodes: Mapping[str, Array],
    edges: Mapping[str, Edges],
    mode: str,
    num_parts: int,
    implementation: str | None = None,
) -> ShardedGraph:
    """Tables of features [nodes, features], and relations between them, on a mesh."""
    graph = TypedGraph(
        {name: {"nodes": x} for name, x in nodes.items()},
        {
            (each.senders, name, each.receivers): dict(
                zip(("senders", "receivers"), each.ends, strict=True)
            )
            for name, each in edges.items()
        },
    )
    parts, mesh = scattered(graph, num_parts), make_mesh(num_parts)
    return shard(graph, parts, mesh, mode, implementation=implementation)
