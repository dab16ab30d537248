"""Compressed rows: the rows that have edges, group by group, and the consecutive edges of each row.

Edges are stored in *row order*: by group, then by row. The rows of a halo travel in *halo order*:
by descending number of edges, so that the rows that are read most often are near each other.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from jaxgraph.partition.sorting import (
    index_dtype,
    inverse_permutation,
    run_starts,
    smallest_unsigned,
)


@dataclasses.dataclass(frozen=True)
class CompressedRows:
    """The rows that have edges, group by group, in ascending order of rows.

    Attributes:
      rows: int [rows of all groups], each row.
      starts: int [rows of all groups], where the edges of each row start in row order.
      pointers: int64 [groups + 1], where the rows of each group start.
      edges: int [edges], the edges in row order; None: they are in that order already.
      edge_ptr: int64 [groups + 1], where the edges of each group start.
    """

    rows: np.ndarray
    starts: np.ndarray
    pointers: np.ndarray
    edges: np.ndarray | None
    edge_ptr: np.ndarray

    @property
    def num_groups(self) -> int:
        """The number of groups."""
        return len(self.pointers) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Edges of each row, int [rows of all groups]."""
        return np.diff(self.starts, append=self.starts.dtype.type(self.edge_ptr[-1]))

    def groups(self) -> np.ndarray:
        """The group of each row, unsigned [rows of all groups]."""
        groups = np.arange(self.num_groups, dtype=smallest_unsigned(self.num_groups))
        return np.repeat(groups, np.diff(self.pointers))

    def in_row_order(self, values: np.ndarray) -> np.ndarray:
        """Values [edges, ...] by edge, in row order."""
        return values if self.edges is None else values[self.edges]

    def by_edge(self, values: np.ndarray) -> np.ndarray:
        """Values [rows of all groups] by row, repeated for each edge: [edges]."""
        in_row_order = np.repeat(values, self.lengths)
        if self.edges is None:
            return in_row_order
        found = np.empty_like(in_row_order)
        found[self.edges] = in_row_order
        return found

    def halo_order(self) -> np.ndarray:
        """The rows of all groups in halo order, int [rows of all groups]."""
        return order_by_length(self.lengths, self.pointers, self.rows)

    def halo_numbers(self) -> np.ndarray:
        """The number of each row in the halo order of its group, int [rows of all groups]."""
        numbers = inverse_permutation(self.halo_order())
        return numbers - np.repeat(self.pointers[:-1], np.diff(self.pointers)).astype(numbers.dtype)

    def numbers_in(self, halo: CompressedRows) -> np.ndarray:
        """The number of each row in another halo that has it, int [rows of all groups]."""
        if halo is self:
            return self.halo_numbers()
        size = int(max(self.rows.max(initial=0), halo.rows.max(initial=0))) + 1
        own, all_rows = (each.groups().astype(np.int64) * size + each.rows for each in (self, halo))
        return halo.halo_numbers()[np.searchsorted(all_rows, own)]


def compress(rows: np.ndarray, edges: np.ndarray | None, edge_ptr: np.ndarray) -> CompressedRows:
    """Finds the rows that have edges."""
    starts = run_starts(rows, edge_ptr).astype(index_dtype(len(rows)))
    pointers = np.searchsorted(starts, edge_ptr.astype(starts.dtype))
    return CompressedRows(rows[starts], starts, pointers, edges, edge_ptr)


def order_by_length(lengths: np.ndarray, pointers: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Orders rows by group, within each by descending number of edges, then by row."""
    largest = int(lengths.max(initial=0))
    keys = (largest - lengths).astype(smallest_unsigned(largest))
    order = np.empty(len(keys), index_dtype(len(keys)))
    # NumPy's orders have 64 bits: one group at a time.
    for first, stop in itertools.pairwise(pointers):
        order[first:stop] = np.lexsort((rows[first:stop], keys[first:stop])) + first
    return order
