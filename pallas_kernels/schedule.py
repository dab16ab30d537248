"""The cut of long rows into pieces, decided on the host from the degrees.

Rows are reduced in descending order of degree, so that the rows that a warpgroup reduces at once
are about equally long: many short rows fill it as well as a few long ones. Only a row so long that
the chip would wait for it at the end is cut into *pieces*. Each piece is reduced like a row, to a
*partial result*. The blocks of one cluster share the pieces of a row, wait for each other and join
them, in the order of the edges, so that every run returns the same bits. Only if a row is so long
that a cluster would keep the chip waiting, the whole chip shares the pieces of all rows, and a
second, short kernel joins them. NumPy only.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

__all__ = ["SHORTEST", "Pieces", "cut_rows", "is_spread", "longest_piece", "most_pieces"]

SHORTEST, SPREAD = 128, 4096
"""Rows of fewer edges are not cut; a chip reduces about so many rows at once."""

SHARE, SOON = 32, 2048
"""A cluster alone reads about 1/32 of the bytes that a chip reads; and it reads so many edges, of
512 bytes, in about the time of a second kernel."""


@dataclasses.dataclass(frozen=True)
class Pieces:
    """The cut rows of one group, and their pieces.

    Attributes:
      rows, starts, lengths: int32 [pieces], the row, first edge and number of edges of each piece;
        the pieces of a row are consecutive.
      joined_rows, joined_starts, joined_lengths: int32 [cut rows], the row, its first piece and its
        number of pieces, most pieces first.
    """

    rows: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    joined_rows: np.ndarray
    joined_starts: np.ndarray
    joined_lengths: np.ndarray


def longest_piece(slots: int, largest: int = 0) -> int:
    """The most edges of a row that is not cut.

    Args:
      slots: edges of all rows.
      largest: edges of the longest row.

    Returns:
      About the edges of a team if all share equally; more where joining the pieces of the longest
      row would otherwise take longer than reducing one of them.
    """
    return max(SHORTEST, -(-slots // SPREAD), 2 * math.isqrt(largest))


def most_pieces(slots: int, largest: int) -> int:
    """The most pieces into which all rows together may be cut.

    Args:
      slots: edges of all rows.
      largest: edges of the longest row, or more.

    Returns:
      The number; 0: no row is cut.
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
      rows, starts, degrees: int [rows], each row, its first edge and its number of edges, by
        descending degree.
      longest: the most edges of a piece.

    Returns:
      The pieces; the first rows are cut.
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
