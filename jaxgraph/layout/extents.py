"""The counts of a partitioned graph that decide the shapes of its parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from jaxgraph.layout.manifest import Counts
from jaxgraph.layout.node_tables import edge_arrays, node_arrays
from jaxgraph.layout.row_lengths import EdgeLengths
from jaxgraph.layout.survey import Survey

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Extents:
    """The counts of a partitioned graph that decide the shapes of its parts.

    Attributes:
      mode: the schedule that edges are ordered for.
      counts: nodes, edges and halo rows of the whole graph.
      num_classes, multilabel: of the labels.
      part_nodes: int [parts], nodes of each.
      part_senders: int [parts], senders of each; None: they are the same nodes.
      boundary_of_senders: as `boundary`, of the senders' table.
      part_edges: int [parts], edges that end in each.
      boundary: the first rows of a part among which are all that others read, of the largest.
      halo: int64 [parts, parts], rows that a part needs from another one to aggregate.
      reach: int64 [parts, parts], rows of a part that have edges from another one; 0 in mode
        "domain".
      lengths: row lengths, in as many groups per part as the mode visits edges in.
      has_repetitions: whether some edges are equal.
      node_data, edge_data: (name, shape of a row, dtype) of arrays with a row per node or edge.
    """

    mode: str
    counts: Counts
    num_classes: int
    multilabel: bool
    part_nodes: np.ndarray
    part_edges: np.ndarray
    boundary: int
    halo: np.ndarray
    reach: np.ndarray
    lengths: EdgeLengths
    has_repetitions: bool
    node_data: tuple[tuple[str, Shape, np.dtype], ...]
    edge_data: tuple[tuple[str, Shape, np.dtype], ...]
    part_senders: np.ndarray | None = None
    boundary_of_senders: int = 0

    @property
    def num_parts(self) -> int:
        """The number of parts."""
        return len(self.part_nodes)


def extents_of(survey: Survey) -> Extents:
    """The counts of a surveyed graph that decide the shapes of its parts."""
    graph, order, nothing = survey.graph, survey.order, np.zeros(0, np.int64)
    senders = order if survey.shared is None else survey.shared.order

    def kinds(arrays: Mapping[str, np.ndarray]) -> tuple[tuple[str, Shape, np.dtype], ...]:
        return tuple((name, values.shape[1:], values.dtype) for name, values in arrays.items())

    return Extents(
        mode=survey.mode,
        counts=Counts(graph.num_nodes, graph.num_edges, int(survey.halo.sum())),
        num_classes=graph.num_classes,
        multilabel=graph.is_multilabel,
        part_nodes=np.diff(order.part_ptr),
        part_edges=np.diff(order.edge_ptr),
        boundary=int(order.boundary.max()),
        halo=survey.halo,
        reach=survey.reach,
        lengths=survey.lengths,
        has_repetitions=survey.has_repetitions,
        node_data=kinds(node_arrays(graph, survey.degrees, nothing)),
        edge_data=kinds(edge_arrays(graph, nothing)),
        part_senders=None if survey.shared is None else np.diff(senders.part_ptr),
        boundary_of_senders=int(senders.boundary.max()),
    )
