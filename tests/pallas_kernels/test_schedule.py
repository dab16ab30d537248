import numpy as np
import pytest

from pallas_kernels.schedule import cut_rows, longest_piece, most_pieces


def test_pieces_are_the_edges_of_long_rows_in_order():
    degrees = np.asarray([23, 10, 9, 8, 1])
    rows, starts = np.asarray([4, 0, 1, 3, 2]), np.asarray([60, 0, 10, 40, 30])
    pieces = cut_rows(rows, starts, degrees, 8)
    np.testing.assert_array_equal(pieces.joined_rows, [4, 0, 1])
    np.testing.assert_array_equal(pieces.joined_lengths, [3, 2, 2])
    for row, start, first, count in zip(
        pieces.joined_rows, starts, pieces.joined_starts, pieces.joined_lengths, strict=False
    ):
        own = slice(first, first + count)
        assert (pieces.rows[own] == row).all()
        slots = [
            slot
            for begin, length in zip(pieces.starts[own], pieces.lengths[own], strict=True)
            for slot in range(begin, begin + length)
        ]
        assert slots == list(range(start, start + degrees[list(rows).index(row)]))
    assert pieces.lengths.max() <= 8
    assert np.ptp(pieces.lengths[:3]) <= 1


def test_a_hub_is_cut_so_that_joining_is_short():
    degrees = np.asarray([100_000, *[3] * 1000])
    longest = longest_piece(int(degrees.sum()), 100_000)
    pieces = cut_rows(np.arange(1001), np.cumsum(degrees) - degrees, degrees, longest)
    assert pieces.joined_lengths[0] == len(pieces.rows)
    assert len(pieces.rows) < longest < 1000


@pytest.mark.parametrize("slots", [1, 128, 129, 5000, 10_000_000])
@pytest.mark.parametrize("one_row", [False, True])
def test_there_is_room_for_all_pieces(slots, one_row):
    longest = longest_piece(slots)
    # As many pieces as can be: rows just too long to be left whole.
    degrees = np.full(slots // (longest + 1), longest + 1)
    if one_row:
        degrees = np.asarray([slots])
    pieces = cut_rows(degrees, degrees, degrees, longest)
    assert len(pieces.rows) <= most_pieces(slots, int(degrees.max(initial=0)))
