"""Checks of what a graph of several sets is sharded with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxgraph.layout.manifest import MODES
from jaxgraph.layout.typed_manifest import TypedManifest
from jaxgraph.layout.typed_tables import TypedTables, tabulate_typed
from jaxgraph.parallel.named_data import check_held
from jaxgraph.partition.assignment import Partition
from jaxgraph.partition.report import check_partitions
from jaxgraph.typed_graph import TypedGraph


def tabulated(
    graph: TypedGraph, partition: Any, mode: str, options: Mapping[str, Any]
) -> TypedTables:
    """The parts of a graph of several sets, from arguments of `shard` or `write_parts`."""
    if mode not in MODES:
        raise ValueError(
            f"mode is {mode!r}, and the graph has several sets of nodes or edges; expected one of "
            f"{', '.join(map(repr, MODES))}"
        )
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise ValueError(
            f"{', '.join(given)}: not for a graph of several sets of nodes or edges; leave it out"
        )
    if partition is None:
        partition = {
            name: Partition(np.zeros(nodes.num_nodes, np.int32), 1, "whole")
            for name, nodes in graph.node_sets.items()
        }
    check_partitions(graph, partition)
    for each in (*graph.node_sets.values(), *graph.edge_sets.values()):
        check_held(each)
    return tabulate_typed(graph, partition, mode)


def refuse_merging(manifest: Any, devices: int) -> None:
    """Raises ValueError for a graph of several sets, whose parts cannot be merged."""
    if isinstance(manifest, TypedManifest):
        raise ValueError(
            f"the graph has {manifest.num_parts} parts and several sets of nodes or edges, and the "
            f"mesh {devices} device(s); expected one part for each device"
        )


def refuse_streaming(manifest: Any) -> None:
    """Raises ValueError for a graph of several sets, whose parts cannot wait on the host."""
    if isinstance(manifest, TypedManifest):
        raise ValueError(
            "mode='stream' runs a graph of one set of nodes and edges, and this one has several; "
            "place it in mode 'sar' or 'domain'"
        )
