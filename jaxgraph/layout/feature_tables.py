"""Sparse features as edges: every non-zero is an edge from its column to the row of its node."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxgraph.layout.edge_tables import group_tables
from jaxgraph.layout.manifest import FEATURES, VALUES, Arrays, FeatureSizes
from jaxgraph.layout.part_edges import PartEdges, edge_lengths, edges_between


@dataclasses.dataclass(frozen=True)
class FeatureEdges:
    """The non-zeros in the rows of a table of nodes.

    Attributes:
      values: float32 [non-zeros], by row and column.
      edges: from the columns to the rows.
    """

    values: np.ndarray
    edges: PartEdges

    def arrays(self) -> Arrays:
        """The arrays that a manifest lists, not padded."""
        arrays = group_tables(FEATURES, self.edges) | {VALUES: self.values}
        del arrays[f"{FEATURES}/by_sender/edge_ids"]
        return arrays


def feature_edges(matrix: Any, rows: np.ndarray) -> FeatureEdges:
    """Orders the non-zeros of some nodes."""
    receivers = np.repeat(rows, np.diff(matrix.indptr))
    num_rows = int(rows.max(initial=0)) + 1
    edges = edges_between(matrix.indices, receivers, matrix.shape[1], num_rows)
    return FeatureEdges(edges.by_receiver.in_row_order(matrix.data[edges.edges]), edges)


def count_features(num_columns: int, tables: Sequence[FeatureEdges]) -> FeatureSizes:
    """The sizes of sparse features of so many columns."""
    return FeatureSizes(num_columns, (edge_lengths([table.edges for table in tables]),))
