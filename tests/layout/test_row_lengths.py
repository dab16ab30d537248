"""Row lengths counted from orders of rows, compared with counting one row at a time."""

from collections import Counter

import numpy as np
from hypothesis import given

from jaxgraph.layout.row_lengths import (
    EdgeLengths,
    RowLengths,
    count_lengths,
    join_lengths,
    leaving,
)
from tests.lengths import degree_lists, lengths_of, order_of


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


@given(degree_lists)
def test_all_groups_taken_as_one(groups):
    whole = count_lengths([order_of(groups), order_of([[3], [4]])], whole=True)
    one_group = [[degree for group in groups for degree in group]]
    assert_equal(whole, count_lengths([order_of(one_group), order_of([[3, 4]])]))


@given(degree_lists, degree_lists)
def test_joined_lengths_are_those_of_all_groups(groups, others):
    assert_equal(
        join_lengths([lengths_of(groups), lengths_of(others)]), lengths_of(groups + others)
    )


@given(degree_lists)
def test_sums_over_groups(groups):
    counts = count_lengths([order_of(groups), order_of(groups[::-1])])
    edges = counts.by_group(counts.rows * counts.lengths)
    assert edges.tolist() == [[sum(group) for group in x] for x in (groups, groups[::-1])]
    assert counts.longest == max((degree for group in groups for degree in group), default=0)


def assert_equal(found: RowLengths, expected: RowLengths) -> None:
    assert found.num_groups == expected.num_groups
    for name in ("groups", "lengths", "rows", "reach"):
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name


def test_equal_lengths_have_equal_digests_and_others_have_not():
    two, other = lengths_of([[3, 2], [1]]), lengths_of([[3, 2, 1]])
    lengths = EdgeLengths(two, other)
    same = EdgeLengths(lengths_of([[3, 2], [1]]), lengths_of([[3, 2, 1]]))
    assert lengths == same and hash(lengths) == hash(same)
    different = [EdgeLengths(two, two), EdgeLengths(other, two), EdgeLengths(two, other, 1.5)]
    different.append(EdgeLengths(two, other, longer=1.5))
    assert len({lengths, *different}) == 5


def test_edges_that_leave_a_part_are_those_that_end_in_the_next():
    values = np.arange(9).reshape(3, 3)  # [part, step from which edges come]
    assert leaving(values).tolist() == [[4, 8], [7, 2], [1, 5]]
