"""Gathers results by edge slot from all devices, in the order of the graph's edges."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np

from jaxgraph.layout.local_order import LocalOrder, local_order
from jaxgraph.layout.merged_parts import merge_partition
from jaxgraph.layout.message_flow import HOPS
from jaxgraph.layout.part_edges import incoming_edges
from jaxgraph.parallel.sharded_graph import ShardedGraph, check_sharded
from jaxgraph.parallel.spmd import check_output, in_order, on_host
from jaxgraph.partition.assignment import Partition

if TYPE_CHECKING:
    from jaxgraph.graph import Graph


def gather_edges(
    values: jax.Array, sharded: ShardedGraph, graph: Graph, partition: Partition | None
) -> np.ndarray:
    """Brings an output of kind "edges" into the order of the graph's edges.

    Devices do not know the graph's edge of a slot. The host derives it again from graph and
    partition.

    Args:
      values: [parts * slots, ...], as `jaxgraph.parallel.spmd(..., outputs="edges")` returns them.
      sharded: the sharded graph.
      graph, partition: those that `jaxgraph.parallel.shard` was given.

    Returns:
      [num_edges, ...] on the host, in every process, in the order of `graph.senders`.

    Raises:
      ValueError: the graph is no sharded one, the values are not those of its slots, or it was
        sharded from another graph or by another partition.
    """
    check_sharded(sharded, "gather_edges")
    slots = sharded.shards.incoming.by_receiver.neighbors.shape[-1]
    check_output(values, sharded.num_parts * slots, sharded, "gather_edges", "edges")
    if partition is None:
        partition = Partition(np.zeros(graph.num_nodes, np.int32), 1, "whole")
    if partition.num_parts % sharded.num_parts == 0:
        partition = merge_partition(partition, sharded.num_parts)
    order = _checked_order(sharded, graph, partition)
    by_part = on_host(values)[0].reshape(sharded.num_parts, slots, *values.shape[1:])
    gathered = np.zeros((graph.num_edges, *values.shape[1:]), by_part.dtype)
    whole = sharded.shards.manifest.mode == "domain"
    for part, own in enumerate(by_part):
        edges = incoming_edges(graph, order, part, one_group_of_receivers=whole)
        edge_of_slot = edges.by_receiver.in_row_order(edges.edges)
        gathered[edge_of_slot] = own[: len(edge_of_slot)]
    return gathered


def _checked_order(sharded: ShardedGraph, graph: Graph, partition: Partition) -> LocalOrder:
    """The order of the parts' nodes, which must be that of the shards."""
    counts = sharded.counts
    same = counts is None or (counts.num_nodes, counts.num_edges) == (
        graph.num_nodes,
        graph.num_edges,
    )
    sizes = (partition.num_parts, partition.num_nodes)
    if same and sizes == (sharded.num_parts, graph.num_nodes):
        shards, level = sharded.shards, None
        hops = () if shards.manifest.flow is None else (shards.node_data[HOPS],)
        mask, *tables = on_host(shards.node_mask, shards.node_ids, shards.in_degree, *hops)
        ids, degrees, *levels = (each[mask] for each in tables)
        if levels:
            level = in_order(ids, levels[0], graph.num_nodes)
        order = local_order(graph, partition, level)
        if np.array_equal(ids, order.nodes) and np.array_equal(degrees, graph.in_degrees()[ids]):
            return order
    raise ValueError(
        f"gather_edges was given a graph of {graph.num_nodes} nodes and {graph.num_edges} edges in "
        f"{partition.num_parts} part(s), and {sharded!r} of another graph or partition; pass those "
        "that jaxgraph.parallel.shard was given"
    )
