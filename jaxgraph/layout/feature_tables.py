"""Sparse features as edges: every non-zero is an edge from its column to the row of its node."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxgraph.layout.compressed_rows import CompressedRows, compress
from jaxgraph.layout.edge_tables import Side, edge_tables
from jaxgraph.layout.manifest import FEATURES, VALUES, Arrays, FeatureSizes
from jaxgraph.layout.row_lengths import EdgeLengths, count_lengths
from jaxgraph.partition.sorting import counting_argsort


@dataclasses.dataclass(frozen=True)
class FeatureEdges:
    """The non-zeros in the rows of a table of nodes, by row and column.

    Attributes:
      values: float32 [non-zeros].
      rows, columns: int32 [non-zeros].
      by_receiver, by_sender: the non-zeros of each row, and of each column.
    """

    values: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    by_receiver: CompressedRows
    by_sender: CompressedRows

    def arrays(self) -> Arrays:
        """The arrays that a manifest lists, not padded."""
        by_receiver = Side(self.by_receiver, self.by_receiver.rows, self.columns)
        by_sender = Side(self.by_sender, self.by_sender.rows, self.rows)
        arrays = edge_tables(FEATURES, by_receiver, by_sender, None) | {VALUES: self.values}
        del arrays[f"{FEATURES}/by_sender/edge_ids"]
        return arrays


def feature_edges(matrix: Any, rows: np.ndarray) -> FeatureEdges:
    """Orders the non-zeros of some nodes."""
    (_, num_columns), columns = matrix.shape, matrix.indices.astype(np.int32)
    row_of_each = np.repeat(rows, np.diff(matrix.indptr)).astype(np.int32)
    ends, by_column = np.asarray([0, len(columns)]), counting_argsort(columns, num_columns)
    return FeatureEdges(
        matrix.data,
        row_of_each,
        columns,
        compress(row_of_each, None, ends),
        compress(columns[by_column], by_column, ends),
    )


def count_features(num_columns: int, tables: Sequence[FeatureEdges]) -> FeatureSizes:
    """The sizes of sparse features of so many columns."""
    by_receiver = count_lengths([table.by_receiver for table in tables])
    by_sender = count_lengths([table.by_sender for table in tables])
    return FeatureSizes(num_columns, (EdgeLengths(by_receiver, by_sender),))
