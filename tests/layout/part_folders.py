"""Folders of parts for tests: graphs with all kinds of data, and a disk without waiting."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import scipy.sparse as sp

from jaxgraph import Graph
from jaxgraph.graph_facts import facts_of
from jaxgraph.layout.column_tables import ColumnRequest
from jaxgraph.layout.common_shapes import common_shapes
from jaxgraph.layout.part_files import PartFolder
from jaxgraph.layout.part_writing import write_source
from jaxgraph.layout.shard_tables import PartTables, tabulate
from jaxgraph.partition import Partition
from tests.strategies import complete, random_edges

REQUESTS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "sar": ("sar", None),
    "domain": ("domain", None),
    "p3": ("domain", {"chunks": 2}),
    "p3 pushed": ("sar", {"topology": "pushed"}),
    "p3 shared": ("domain", {"budget": 10**9}),
}
"""The schedule of layers after the first, and the request for columns."""
KINDS = ("dense", "sparse", "multilabel", "plain")


def of_kind(graph: Graph, kind: str) -> Graph:
    """The graph with other features, labels, named arrays and names of nodes."""
    nodes, rng = graph.num_nodes, np.random.default_rng(1)
    if kind == "dense":
        target, ids = rng.random((nodes, 2)), rng.integers(0, 9, graph.num_edges)
        named = graph.with_nodes(größe=target).with_edges(ids=ids, flag=ids > 4)
        return named.replace(node_names=np.arange(nodes)[::-1] * 10**10)
    if kind == "sparse":
        features = np.where(rng.random((nodes, 9)) < 0.2, 1, 0)
        names = [f"../{node}/ü, \n" for node in range(nodes)]
        return graph.replace(nodes=sp.csr_array(features), node_names=names)
    if kind == "multilabel":
        return graph.replace(labels=np.asarray(rng.random((nodes, 4)) < 0.5))
    return graph.replace(**dict.fromkeys(("edges", "edge_weight", "edge_type", "labels", "nodes")))


def source_of(graph: Graph, assignment: np.ndarray, parts: int, request: str) -> PartTables:
    """The parts of a graph in memory."""
    mode, columns = REQUESTS[request]
    wanted = None if columns is None else ColumnRequest(**columns)
    return tabulate(graph, Partition.from_assignment(assignment, parts), mode, columns=wanted)


HUBS = {"one": 1, "sar": 3, "domain": 3, "p3": 2, "p3 pushed": 2}
"""Parts of a graph with a hub, by request."""


def hub_source(name: str, num_nodes: int = 80, pad: bool = False) -> PartTables:
    """A graph with repeated edges and a row that is split, maybe in shapes of a larger graph."""
    parts, (mode, columns) = HUBS[name], REQUESTS["sar" if name == "one" else name]
    pairs = []
    for nodes in (num_nodes, 2 * num_nodes):
        senders, receivers = random_edges(nodes, 5 * nodes, 0)
        receivers[:200] = 0
        graph = complete(senders, receivers, nodes, "hub", edge_data=True)
        pairs.append((graph, Partition.from_assignment(np.arange(nodes) % parts, parts)))
    pad_to = common_shapes(*pairs, mode=mode, headroom=0.1) if pad else None
    wanted = None if columns is None else ColumnRequest(**columns)
    graph, owners = pairs[0]
    return tabulate(graph, owners, mode, pad_to, columns=wanted)


def write(graph: Graph, source: PartTables, folder: Path) -> PartFolder:
    """Writes the parts of a graph."""
    return write_source(source, folder, facts_of(graph), node_names=graph.node_names)


@contextmanager
def fast_disk() -> Iterator[None]:
    """Writes without waiting for the disk, which takes longer than all else."""
    with mock.patch.object(os, "fsync", lambda descriptor: None):
        yield
