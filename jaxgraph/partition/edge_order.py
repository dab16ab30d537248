"""The order in which a shard's edges are walked: jagged diagonals, per group and orientation.

The edges are stored in row order (see `jaxgraph.partition.row_order`), and the walk is a
permutation of it; `jaxgraph.ops.edges` says what the arrays mean and why edges are walked so.
Jagged diagonal storage is Saad, "Krylov subspace methods on supercomputers", 1989, section 4.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxgraph.partition.row_order import RowOrder
from jaxgraph.partition.sorting import index_dtype, inverse_permutation

__all__ = ["Chunks", "Layout", "lay_out"]


@dataclasses.dataclass(frozen=True)
class Chunks:
    """Host form of the chunks of `jaxgraph.ops.edges.Orientation`, under the same names."""

    light_ptr: np.ndarray
    light_slots: np.ndarray
    light_rows: np.ndarray
    light_counts: np.ndarray
    heavy_ptr: np.ndarray
    heavy_slots: np.ndarray
    heavy_rows: np.ndarray
    heavy_counts: np.ndarray


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the edges of one orientation are walked.

    Attributes:
      walk: int [edges], the slot (place in row order) to which each step leads.
      chunks: the chunks; their slots are places in `walk`.
    """

    walk: np.ndarray
    chunks: Chunks

    def walk_position(self) -> np.ndarray:
        """The place of each slot in the walk, int [edges]."""
        return inverse_permutation(self.walk)


@dataclasses.dataclass(frozen=True)
class _Slabs:
    """Slab k of a group holds the k-th edge of each of its light rows with more than k edges.

    Attributes:
      groups, index: int64 [slabs of all groups], the group and k.
      lengths: int64 [slabs of all groups], edges.
      pointers: int64 [groups + 1].
    """

    groups: np.ndarray
    index: np.ndarray
    lengths: np.ndarray
    pointers: np.ndarray


def lay_out(order: RowOrder, threshold: np.ndarray, chunk: int) -> Layout:
    """Orders the edges for the walk and cuts it into chunks.

    Args:
      order: the rows of each group.
      threshold: int [groups], the degree from which rows are heavy.
      chunk: edges handled at a time.

    Returns:
      The layout: of each group first the heavy rows, one after the other, then the slabs.
    """
    groups = order.groups()
    is_heavy = order.degrees >= threshold[groups]
    heavy_rows = np.bincount(groups[is_heavy], minlength=order.num_groups)
    heavy_edges = np.bincount(
        groups[is_heavy], order.degrees[is_heavy], minlength=order.num_groups
    ).astype(np.int64)
    slabs = _slabs(order, heavy_rows, is_heavy)
    return Layout(
        _walk(order, slabs, heavy_rows, is_heavy),
        _chunks(order, slabs, heavy_rows, heavy_edges, is_heavy, chunk),
    )


def _slabs(order: RowOrder, heavy_rows: np.ndarray, is_heavy: np.ndarray) -> _Slabs:
    first = order.pointers[:-1] + heavy_rows
    has_light = first < order.pointers[1:]
    longest = np.zeros(order.num_groups, np.int64)
    longest[has_light] = order.degrees[first[has_light]]
    pointers = np.concatenate([[0], np.cumsum(longest)])
    groups = np.repeat(np.arange(order.num_groups), longest)

    last_slab = pointers[order.groups()[~is_heavy]] + order.degrees[~is_heavy] - 1
    ending = np.bincount(last_slab, minlength=int(pointers[-1]))
    ended = np.concatenate([[0], np.cumsum(ending)])
    lengths = ended[pointers[1:]][groups] - ended[:-1]
    return _Slabs(groups, np.arange(len(groups)) - pointers[groups], lengths, pointers)


def _walk(
    order: RowOrder, slabs: _Slabs, heavy_rows: np.ndarray, is_heavy: np.ndarray
) -> np.ndarray:
    """int [edges]: the slots in the order in which they are walked."""
    count = int(order.edge_ptr[-1])
    dtype = index_dtype(count)
    heavy = _ranges(order.starts[is_heavy].astype(dtype), order.degrees[is_heavy])
    # Compact rows of a slab are consecutive from the first light row of its group.
    first_row = (order.pointers[:-1] + heavy_rows)[slabs.groups].astype(dtype)
    rows = _ranges(first_row, slabs.lengths)
    light = order.starts.astype(dtype, copy=False)[rows]
    light += np.repeat(slabs.index.astype(dtype), slabs.lengths)
    if not len(heavy):
        return light
    walk = np.empty(count, dtype)
    light_ptr = np.concatenate([[0], np.cumsum(slabs.lengths)])[slabs.pointers]
    for group, start in enumerate(order.edge_ptr[:-1]):
        stop = order.edge_ptr[group + 1]
        own = light[light_ptr[group] : light_ptr[group + 1]]
        middle = stop - len(own)
        before = start - light_ptr[group]
        walk[start:middle] = heavy[before : before + middle - start]
        walk[middle:stop] = own
    return walk


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """start, start + 1, ..., start + length - 1 for one start after the other."""
    before = np.cumsum(lengths) - lengths
    ranges = np.arange(int(lengths.sum()), dtype=starts.dtype)
    ranges += np.repeat(starts - before.astype(starts.dtype), lengths)
    return ranges


def _chunks(
    order: RowOrder,
    slabs: _Slabs,
    heavy_rows: np.ndarray,
    heavy_edges: np.ndarray,
    is_heavy: np.ndarray,
    chunk: int,
) -> Chunks:
    num_groups = order.num_groups
    groups, degrees = order.groups()[is_heavy], order.degrees[is_heavy].astype(np.int64)
    # Of each group, heavy edges come first: what is stored before a run is what its kind stores
    # before it, and the other kind's edges of the groups up to there.
    light_edges = np.diff(order.edge_ptr) - heavy_edges
    heavy_start = np.cumsum(degrees) - degrees + (np.cumsum(light_edges) - light_edges)[groups]
    slab_start = np.cumsum(slabs.lengths) - slabs.lengths + np.cumsum(heavy_edges)[slabs.groups]
    light = _cut(slabs.groups, slab_start, slabs.lengths, chunk, num_groups)
    heavy = _cut(groups, heavy_start, degrees, chunk, num_groups)
    return Chunks(
        light_ptr=light.pointers,
        light_slots=light.slots,
        light_rows=light.offsets + heavy_rows[slabs.groups[light.runs]],
        light_counts=light.counts,
        heavy_ptr=heavy.pointers,
        heavy_slots=heavy.slots,
        heavy_rows=order.numbers()[is_heavy][heavy.runs],
        heavy_counts=heavy.counts,
    )


@dataclasses.dataclass(frozen=True)
class _Cut:
    """Runs of the walk cut into chunks: the run of each and how far into the run it starts."""

    pointers: np.ndarray
    runs: np.ndarray
    offsets: np.ndarray
    slots: np.ndarray
    counts: np.ndarray


def _cut(
    groups: np.ndarray, starts: np.ndarray, lengths: np.ndarray, chunk: int, num_groups: int
) -> _Cut:
    pieces = -(-lengths // chunk)
    runs = np.repeat(np.arange(len(lengths)), pieces)
    offsets = _ranges(np.zeros(len(lengths), np.int64), pieces) * chunk
    pointers = np.searchsorted(groups[runs], np.arange(num_groups + 1))
    counts = np.minimum(chunk, lengths[runs] - offsets)
    return _Cut(pointers, runs, offsets, starts[runs] + offsets, counts)
