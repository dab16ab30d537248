"""The rows that have edges in a group of edges, numbered by descending degree.

The number of a row in that order is its *compact row*; see `jaxgraph.ops.core.edges` for why rows
are numbered so. The edges themselves are stored in *row order*: by group, then by row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxgraph.partition.sorting import (
    counting_argsort,
    index_dtype,
    inverse_permutation,
    run_starts,
    smallest_unsigned,
)

__all__ = ["RowOrder", "concatenate_groups", "order_by_length", "order_rows", "renumbered"]


@dataclasses.dataclass(frozen=True)
class RowOrder:
    """The rows that have edges, group by group, by descending degree and then ascending row.

    Attributes:
      rows, degrees: int [compact rows of all groups], each row and its number of edges.
      starts: int [compact rows of all groups], where the edges of each row start in row order.
      pointers: int64 [groups + 1], where the compact rows of each group start.
      edges: int [edges], the edges in row order; None: they are in that order themselves.
      edge_ptr: int64 [groups + 1], where the edges of each group start.
    """

    rows: np.ndarray
    degrees: np.ndarray
    starts: np.ndarray
    pointers: np.ndarray
    edges: np.ndarray | None
    edge_ptr: np.ndarray

    @property
    def num_groups(self) -> int:
        """How many groups there are."""
        return len(self.pointers) - 1

    def groups(self) -> np.ndarray:
        """The group of each compact row, unsigned [compact rows of all groups]."""
        return _group_of(self.pointers)

    def numbers(self) -> np.ndarray:
        """0, 1, 2, ... within each group, int [compact rows of all groups]."""
        numbers = np.arange(len(self.rows), dtype=index_dtype(len(self.rows)))
        return numbers - np.repeat(self.pointers[:-1], np.diff(self.pointers)).astype(numbers.dtype)

    def in_row_order(self, values: np.ndarray) -> np.ndarray:
        """Values [edges, ...] by edge, in row order."""
        return values if self.edges is None else values[self.edges]

    def slot_of_edge(self) -> np.ndarray:
        """The place of each edge in row order, int [edges]."""
        if self.edges is not None:
            return inverse_permutation(self.edges)
        count = int(self.edge_ptr[-1])
        return np.arange(count, dtype=index_dtype(count))

    def by_start(self) -> np.ndarray:
        """The compact rows of all groups, in row order, int [compact rows of all groups]."""
        return counting_argsort(self.starts, int(self.edge_ptr[-1]))

    def compact_of_edge(self) -> np.ndarray:
        """The compact row, within its group, of each edge, int [edges]."""
        count = int(self.edge_ptr[-1])
        marks = np.full(count, -1, index_dtype(count))
        marks[self.starts] = self.numbers()
        starts = np.flatnonzero(marks >= 0)
        by_row = np.repeat(marks[starts], np.diff(starts, append=count))
        if self.edges is None:
            return by_row
        compact = np.empty_like(by_row)
        compact[self.edges] = by_row
        return compact


def order_rows(rows: np.ndarray, edges: np.ndarray | None, edge_ptr: np.ndarray) -> RowOrder:
    """Numbers the rows of each group by descending degree.

    Args:
      rows: int [edges], the row of each edge, the edges taken by (group, row).
      edges: int [edges], the edges by (group, row), or None if they are in that order themselves.
      edge_ptr: int64 [groups + 1], where each group starts among the edges.

    Returns:
      The order.
    """
    starts = run_starts(rows, edge_ptr).astype(index_dtype(len(rows)))
    degrees = np.diff(starts, append=starts.dtype.type(len(rows)))
    pointers = np.searchsorted(starts, edge_ptr.astype(starts.dtype))
    order = order_by_length(degrees, pointers)
    return RowOrder(rows[starts[order]], degrees[order], starts[order], pointers, edges, edge_ptr)


def renumbered(order: RowOrder, rows: np.ndarray) -> RowOrder:
    """All groups of an order as one, under new row numbers.

    Args:
      order: the order.
      rows: int [compact rows of all groups], a new number for each, different for each.

    Returns:
      An order of one group.
    """
    by_row = np.argsort(rows, kind="stable")
    pointers = np.asarray([0, len(rows)])
    by_row = by_row[order_by_length(order.degrees[by_row], pointers)]
    return RowOrder(
        rows[by_row],
        order.degrees[by_row],
        order.starts[by_row],
        pointers,
        order.edges,
        order.edge_ptr[[0, -1]],
    )


def concatenate_groups(members: Sequence[tuple[RowOrder, int]]) -> RowOrder:
    """One order made of some groups of others.

    Args:
      members: for each new group, the order that holds it and its number there.

    Returns:
      The order; the edges of the new groups are numbered through.
    """
    row_counts = [order.pointers[g + 1] - order.pointers[g] for order, g in members]
    edge_counts = [order.edge_ptr[g + 1] - order.edge_ptr[g] for order, g in members]
    pointers, edge_ptr = (np.cumsum([0, *counts]) for counts in (row_counts, edge_counts))
    dtype = index_dtype(int(edge_ptr[-1]))
    rows, degrees, starts, edges = [], [], [], []
    for (order, group), first in zip(members, edge_ptr.tolist(), strict=False):
        some = slice(order.pointers[group], order.pointers[group + 1])
        rows.append(order.rows[some])
        degrees.append(order.degrees[some])
        shift = first - int(order.edge_ptr[group])
        starts.append(order.starts[some].astype(dtype) + shift)
        if order.edges is not None:
            own = order.edges[order.edge_ptr[group] : order.edge_ptr[group + 1]]
            edges.append(own.astype(dtype) + shift)
    return RowOrder(
        np.concatenate(rows),
        np.concatenate(degrees),
        np.concatenate(starts),
        pointers,
        np.concatenate(edges) if edges else None,
        edge_ptr,
    )


def order_by_length(
    lengths: np.ndarray, pointers: np.ndarray, among: np.ndarray | None = None
) -> np.ndarray:
    """Orders rows by group, within each by descending number of edges.

    Args:
      lengths: int [rows], edges of each, group by group.
      pointers: int [groups + 1], where the rows of each group start.
      among: int [rows], the order of equally long rows of a group; None: as they are.

    Returns:
      int [rows], which row is the first, the second, ...
    """
    largest = int(lengths.max(initial=0))
    keys = (largest - lengths).astype(smallest_unsigned(largest))
    order = np.argsort(keys if among is None else keys[among], kind="stable")
    order = order if among is None else among[order]
    if len(pointers) > 2:
        order = order[np.argsort(_group_of(pointers)[order], kind="stable")]
    return order


def _group_of(pointers: np.ndarray) -> np.ndarray:
    groups = np.arange(len(pointers) - 1, dtype=smallest_unsigned(len(pointers) - 1))
    return np.repeat(groups, np.diff(pointers))
