"""All edges of a partitioned graph in the order in which their parts will store them.

The sizes that parts or several graphs share are chosen from a survey; it depends on none of them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import scipy.sparse as sp

from jaxgraph.graph import Graph
from jaxgraph.layout.extents import Extents, count_edges, kinds_of
from jaxgraph.layout.feature_tables import FeatureEdges, count_features, feature_edges
from jaxgraph.layout.index_range import check_graph
from jaxgraph.layout.local_order import LocalOrder, SharedHalos, local_order
from jaxgraph.layout.manifest import MODES, Arrays, FeatureSizes
from jaxgraph.layout.node_tables import edge_arrays, global_degrees, node_arrays, num_edge_types
from jaxgraph.layout.part_edges import PartEdges, incoming_edges
from jaxgraph.partition.assignment import Partition


class OrderedParts(Protocol):
    """The ordered edges of all parts, in memory or in files: tables of a part need no more."""

    @property
    def order(self) -> LocalOrder:
        """The owners of nodes."""
        ...

    @property
    def incoming(self) -> Sequence[PartEdges]:
        """The edges that end in each part."""
        ...

    def feature_data(self, part: int) -> Arrays:
        """The arrays of sparse features of a part's nodes, by name; none: features are dense."""
        ...

    def node_data(self, part: int) -> Arrays:
        """The arrays of the table of a part's nodes, by name."""
        ...

    def edge_data(self, part: int, edges: np.ndarray) -> Arrays:
        """The user's data of some edges that end in a part, by name."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Survey:
    """A partitioned graph, ordered.

    Attributes:
      graph: the graph.
      order: the owners of nodes and edges.
      incoming: the edges that end in each part; in mode "domain" their receivers are one group.
      degrees: arrays [nodes] by name, from `global_degrees`.
      extents: the counts that decide the shapes of parts.
      shared: the halos of the exchange, where it serves several relations or the senders are nodes
        of another table; None: those that the own edges read.
    """

    graph: Graph
    order: LocalOrder
    incoming: tuple[PartEdges, ...]
    degrees: Mapping[str, np.ndarray]
    extents: Extents
    shared: SharedHalos | None = None

    def feature_data(self, part: int) -> Arrays:
        """The arrays of sparse features of a part's nodes, by name."""
        return {} if self.features is None else self.features[part].arrays()

    def node_data(self, part: int) -> Arrays:
        """The arrays of the table of a part's nodes, by name."""
        return node_arrays(self.graph, self.degrees, self.order.nodes_of(part))

    def edge_data(self, part: int, edges: np.ndarray) -> Arrays:
        """The user's data of some edges, arrays [edges, ...] by name."""
        return edge_arrays(self.graph, edges)

    @functools.cached_property
    def features(self) -> tuple[FeatureEdges, ...] | None:
        """The non-zeros of sparse features in each part; None: features are dense or missing."""
        nodes = self.graph.nodes
        if not isinstance(nodes, sp.csr_array):
            return None
        of_parts = map(self.order.nodes_of, range(self.order.num_parts))
        return tuple(feature_edges(nodes[some], np.arange(len(some))) for some in of_parts)

    @property
    def feature_sizes(self) -> FeatureSizes | None:
        """The sizes of sparse features."""
        found = self.features
        return None if found is None else count_features(self.graph.num_features, found)


def survey(graph: Graph, partition: Partition, mode: str) -> Survey:
    """Orders the edges of all parts."""
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; expected one of {', '.join(MODES)}")
    if not isinstance(partition, Partition):
        raise ValueError(
            f"partition is of type {type(partition).__name__}; expected the result of "
            "jaxgraph.partition.partition, or Partition.from_assignment(assignment, num_parts). "
            "The order is shard(graph, partition, mesh)"
        )
    if partition.num_nodes != graph.num_nodes:
        raise ValueError(
            f"partition assigns {partition.num_nodes} nodes, but the graph has "
            f"{graph.num_nodes}; partition this graph with jaxgraph.partition.partition"
        )
    check_graph(graph, partition)
    order = local_order(graph, partition)
    whole = mode == "domain"
    incoming = tuple(
        incoming_edges(graph, order, part, one_group_of_receivers=whole)
        for part in range(order.num_parts)
    )
    degrees, nothing = global_degrees(graph), np.zeros(0, np.int64)
    arrays = node_arrays(graph, degrees, nothing) | edge_arrays(graph, nothing)
    extents = count_edges(
        mode,
        order,
        incoming,
        num_classes=graph.num_classes,
        multilabel=graph.is_multilabel,
        data=kinds_of(arrays),
        num_edge_types=num_edge_types(graph),
    )
    return Survey(graph, order, incoming, degrees, extents)
