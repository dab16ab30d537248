"""Rows of all parts that have edges, and those of so many edges that they are visited alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from jaxgraph.partition.degrees import DegreeCounts, heavy_rows, split_rows
from jaxgraph.partition.survey import Survey

__all__ = ["RowCounts", "count_rows", "leaving"]

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class RowCounts:
    """One orientation of the edges of all parts.

    Attributes:
      rows, heavy_rows: int64 [parts, groups], rows that have edges, and how many of these are
        visited on their own.
    """

    rows: np.ndarray
    heavy_rows: np.ndarray

    def leaving(self) -> RowCounts:
        """The same by the part that the edges leave, without those that stay."""
        return RowCounts(leaving(self.rows), leaving(self.heavy_rows))

    def capacity(self, chunk: int) -> int:
        """Compact rows of the largest group, plus one chunk."""
        return int(self.rows.max()) + chunk

    def extents(self, prefix: str, edges: int) -> Iterator[tuple[str, Shape]]:
        """The lengths of the arrays of an orientation, without slack.

        Args:
          prefix: what their names start with.
          edges: of the largest part.

        Yields:
          Names and shapes.
        """
        groups = self.rows.shape[1]
        yield f"{prefix}/neighbors", (edges,)
        if prefix.endswith("by_sender"):
            yield f"{prefix}/edge_ids", (edges,)
        yield f"{prefix}/heavy_rows", (groups,)
        yield f"{prefix}/compressed_ptr", (groups + 1,)
        largest = int(self.rows.sum(axis=1).max())
        for field in ("rows", "starts", "degrees", "compressed_rows", "compressed_starts"):
            yield f"{prefix}/{field}", (largest,)
        yield f"{prefix}/position", (0,)


def count_rows(survey: Survey, chunk: int) -> tuple[RowCounts, RowCounts]:
    """Counts the rows by receiver, and by sender.

    Args:
      survey: the graph.
      chunk: edges handled at a time.

    Returns:
      Both counts.
    """

    def choose(counts: DegreeCounts) -> RowCounts:
        heavy = heavy_rows(counts, split_rows(counts, chunk)[0])
        rows = counts.by_group(counts.rows)
        return RowCounts(*(values.reshape(survey.num_parts, -1) for values in (rows, heavy)))

    return choose(survey.receiver_degrees), choose(survey.sender_degrees)


def leaving(values: np.ndarray) -> np.ndarray:
    """[parts, groups] of edges by the part they end in, as [parts, steps] by that they leave."""
    part, step = np.ogrid[: len(values), 1 : len(values)]
    return values[(part + step) % len(values), step]
