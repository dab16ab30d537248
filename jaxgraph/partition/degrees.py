"""What it costs to visit the edges of rows of given degrees, and which rows to visit on their own.

Edges are handled a chunk at a time. A chunk takes the next few edges of every row of a block of
rows of about equal degree, or holds edges of one row only: rows of very high degree are kept apart,
as SpMM kernels that split rows do. Everything here follows from the distinct degrees of a group,
which are few.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxgraph.partition.row_order import RowOrder
from jaxgraph.partition.sorting import run_starts

__all__ = [
    "PIECE",
    "DegreeCounts",
    "choose_chunk",
    "count_chunks",
    "count_degrees",
    "heavy_rows",
    "join_counts",
    "split_rows",
]

PIECE = 8
"""Edges of a row that are taken at a time. XLA writes a fused loop of up to 15 terms."""
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
      rows: int64 [entries], rows of that degree.
      reach: int64 [entries], rows of that degree or a higher one.
      num_groups: number of groups; some may be without entries.
    """

    groups: np.ndarray
    degrees: np.ndarray
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
    before = np.searchsorted(key, groups * (largest + 1))
    return DegreeCounts(groups, degrees, rows, starts + rows - before, num_groups)


def join_counts(counts: Sequence[DegreeCounts]) -> DegreeCounts:
    """The groups of some counts, one after the other."""
    first = np.cumsum([0, *(each.num_groups for each in counts)])

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(each, name) for each in counts])

    groups = [each.groups + shift for each, shift in zip(counts, first[:-1], strict=True)]
    return DegreeCounts(
        np.concatenate(groups),
        joined("degrees"),
        joined("rows"),
        joined("reach"),
        int(first[-1]),
    )


def heavy_rows(counts: DegreeCounts, threshold: np.ndarray | int) -> np.ndarray:
    """How many rows of each group are heavy.

    Args:
      counts: the degrees.
      threshold: int [groups] or one for all, the degree from which rows are heavy.

    Returns:
      int64 [groups].
    """
    threshold = np.broadcast_to(threshold, counts.num_groups)[counts.groups]
    return counts.by_group(np.where(counts.degrees >= threshold, counts.rows, 0))


def count_chunks(
    counts: DegreeCounts, threshold: np.ndarray | int, chunk: int
) -> tuple[np.ndarray, np.ndarray]:
    """Chunks of light and of heavy rows.

    Args:
      counts: the degrees.
      threshold: int [groups] or one for all, the degree from which rows are heavy.
      chunk: edges handled at a time, a multiple of `PIECE`.

    Returns:
      int64 [groups], the chunks of blocks of rows, and int64 [groups], those of single rows.
    """
    block = chunk // PIECE
    heavy = heavy_rows(counts, threshold)[counts.groups]
    # A block goes on until its first row ends: count those that start with a row of each degree.
    stop = np.maximum(counts.reach - heavy, 0)
    start = np.maximum(stop - counts.rows, 0)
    blocks = -(-stop // block) + (-start // block)
    per_row = np.where(counts.reach <= heavy, counts.rows * -(-counts.degrees // chunk), 0)
    return counts.by_group(blocks * -(-counts.degrees // PIECE)), counts.by_group(per_row)


def split_rows(counts: DegreeCounts, chunk: int) -> tuple[np.ndarray, int]:
    """The cheapest degree from which to visit rows on their own.

    Args:
      counts: the degrees.
      chunk: edges handled at a time.

    Returns:
      int64 [groups], a power of two, or one more than the largest degree of all: nowhere; and what
      visiting all edges then costs, in edge slots.
    """
    largest = int(counts.degrees.max(initial=0))
    best = np.full(counts.num_groups, largest + 1)
    fewest = np.sum(count_chunks(counts, best, chunk), axis=0)
    threshold = 2
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
