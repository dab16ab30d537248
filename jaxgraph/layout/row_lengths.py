"""Counts of rows by their length, in the edge groups of all parts: a summary of a graph's edges.

The length of a row is the number of its edges. The sizes of all derived arrays follow from these
counts, so that every process computes the same sizes.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Sequence

import numpy as np

from jaxgraph.layout.compressed_rows import CompressedRows
from jaxgraph.partition.sorting import run_starts


@dataclasses.dataclass(frozen=True, eq=False)
class RowLengths:
    """The distinct lengths of the rows of each edge group, in one orientation.

    Attributes:
      groups: int64 [entries], ascending; group g of table t is t * (groups of a table) + g.
      lengths: int64 [entries], descending within a group.
      rows: int64 [entries], the number of rows of the group with that length.
      num_tables: tables of edges, such as one for each part.
      groups_per_table: edge groups of each; some may have no entries.
    """

    groups: np.ndarray
    lengths: np.ndarray
    rows: np.ndarray
    num_tables: int
    groups_per_table: int

    @property
    def num_groups(self) -> int:
        """Groups of all tables."""
        return self.num_tables * self.groups_per_table

    @property
    def longest(self) -> int:
        """Edges of the longest row."""
        return int(self.lengths.max(initial=0))

    @functools.cached_property
    def reach(self) -> np.ndarray:
        """int64 [entries], rows of the group that are as long or longer."""
        running = np.cumsum(self.rows)
        before = np.concatenate([[0], running])[np.searchsorted(self.groups, self.groups)]
        return running - before

    def by_group(self, values: np.ndarray) -> np.ndarray:
        """Sums int [entries] over each group, int64 [tables, groups]."""
        running = np.concatenate([[0], np.cumsum(values)])
        bounds = np.searchsorted(self.groups, np.arange(self.num_groups + 1))
        sums = running[bounds[1:]] - running[bounds[:-1]]
        return sums.reshape(self.num_tables, self.groups_per_table)


@dataclasses.dataclass(frozen=True, eq=False)
class EdgeLengths:
    """The row lengths of a graph's edges in both orientations, with room for other graphs.

    Attributes:
      by_receiver, by_sender: of the graph.
      more: the factor by which another graph may have more rows.
      longer: the factor by which its longest row may be longer.
    """

    by_receiver: RowLengths
    by_sender: RowLengths
    more: float = 1.0
    longer: float = 1.0

    @functools.cached_property
    def digest(self) -> str:
        """A hash of the counts; equal counts alone have equal digests."""
        found = hashlib.sha256(f"{self.more} {self.longer}".encode())
        for side in (self.by_receiver, self.by_sender):
            found.update(f" {side.num_tables} {side.groups_per_table} {len(side.rows)} ".encode())
            for values in (side.groups, side.lengths, side.rows):
                found.update(np.ascontiguousarray(values, np.int64).data)
        return found.hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EdgeLengths):
            return NotImplemented
        return self is other or self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def count_lengths(tables: Sequence[CompressedRows], *, whole: bool = False) -> RowLengths:
    """Counts the lengths of the rows of some tables."""
    largest = max(int(table.lengths.max(initial=0)) for table in tables)
    keys, per_table = [], 1 if whole else tables[0].num_groups
    for number, table in enumerate(tables):
        key = largest - table.lengths.astype(np.int64)
        if not whole:
            key += table.groups().astype(np.int64) * (largest + 1)
        keys.append(np.sort(key) + number * per_table * (largest + 1))
    key = np.concatenate(keys)
    starts = run_starts(key, np.zeros(0, np.int64))
    groups, inverted = np.divmod(key[starts], largest + 1)
    return RowLengths(
        groups, largest - inverted, np.diff(starts, append=len(key)), len(tables), per_table
    )


def join_lengths(several: Sequence[RowLengths], num_tables: int = 1) -> RowLengths:
    """Joins several counts into those of one table, or of so many tables in turn."""
    first = np.cumsum([0, *(each.num_groups for each in several)])
    return RowLengths(
        np.concatenate([x.groups + shift for x, shift in zip(several, first[:-1], strict=True)]),
        np.concatenate([each.lengths for each in several]),
        np.concatenate([each.rows for each in several]),
        num_tables,
        int(first[-1]) // num_tables,
    )


def leaving(values: np.ndarray) -> np.ndarray:
    """Regroups values [parts, groups] by the part that edges enter as [parts, steps] by sender."""
    part, step = np.ogrid[: len(values), 1 : len(values)]
    return values[(part + step) % len(values), step]
