"""The counts of a partitioned graph that decide the shapes of its parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxgraph.layout.halo import pair_counts
from jaxgraph.layout.local_order import LocalOrder
from jaxgraph.layout.manifest import Counts
from jaxgraph.layout.part_edges import PartEdges, edge_lengths
from jaxgraph.layout.row_lengths import EdgeLengths
from jaxgraph.layout.schema import Kinds


@dataclasses.dataclass(frozen=True, eq=False)
class Extents:
    """The counts of a partitioned graph that decide the shapes of its parts.

    Attributes:
      mode: the schedule that edges are ordered for.
      counts: nodes, edges and halo rows of the whole graph.
      num_classes, multilabel: of the labels.
      part_nodes: int [parts], nodes of each.
      part_edges: int [parts], edges that end in each.
      boundary: the first rows of a part among which are all that others read, of the largest.
      halo: int64 [parts, parts], rows that a part needs from another one to aggregate.
      reach: int64 [parts, parts], rows of a part that have edges from another one; 0 in mode
        "domain".
      lengths: row lengths, in as many groups per part as the mode visits edges in; None: there are
        no edges, only nodes.
      has_repetitions: whether some edges are equal.
      data: the arrays with a row per node or a slot per edge.
      num_edge_types: the largest edge type plus one; 0: not known.
      part_senders: int [parts], senders of each; None: they are the same nodes.
      boundary_of_senders: as `boundary`, of the senders' table.
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
    lengths: EdgeLengths | None
    has_repetitions: bool
    data: Kinds
    num_edge_types: int = 0
    part_senders: np.ndarray | None = None
    boundary_of_senders: int = 0

    @property
    def num_parts(self) -> int:
        """The number of parts."""
        return len(self.part_nodes)


def count_edges(
    mode: str, order: LocalOrder, incoming: Sequence[PartEdges], **facts: Any
) -> Extents:
    """The extents of parts from the edges that end in each; `facts` are all that do not follow."""
    return count_parts(
        mode,
        order,
        [len(edges.edges) for edges in incoming],
        [edges.by_receiver.pointers for edges in incoming],
        [edges.by_sender.pointers for edges in incoming],
        lengths=edge_lengths(incoming, whole=mode == "domain"),
        has_repetitions=any(edges.repetition is not None for edges in incoming),
        **facts,
    )


def count_parts(
    mode: str,
    order: LocalOrder,
    part_edges: Sequence[int],
    by_receiver: Sequence[np.ndarray],
    by_sender: Sequence[np.ndarray],
    **facts: Any,
) -> Extents:
    """The extents of parts from the pointers to the rows of each group at both ends."""
    halo = pair_counts(by_sender)
    return Extents(
        mode=mode,
        counts=Counts(len(order.part), sum(part_edges), int(halo.sum())),
        part_nodes=np.diff(order.part_ptr),
        part_edges=np.asarray(part_edges, np.int64),
        boundary=int(order.boundary.max()),
        halo=halo,
        reach=np.zeros_like(halo) if mode == "domain" else pair_counts(by_receiver),
        **facts,
    )


def kinds_of(arrays: Mapping[str, np.ndarray]) -> Kinds:
    """The kinds of arrays of nodes and edges."""
    return {name: (values.shape[1:], values.dtype) for name, values in arrays.items()}
