"""What it costs to walk the edges of rows of given degrees, and which rows to walk on their own.

Edges are handled a chunk at a time. A chunk lies in one slab (the k-th edge of every row with more
than k edges), or holds edges of one row only: rows of very high degree are kept apart, as SpMM
kernels that split rows do. Everything here follows from the distinct degrees of a group, which are
few.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxgraph.partition.row_order import RowOrder
from jaxgraph.partition.sorting import run_starts

__all__ = [
    "DegreeCounts",
    "choose_chunk",
    "count_chunks",
    "count_degrees",
    "join_counts",
    "split_rows",
]

CHUNK_OVERHEAD = 128
"""Cost of starting a chunk, in edges: what a loop trip costs beside the work of its lanes."""
SMALLEST_CHUNK, LARGEST_CHUNK = 16, 4096
CHUNKS_PER_SHARD = 8
"""Chunks in a shard's rows at least: what is live for one stays small beside the shard."""


@dataclasses.dataclass(frozen=True)
class DegreeCounts:
    """The distinct degrees of the rows of each group, descending.

    Attributes:
      groups: int [entries], ascending.
      degrees: int64 [entries].
      lower: int64 [entries], the next lower degree of the group, 0 if there is none.
      rows: int64 [entries], rows of that degree.
      reach: int64 [entries], rows of that degree or a higher one.
      num_groups: number of groups; some may be without entries.
    """

    groups: np.ndarray
    degrees: np.ndarray
    lower: np.ndarray
    rows: np.ndarray
    reach: np.ndarray
    num_groups: int

    def by_group(self, values: np.ndarray) -> np.ndarray:
        """Sums int [entries] over each group, int64 [groups]."""
        running = np.concatenate([[0], np.cumsum(values)])
        bounds = np.searchsorted(self.groups, np.arange(self.num_groups + 1))
        return running[bounds[1:]] - running[bounds[:-1]]


def count_degrees(orders: Sequence[RowOrder], *, whole: bool = False) -> DegreeCounts:
    """The distinct degrees in all groups of some orders, one order after the other.

    Args:
      orders: the orders.
      whole: whether to take all groups of an order as one.

    Returns:
      The counts.
    """
    largest = max((int(order.degrees.max(initial=0)) for order in orders), default=0)
    keys, num_groups = [], 0
    for order in orders:
        key = largest - order.degrees.astype(np.int64)
        if not whole:
            key += order.groups().astype(np.int64) * (largest + 1)
        keys.append(np.sort(key) + num_groups * (largest + 1))
        num_groups += 1 if whole else order.num_groups
    key = np.concatenate(keys)
    starts = run_starts(key, np.zeros(0, np.int64))
    rows = np.diff(starts, append=len(key))
    groups, inverted = np.divmod(key[starts], largest + 1)
    degrees = largest - inverted
    last = np.append(groups[1:] != groups[:-1], True)[: len(groups)]
    lower = np.where(last, 0, np.append(degrees[1:], 0)[: len(degrees)])
    before = np.searchsorted(key, groups * (largest + 1))
    return DegreeCounts(groups, degrees, lower, rows, starts + rows - before, num_groups)


def join_counts(counts: Sequence[DegreeCounts]) -> DegreeCounts:
    """The groups of some counts, one after the other."""
    first = np.cumsum([0, *(each.num_groups for each in counts)])

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(each, name) for each in counts])

    groups = [each.groups + shift for each, shift in zip(counts, first[:-1], strict=True)]
    return DegreeCounts(
        np.concatenate(groups),
        joined("degrees"),
        joined("lower"),
        joined("rows"),
        joined("reach"),
        int(first[-1]),
    )


def count_chunks(
    counts: DegreeCounts, threshold: np.ndarray | int, chunk: int
) -> tuple[np.ndarray, np.ndarray]:
    """Chunks of light and of heavy rows.

    Args:
      counts: the degrees.
      threshold: int [groups] or one for all, the degree from which rows are heavy.
      chunk: edges handled at a time.

    Returns:
      int64 [groups], the chunks that lie in slabs, and int64 [groups], those of single rows.
    """
    threshold = np.broadcast_to(threshold, counts.num_groups)[counts.groups]
    is_heavy = counts.degrees >= threshold
    heavy_rows = counts.by_group(np.where(is_heavy, counts.rows, 0))[counts.groups]
    slabs = np.maximum(np.minimum(counts.degrees, threshold - 1) - counts.lower, 0)
    in_slab = -(-np.maximum(counts.reach - heavy_rows, 0) // chunk)
    per_row = np.where(is_heavy, counts.rows * -(-counts.degrees // chunk), 0)
    return counts.by_group(slabs * in_slab), counts.by_group(per_row)


def split_rows(counts: DegreeCounts, chunk: int, least: int = 1) -> tuple[np.ndarray, int]:
    """The cheapest degree from which to walk rows on their own.

    Args:
      counts: the degrees.
      chunk: edges handled at a time.
      least: the lowest degree to consider, a power of two.

    Returns:
      int64 [groups], a power of two, or one more than the largest degree of all: nowhere; and what
      walking all edges then costs, in edge slots.
    """
    largest = int(counts.degrees.max(initial=0))
    best = np.full(counts.num_groups, largest + 1)
    fewest = np.sum(count_chunks(counts, best, chunk), axis=0)
    threshold = max(least, 2)
    while threshold <= largest:
        chunks = np.sum(count_chunks(counts, threshold, chunk), axis=0)
        best = np.where(chunks < fewest, threshold, best)
        fewest = np.minimum(chunks, fewest)
        threshold *= 2
    return best, int(fewest.sum()) * (chunk + CHUNK_OVERHEAD)


def choose_chunk(counts: DegreeCounts, node_rows: int) -> int:
    """The number of edges handled at a time that costs least.

    Args:
      counts: the degrees in all groups of all shards, in both orientations.
      node_rows: rows of the largest shard.

    Returns:
      A power of two.
    """
    limit = max(SMALLEST_CHUNK, min(LARGEST_CHUNK, node_rows // CHUNKS_PER_SHARD))
    chunk = best = SMALLEST_CHUNK
    lowest = split_rows(counts, chunk)[1]
    while 2 * chunk <= limit:
        chunk *= 2
        cost = split_rows(counts, chunk)[1]
        if cost < lowest:
            best, lowest = chunk, cost
    return best
