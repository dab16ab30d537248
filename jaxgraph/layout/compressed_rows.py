"""Compressed rows: the rows that have edges, group by group, and the consecutive edges of each row.

Edges are stored in *row order*: by group, then by row. The rows of a halo travel in *halo order*:
by descending number of edges, so that the rows that are read most often are near each other.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

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
        return _group_of(self.pointers)

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

    def slot_of_edge(self) -> np.ndarray:
        """The slot of each edge in row order, int [edges]."""
        if self.edges is not None:
            return inverse_permutation(self.edges)
        count = int(self.edge_ptr[-1])
        return np.arange(count, dtype=index_dtype(count))

    def halo_order(self) -> np.ndarray:
        """The rows of all groups in halo order, int [rows of all groups]."""
        return order_by_length(self.lengths, self.pointers)

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


def concatenate_groups(members: Sequence[tuple[CompressedRows, int]]) -> CompressedRows:
    """Joins groups of several compressed rows."""
    row_counts = [some.pointers[g + 1] - some.pointers[g] for some, g in members]
    edge_counts = [some.edge_ptr[g + 1] - some.edge_ptr[g] for some, g in members]
    pointers, edge_ptr = (np.cumsum([0, *counts]) for counts in (row_counts, edge_counts))
    dtype = index_dtype(int(edge_ptr[-1]))
    rows, starts, edges = [], [], []
    for (some, group), first in zip(members, edge_ptr.tolist(), strict=False):
        own = slice(some.pointers[group], some.pointers[group + 1])
        rows.append(some.rows[own])
        shift = first - int(some.edge_ptr[group])
        starts.append(some.starts[own].astype(dtype) + shift)
        if some.edges is not None:
            numbers = some.edges[some.edge_ptr[group] : some.edge_ptr[group + 1]]
            edges.append(numbers.astype(dtype) + shift)
    return CompressedRows(
        np.concatenate(rows),
        np.concatenate(starts),
        pointers,
        np.concatenate(edges) if edges else None,
        edge_ptr,
    )


def order_by_length(
    lengths: np.ndarray, pointers: np.ndarray, among: np.ndarray | None = None
) -> np.ndarray:
    """Orders rows by group, within each by descending number of edges."""
    largest = int(lengths.max(initial=0))
    keys = (largest - lengths).astype(smallest_unsigned(largest))
    if among is None:
        return _order_within(keys, pointers)
    order = among[np.argsort(keys[among], kind="stable")]
    if len(pointers) > 2:
        order = order[np.argsort(_group_of(pointers)[order], kind="stable")]
    return order


def _order_within(keys: np.ndarray, pointers: np.ndarray) -> np.ndarray:
    """The rows of each group by ascending key; NumPy's orders have 64 bits, so one at a time."""
    order = np.empty(len(keys), index_dtype(len(keys)))
    for first, stop in itertools.pairwise(pointers):
        order[first:stop] = np.argsort(keys[first:stop], kind="stable")
        order[first:stop] += order.dtype.type(first)
    return order


def _group_of(pointers: np.ndarray) -> np.ndarray:
    groups = np.arange(len(pointers) - 1, dtype=smallest_unsigned(len(pointers) - 1))
    return np.repeat(groups, np.diff(pointers))
