"""The arrays of every part of a partitioned graph, ready to be placed on devices.

`tabulate` makes the arrays that `jaxgraph.parallel.shard` places. Any object with `.manifest` and
`.part(i)` can replace its result (a folder per part on disk, say): no host then holds the graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.layout.column_tables import ColumnRequest, ColumnTables, column_tables
from jaxgraph.layout.description import FEWEST_ROWS, choose_halo_unit, describe
from jaxgraph.layout.fitting import fit
from jaxgraph.layout.manifest import Arrays, Manifest
from jaxgraph.layout.part_tables import part_arrays
from jaxgraph.layout.survey import Survey, survey
from jaxgraph.partition.assignment import Partition


class PartSource(Protocol):
    """A source of the arrays of the parts."""

    @property
    def manifest(self) -> Manifest:
        """Counts and padded shapes."""
        ...

    def part(self, index: int) -> Mapping[str, np.ndarray]:
        """The arrays of one part by the names in the manifest, padded or not."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class PartTables:
    """The parts of a graph in memory, each made on demand.

    Attributes:
      manifest: counts and padded shapes.
      survey: the graph, ordered.
      columns: the arrays of features by column; None: features are split by node.
    """

    manifest: Manifest
    survey: Survey
    columns: ColumnTables | None = None

    def part(self, index: int) -> Arrays:
        """The arrays of one part by name, not padded."""
        arrays = part_arrays(self.survey, index, self.manifest, self.survey.shared)
        return arrays if self.columns is None else arrays | self.columns.arrays(index)

    def without_data(self) -> PartTables:
        """The same tables, with empty arrays in the place of the user's data."""
        found = self.survey.graph
        bare = Graph(found.senders, found.receivers, found.num_nodes)
        return dataclasses.replace(self, survey=dataclasses.replace(self.survey, graph=bare))


def tabulate(
    graph: Graph,
    partition: Partition,
    mode: str = "sar",
    pad_to: Manifest | None = None,
    *,
    columns: ColumnRequest | None = None,
    fewest_rows: int = FEWEST_ROWS,
) -> PartTables:
    """Orders the edges of every part and finds the shapes that all parts share."""
    found = survey(graph, partition, mode)
    unit = choose_halo_unit([found.extents]) if pad_to is None else pad_to.halo_unit
    if columns is not None:
        manifest = describe(found.extents, unit, int(columns.chunks))
        of_columns = column_tables(found, manifest, columns)
        return PartTables(of_columns.manifest, found, of_columns)
    manifest = describe(found.extents, unit, 1, fewest_rows, found.feature_sizes)
    return PartTables(manifest if pad_to is None else fit(manifest, pad_to), found)
