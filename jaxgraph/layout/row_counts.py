"""Rows of all parts that have edges, and those of so many edges that they are cut into runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from jaxgraph.layout.degrees import (
    PIECE,
    DegreeCounts,
    choose_longest,
    count_runs,
    heavy_rows,
)
from jaxgraph.layout.survey import Survey
from pallas_kernels.schedule import SHORTEST

__all__ = ["RowCounts", "choose_runs", "count_rows", "leaving"]

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class RowCounts:
    """One orientation of the edges of all parts.

    Attributes:
      rows, heavy_rows: int64 [parts, groups], rows that have edges, and how many of these are cut.
      runs: int64 [parts, groups], into how many runs.
      longest: edges of a run.
      longest_row: edges of a row, at most; as many as no kernel cuts where all are shorter, so that
        such graphs are alike.
    """

    rows: np.ndarray
    heavy_rows: np.ndarray
    runs: np.ndarray
    longest: int
    longest_row: int

    def leaving(self) -> RowCounts:
        """The same by the part that the edges leave, without those that stay."""
        rows, heavy, runs = map(leaving, (self.rows, self.heavy_rows, self.runs))
        return dataclasses.replace(self, rows=rows, heavy_rows=heavy, runs=runs)

    def cut(self, part: int) -> tuple[np.ndarray, int]:
        """The heavy rows of each group of a part, int64 [groups], and the edges of their runs."""
        return self.heavy_rows[part], self.longest

    def capacity(self, chunk: int) -> int:
        """Compact rows of the largest group and the runs behind them, plus one block of rows."""
        return int((self.rows + self.runs).max()) + chunk // PIECE

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
        for field in ("run_ptr", "compressed_ptr"):
            yield f"{prefix}/{field}", (groups + 1,)
        visited = int((self.rows + self.runs).sum(axis=1).max())
        for field in ("rows", "starts", "degrees"):
            yield f"{prefix}/{field}", (visited,)
        largest = int(self.rows.sum(axis=1).max())
        for field in ("compressed_rows", "compressed_starts"):
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

    degrees = (survey.receiver_degrees, survey.sender_degrees)
    by_receiver, by_sender = (choose_runs(each, chunk, survey.num_parts) for each in degrees)
    return by_receiver, by_sender


def choose_runs(counts: DegreeCounts, chunk: int, num_tables: int) -> RowCounts:
    """Counts the rows of one orientation, and chooses which are cut into runs.

    Args:
      counts: the degrees in all groups of some tables of edges, as many groups in each.
      chunk: edges handled at a time.
      num_tables: how many tables, such as one for each part.

    Returns:
      The counts, [tables, groups].
    """
    longest = choose_longest(counts, chunk)[0]
    rows, heavy = counts.by_group(counts.rows), heavy_rows(counts, longest)
    runs = count_runs(counts, longest)
    rows, heavy, runs = (each.reshape(num_tables, -1) for each in (rows, heavy, runs))
    largest = int(counts.degrees.max(initial=SHORTEST))
    return RowCounts(rows, heavy, runs, longest, largest)


def leaving(values: np.ndarray) -> np.ndarray:
    """[parts, groups] of edges by the part they end in, as [parts, steps] by that they leave."""
    part, step = np.ogrid[: len(values), 1 : len(values)]
    return values[(part + step) % len(values), step]
