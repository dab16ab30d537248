"""The last step: the arrays of each part from its files, as they are made in memory."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxgraph.external.node_files import NodeFiles
from jaxgraph.external.ordering import NodeFacts, OrderedFiles
from jaxgraph.external.splitting import Buckets
from jaxgraph.layout.description import choose_halo_unit, describe
from jaxgraph.layout.domain_tables import domain_arrays
from jaxgraph.layout.extents import Extents
from jaxgraph.layout.halo import pair_counts
from jaxgraph.layout.local_order import LocalOrder
from jaxgraph.layout.manifest import Arrays, Counts, Manifest
from jaxgraph.layout.sar_tables import sar_arrays


@dataclasses.dataclass(frozen=True, eq=False)
class FileParts:
    """The parts of a graph in the files of a run, each made on demand; a `PartSource`.

    Attributes:
      manifest: counts and padded shapes.
      halo: int64 [parts, parts], rows that a part needs from another one.
      incoming: the ordered edges that end in each part.
      buckets: the data of edges.
      nodes: the data of nodes.
      facts: degrees and order of nodes.
    """

    manifest: Manifest
    halo: np.ndarray
    incoming: OrderedFiles
    buckets: Buckets
    nodes: NodeFiles
    facts: NodeFacts

    @classmethod
    def of(
        cls, mode: str, incoming: OrderedFiles, buckets: Buckets, nodes: NodeFiles, facts: NodeFacts
    ) -> FileParts:
        """Finds the shapes that all parts share."""
        extents = extents_of_files(mode, incoming, buckets, nodes, facts)
        manifest = describe(extents, choose_halo_unit([extents]))
        return cls(manifest, extents.halo, incoming, buckets, nodes, facts)

    @property
    def order(self) -> LocalOrder:
        """The owners of nodes."""
        return self.facts.order

    @property
    def num_parts(self) -> int:
        """The number of parts."""
        return self.order.num_parts

    def edge_data(self, part: int, edges: np.ndarray) -> Arrays:
        """The user's data of some edges that end in a part, by name."""
        return {name: self.buckets.read(part, name)[edges] for name in self.buckets.data}

    def part(self, index: int) -> Arrays:
        """The arrays of one part by name, not padded."""
        tables = sar_arrays if self.manifest.mode == "sar" else domain_arrays
        arrays = _node_arrays(self.facts, self.order.nodes_of(index))
        arrays |= self.nodes.arrays(self.order, index)
        arrays |= tables(self, index, self.manifest)
        missing = [shape for shape in self.manifest.shapes if shape[0] not in arrays]
        return arrays | {name: np.zeros((0,) * len(shape), dtype) for name, shape, dtype in missing}


def _node_arrays(facts: NodeFacts, nodes: np.ndarray) -> Arrays:
    arrays: Arrays = {"node_ids": nodes.astype(np.int32), "node_mask": np.ones(len(nodes), bool)}
    return arrays | {name: values[nodes] for name, values in facts.degrees.items()}


def extents_of_files(
    mode: str, incoming: OrderedFiles, buckets: Buckets, nodes: NodeFiles, facts: NodeFacts
) -> Extents:
    """The counts of the parts that decide their shapes, as `extents_of` takes them of a survey."""
    order = facts.order
    halo = pair_counts(incoming.pointers("by_sender"))
    of_nodes = _node_arrays(facts, np.zeros(0, np.int64))
    kinds = [(name, values.shape[1:], values.dtype) for name, values in of_nodes.items()]
    kinds += [(name, rest, dtype) for name, (rest, dtype) in nodes.kinds.items()]
    return Extents(
        mode=mode,
        counts=Counts(len(order.part), sum(buckets.counts), int(halo.sum())),
        num_classes=nodes.facts.get("num_classes", 0),
        multilabel=nodes.multilabel,
        part_nodes=np.diff(order.part_ptr),
        part_edges=np.asarray(buckets.counts, np.int64),
        boundary=int(order.boundary.max()),
        halo=halo,
        reach=np.zeros_like(halo)
        if mode == "domain"
        else pair_counts(incoming.pointers("by_receiver")),
        lengths=incoming.lengths(mode),
        has_repetitions=incoming.has_repetitions,
        node_data=tuple(kinds),
        edge_data=tuple((name, rest, dtype) for name, (rest, dtype) in buckets.data.items()),
    )
