"""Row lengths counted from orders of rows, compared with counting one row at a time."""

from collections import Counter

from hypothesis import given

from jaxgraph.layout.row_lengths import (
    EdgeLengths,
)
from tests.lengths import degree_lists, lengths_of


@given(degree_lists)
def test_lengths_are_counted_group_by_group(groups):
    counts = lengths_of(groups)
    assert counts.num_groups == len(groups)
    for group, degrees in enumerate(groups):
        own = counts.groups == group
        expected = sorted(Counter(degrees).items(), reverse=True)
        assert list(zip(counts.lengths[own], counts.rows[own], strict=True)) == expected
        assert counts.reach[own].tolist() == [
            sum(other >= degree for other in degrees) for degree, _ in expected
        ]


def test_equal_lengths_have_equal_digests_and_others_have_not():
    two, other = lengths_of([[3, 2], [1]]), lengths_of([[3, 2, 1]])
    lengths = EdgeLengths(two, other)
    same = EdgeLengths(lengths_of([[3, 2], [1]]), lengths_of([[3, 2, 1]]))
    assert lengths == same and hash(lengths) == hash(same)
    different = [EdgeLengths(two, two), EdgeLengths(other, two), EdgeLengths(two, other, 1.5)]
    different.append(EdgeLengths(two, other, longer=1.5))
    assert len({lengths, *different}) == 5
