"""The cost of visiting rows of given lengths a chunk at a time, and the cheapest sizes for it.

A chunk takes the next few edges of every row of a block of rows of similar length. Heavy rows, the
longest, are cut into runs of edges. A run is visited like a row, as in SpMM kernels that split
rows. All costs follow from the distinct lengths of a group, which are few.
"""

from __future__ import annotations

import numpy as np

from jaxgraph.layout.row_lengths import RowLengths

PIECE = 4
"""Edges of a row that a chunk takes: a larger number leaves more lanes without an edge."""
CHUNK_OVERHEAD = 512
"""Cost of starting a chunk, in edges: that of a loop trip without the work of its lanes."""
SMALLEST_CHUNK, LARGEST_CHUNK = 16, 4096
CHUNKS_PER_PART = 8
"""Least number of chunks in a part's rows: a chunk's temporaries stay small next to the part."""
CHUNKS_ALONE = 2
"""The same for a graph in one part, whose device holds all its rows in any case."""


def heavy_rows(counts: RowLengths, longest: int) -> np.ndarray:
    """Counts the rows that are longer than a run may be."""
    return counts.by_group(np.where(counts.lengths > longest, counts.rows, 0))


def count_runs(counts: RowLengths, longest: int) -> np.ndarray:
    """Counts the runs that the heavy rows are cut into."""
    runs = counts.rows * -(-counts.lengths // longest)
    return counts.by_group(np.where(counts.lengths > longest, runs, 0))


def count_chunks(counts: RowLengths, longest: int, chunk: int) -> np.ndarray:
    """Counts the chunks of the rows that are not heavy, and of the runs."""
    block = chunk // PIECE
    heavy = heavy_rows(counts, longest).ravel()[counts.groups]
    # A block has as many chunks as its first, longest row: count blocks by that row's length.
    stop = np.maximum(counts.reach - heavy, 0)
    start = np.maximum(stop - counts.rows, 0)
    blocks = -(-stop // block) + (-start // block)
    light = counts.by_group(blocks * -(-counts.lengths // PIECE))
    return light + -(-count_runs(counts, longest) // block) * -(-longest // PIECE)


def choose_longest(counts: RowLengths, chunk: int) -> tuple[int, int]:
    """Chooses the length of runs that minimises the cost of visiting all edges.

    A group has at most as many runs as a chunk has edges, less one block: the sums of runs are
    stored until the runs of a row are added up.
    """
    best = max(counts.longest, 1)
    fewest = int(count_chunks(counts, best, chunk).sum())
    longest = PIECE
    while longest < counts.longest:
        chunks = int(count_chunks(counts, longest, chunk).sum())
        fits = count_runs(counts, longest).max(initial=0) <= chunk - chunk // PIECE
        if fits and chunks < fewest:
            best, fewest = longest, chunks
        longest *= 2
    return best, fewest * (chunk + CHUNK_OVERHEAD)


def choose_chunk(counts: RowLengths, node_rows: int, num_parts: int) -> int:
    """Chooses the cheapest number of edges handled at a time."""
    least = CHUNKS_ALONE if num_parts == 1 else CHUNKS_PER_PART
    limit = max(SMALLEST_CHUNK, min(LARGEST_CHUNK, node_rows // least))
    chunk = best = SMALLEST_CHUNK
    lowest = choose_longest(counts, chunk)[1]
    while 2 * chunk <= limit:
        chunk *= 2
        cost = choose_longest(counts, chunk)[1]
        if cost < lowest:
            best, lowest = chunk, cost
    return best
