"""The last step: the arrays of each part from its files, as they are made in memory."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxgraph.external.node_files import NodeFiles
from jaxgraph.external.ordering import NodeFacts, OrderedFiles
from jaxgraph.external.splitting import Buckets
from jaxgraph.layout.description import choose_halo_unit, describe
from jaxgraph.layout.extents import Extents, count_parts, kinds_of
from jaxgraph.layout.local_order import LocalOrder
from jaxgraph.layout.manifest import Arrays, Manifest
from jaxgraph.layout.node_tables import counted_arrays
from jaxgraph.layout.part_tables import part_arrays


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

    def feature_data(self, part: int) -> Arrays:
        """No arrays: files of nodes hold dense features."""
        return {}

    def node_data(self, part: int) -> Arrays:
        """The arrays of the table of a part's nodes, by name."""
        counted = counted_arrays(self.facts.degrees, self.order.nodes_of(part))
        return counted | self.nodes.arrays(self.order, part)

    def edge_data(self, part: int, edges: np.ndarray) -> Arrays:
        """The user's data of some edges that end in a part, by name."""
        return {name: self.buckets.read(part, name)[edges] for name in self.buckets.data}

    def part(self, index: int) -> Arrays:
        """The arrays of one part by name, not padded."""
        return part_arrays(self, index, self.manifest)


def extents_of_files(
    mode: str, incoming: OrderedFiles, buckets: Buckets, nodes: NodeFiles, facts: NodeFacts
) -> Extents:
    """The counts of the parts that decide their shapes, as a survey has them."""
    counted = kinds_of(counted_arrays(facts.degrees, np.zeros(0, np.int64)))
    return count_parts(
        mode,
        facts.order,
        buckets.counts,
        incoming.pointers("by_receiver"),
        incoming.pointers("by_sender"),
        num_classes=nodes.facts.get("num_classes", 0),
        multilabel=nodes.multilabel,
        lengths=incoming.lengths(mode),
        has_repetitions=incoming.has_repetitions,
        data={**counted, **nodes.kinds, **buckets.data},
    )
