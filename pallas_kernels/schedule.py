"""The cut of long rows into pieces, decided on the host from the degrees.

Rows are dealt with in descending order of degree, so that those that a warpgroup deals with at once
are about equally long: many short rows fill it as well as a few long ones. Only a row so long that
the chip would wait for it at the end is cut into *pieces*, each of which is reduced as if it were a
row, to a *partial result* of its own. The blocks of one cluster deal with the pieces of a row, wait
for each other and join them, in the order of the edges, so that every run returns the same bits.
Only if a row is so long that a cluster would keep the chip waiting, the pieces of all rows are
dealt to the whole chip, and joined by a second, short kernel. NumPy only.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

__all__ = ["SHORTEST", "Pieces", "cut_rows", "is_spread", "longest_piece", "most_pieces"]

SHORTEST, SPREAD = 128, 4096
"""Rows of fewer edges are not cut; a chip deals with about so many rows at once."""

SHARE, SOON = 32, 2048
"""A cluster that is left alone reads about 1/32 of what a chip reads; and so many edges, of 512
bytes, in about the time that a second kernel takes."""


@dataclasses.dataclass(frozen=True)
class Pieces:
    """The rows of one group that are cut, and where.

    Attributes:
      rows, starts, lengths: int32 [pieces], the row, first edge and edges of each piece, those of
        one row side by side.
      joined_rows, joined_starts, joined_lengths: int32 [rows that are cut], the row, its first
        piece and its pieces, most pieces first.
    """

    rows: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    joined_rows: np.ndarray
    joined_starts: np.ndarray
    joined_lengths: np.ndarray


def longest_piece(slots: int, largest: int = 0) -> int:
    """Edges of a row that is not cut, at most.

    Args:
      slots: edges of all rows.
      largest: edges of the longest row.

    Returns:
      About the edges that a team deals with if all share equally; more where the pieces of the
      longest row would else take longer to join than one of them to reduce.
    """
    return max(SHORTEST, -(-slots // SPREAD), 2 * math.isqrt(largest))


def most_pieces(slots: int, largest: int) -> int:
    """The largest number of pieces that all rows together may be cut into.

    Args:
      slots: edges of all rows.
      largest: edges of the longest row, or more.

    Returns:
      The number; 0: none is cut, whatever the rows.
    """
    longest = longest_piece(slots)
    return 2 * slots // longest if min(largest, slots) > longest else 0


def is_spread(slots: int, largest: int) -> bool:
    """True where a cluster may take longer for the longest row than the chip for the others.

    Args:
      slots: edges of all rows.
      largest: edges of the longest row, or more.
    """
    return min(largest, slots) > max(SOON, slots // SHARE)


def cut_rows(rows: np.ndarray, starts: np.ndarray, degrees: np.ndarray, longest: int) -> Pieces:
    """Cuts the rows of more than `longest` edges into pieces of about equal length.

    Args:
      rows, starts, degrees: int [rows], each row, its first edge and its edges, by descending
        degree.
      longest: edges of a piece at most.

    Returns:
      The pieces; the rows that are cut are the first ones.
    """
    cut = int(np.searchsorted(-degrees.astype(np.int64), -longest))
    degrees = degrees[:cut].astype(np.int64)
    counts = -(-degrees // longest)
    first = np.cumsum(counts) - counts
    place = np.arange(int(counts.sum())) - np.repeat(first, counts)
    repeated, parts = np.repeat(degrees, counts), np.repeat(counts, counts)
    begin, end = place * repeated // parts, (place + 1) * repeated // parts
    return Pieces(
        rows=np.repeat(rows[:cut], counts).astype(np.int32),
        starts=(np.repeat(starts[:cut], counts) + begin).astype(np.int32),
        lengths=(end - begin).astype(np.int32),
        joined_rows=rows[:cut].astype(np.int32),
        joined_starts=first.astype(np.int32),
        joined_lengths=counts.astype(np.int32),
    )
