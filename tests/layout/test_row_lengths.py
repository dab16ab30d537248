"""Row lengths: equal ones have equal digests."""

from jaxgraph.layout.row_lengths import (
    EdgeLengths,
)
from tests.lengths import lengths_of


def test_equal_lengths_have_equal_digests_and_others_have_not():
    two, other = lengths_of([[3, 2], [1]]), lengths_of([[3, 2, 1]])
    lengths = EdgeLengths(two, other)
    same = EdgeLengths(lengths_of([[3, 2], [1]]), lengths_of([[3, 2, 1]]))
    assert lengths == same and hash(lengths) == hash(same)
    different = [EdgeLengths(two, two), EdgeLengths(other, two), EdgeLengths(two, other, 1.5)]
    different.append(EdgeLengths(two, other, longer=1.5))
    assert len({lengths, *different}) == 5
