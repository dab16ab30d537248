"""Checks of what a graph of several sets is sharded with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.kinds import check_graph, kind_of
from jaxgraph.layout.manifest import MODES
from jaxgraph.layout.message_flow import HOPS, MOST_LAYERS, with_flow
from jaxgraph.layout.typed_manifest import TypedManifest
from jaxgraph.layout.typed_tables import TypedTables, tabulate_typed
from jaxgraph.parallel.named_data import check_held
from jaxgraph.partition.assignment import Partition
from jaxgraph.partition.report import check_partitions
from jaxgraph.typed_graph import TypedGraph


def tabulated(
    graph: Graph | TypedGraph,
    partition: Any,
    mode: str,
    options: Mapping[str, Any],
    message_flow: int | None = None,
) -> TypedTables:
    """The parts of a graph of several sets, from arguments of `shard` or `write_parts`.

    Or those of a graph of one set, with relations for as many layers as `message_flow` says.
    """
    why, plan = "the graph has several sets of nodes or edges", None
    if message_flow is not None:
        _check_flow(graph, partition, message_flow)
        why = f"message_flow is {message_flow}"
    if mode not in MODES:
        raise ValueError(
            f"mode is {mode!r}, and {why}; expected one of {', '.join(map(repr, MODES))}"
        )
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise ValueError(f"{', '.join(given)}: not where {why}; leave it out")
    if isinstance(graph, Graph):
        assert message_flow is not None
        graph, plan = with_flow(graph, int(message_flow))
        (name,) = graph.node_sets
        partition = None if partition is None else {name: partition}
    if partition is None:
        partition = {
            name: Partition(np.zeros(nodes.num_nodes, np.int32), 1, "whole")
            for name, nodes in graph.node_sets.items()
        }
    check_partitions(graph, partition)
    for each in (*graph.node_sets.values(), *graph.edge_sets.values()):
        check_held(each)
    return tabulate_typed(graph, partition, mode, plan)


def _check_flow(graph: Any, partition: Any, message_flow: Any) -> None:
    is_count = isinstance(message_flow, int | np.integer) and not isinstance(message_flow, bool)
    if not is_count or not 1 <= message_flow <= MOST_LAYERS:
        raise ValueError(
            f"message_flow is {message_flow!r}; expected the number of layers of the model that "
            f"read edges, from 1 to {MOST_LAYERS}, or None"
        )
    check_graph(graph, "shard(graph, partition, mesh, message_flow=...)")
    if graph.nodes is None:
        raise ValueError(
            "message_flow: the graph has no features, and learned rows are those of all nodes; "
            "give Graph nodes=..., or leave message_flow out"
        )
    if graph.edge_type is not None:
        raise ValueError(
            "message_flow: the graph has edge_type, and layers with a matrix for each type compute "
            "all nodes; leave message_flow out"
        )
    if HOPS in graph.node_data:
        raise ValueError(
            f"message_flow: the graph has node_data[{HOPS!r}], where message flow has an array of "
            f"its own; give yours another name, or remove it by graph.with_nodes({HOPS}=None)"
        )
    is_partition = isinstance(partition, Partition)
    if partition is not None and not (is_partition and partition.num_nodes == graph.num_nodes):
        what = repr(partition) if is_partition else kind_of(partition)
        raise ValueError(
            f"partition: got {what}; expected a Partition of the graph's {graph.num_nodes} nodes, "
            "as jaxgraph.partition.partition(graph, num_parts) makes one"
        )


def refuse_merging(manifest: Any, devices: int) -> None:
    """Raises ValueError for a graph of several relations, whose parts cannot be merged."""
    if isinstance(manifest, TypedManifest):
        raise ValueError(
            f"the graph has {manifest.num_parts} parts and {_has(manifest)}, and the mesh "
            f"{devices} device(s); expected one part for each device"
        )


def refuse_streaming(manifest: Any) -> None:
    """Raises ValueError for a graph of several relations, whose parts cannot wait on the host."""
    if isinstance(manifest, TypedManifest):
        raise ValueError(
            "mode='stream' runs a graph of one set of nodes and edges, and this one has "
            f"{_has(manifest)}; place it in mode 'sar' or 'domain'"
        )


def _has(manifest: TypedManifest) -> str:
    if manifest.flow is None:
        return "several sets of nodes or edges"
    return f"edges for each of {len(manifest.flow.relations)} layers (message_flow)"
