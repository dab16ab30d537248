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
from jaxgraph.layout.feature_tables import FeatureEdges, feature_edges
from jaxgraph.layout.halo import pair_counts
from jaxgraph.layout.index_range import check_graph
from jaxgraph.layout.local_order import LocalOrder, SharedHalos, local_order
from jaxgraph.layout.manifest import MODES, Arrays
from jaxgraph.layout.node_tables import edge_arrays, global_degrees
from jaxgraph.layout.part_edges import PartEdges, incoming_edges
from jaxgraph.layout.row_lengths import EdgeLengths, count_lengths
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

    @property
    def num_parts(self) -> int:
        """The number of parts."""
        ...

    def edge_data(self, part: int, edges: np.ndarray) -> Arrays:
        """The user's data of some edges that end in a part, by name."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Survey:
    """A partitioned graph, ordered.

    Attributes:
      graph: the graph.
      mode: the schedule that it is ordered for.
      order: the owners of nodes and edges.
      incoming: the edges that end in each part; in mode "domain" their receivers are one group.
      halo: int64 [parts, parts], rows that a part needs from another one to aggregate.
      reach: int64 [parts, parts], rows of a part that have edges from another one; 0 in mode
        "domain".
      degrees: arrays [nodes] by name, from `global_degrees`.
      lengths: row lengths by edge group of the mode.
      shared: the halos of the exchange, where it serves several relations or the senders are nodes
        of another table; None: those that the own edges read.
    """

    graph: Graph
    mode: str
    order: LocalOrder
    incoming: tuple[PartEdges, ...]
    halo: np.ndarray
    reach: np.ndarray
    degrees: Mapping[str, np.ndarray]
    lengths: EdgeLengths
    shared: SharedHalos | None = None

    @property
    def num_parts(self) -> int:
        """The number of parts."""
        return self.order.num_parts

    @property
    def has_repetitions(self) -> bool:
        """True where some edges are equal."""
        return any(edges.repetition is not None for edges in self.incoming)

    def edge_data(self, part: int, edges: np.ndarray) -> Arrays:
        """The user's data of some edges, arrays [edges, ...] by name."""
        return edge_arrays(self.graph, edges)

    @functools.cached_property
    def features(self) -> tuple[FeatureEdges, ...] | None:
        """The non-zeros of sparse features in each part; None: features are dense or missing."""
        nodes = self.graph.nodes
        if not isinstance(nodes, sp.csr_array):
            return None
        of_parts = map(self.order.nodes_of, range(self.num_parts))
        return tuple(feature_edges(nodes[some], np.arange(len(some))) for some in of_parts)


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
    senders = [edges.by_sender for edges in incoming]
    receivers = [edges.by_receiver for edges in incoming]
    halo = pair_counts([rows.pointers for rows in senders])
    return Survey(
        graph=graph,
        mode=mode,
        order=order,
        incoming=incoming,
        halo=halo,
        reach=np.zeros_like(halo) if whole else pair_counts([rows.pointers for rows in receivers]),
        degrees=global_degrees(graph),
        lengths=EdgeLengths(count_lengths(receivers), count_lengths(senders, whole=whole)),
    )
