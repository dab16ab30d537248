"""The rows of each group that have edges, compared with sorting them one by one."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph.layout.compressed_rows import CompressedRows, compress, concatenate_groups


@st.composite
def grouped_edges(draw: st.DrawFn) -> list[list[int]]:
    """The row of each edge, group by group, in no order."""
    rows = st.lists(st.integers(0, 7), max_size=30)
    return draw(st.lists(rows, min_size=1, max_size=5))


def ordered(groups: list[list[int]]) -> tuple[CompressedRows, np.ndarray]:
    """The order of the rows, and the row of each edge."""
    rows = np.asarray([row for group in groups for row in group], np.int32)
    edge_ptr = np.cumsum([0, *(len(group) for group in groups)])
    group = np.repeat(np.arange(len(groups)), np.diff(edge_ptr))
    edges = np.lexsort((rows, group)).astype(np.int32)
    return compress(rows[edges], edges, edge_ptr), rows


def edges_of_row(order: CompressedRows, index: int) -> list[int]:
    places = range(order.starts[index], order.starts[index] + order.lengths[index])
    return [place if order.edges is None else int(order.edges[place]) for place in places]


@given(grouped_edges())
def test_rows_ascend_within_their_group(groups):
    order, _ = ordered(groups)
    for group, rows in enumerate(groups):
        own = slice(order.pointers[group], order.pointers[group + 1])
        found = zip(order.rows[own].tolist(), order.lengths[own].tolist(), strict=True)
        assert list(found) == sorted(Counter(rows).items())
        assert order.groups()[own].tolist() == [group] * len(set(rows))


@given(grouped_edges())
def test_halos_travel_most_edges_first(groups):
    order, _ = ordered(groups)
    in_halo_order, numbers = order.halo_order(), order.halo_numbers()
    for group, rows in enumerate(groups):
        own = slice(order.pointers[group], order.pointers[group + 1])
        expected = sorted(Counter(rows).items(), key=lambda item: (-item[1], item[0]))
        assert order.rows[in_halo_order[own]].tolist() == [row for row, _ in expected]
        assert numbers[in_halo_order[own]].tolist() == list(range(len(expected)))


@given(grouped_edges())
def test_starts_lead_to_the_edges_of_each_row(groups):
    order, rows = ordered(groups)
    seen = []
    for index, row in enumerate(order.rows):
        edges = edges_of_row(order, index)
        assert np.all(rows[edges] == row)
        assert np.all(order.by_edge(np.arange(len(order.rows)))[edges] == index)
        seen += edges
    assert sorted(seen) == list(range(len(rows)))


@given(grouped_edges())
def test_edges_are_stored_row_by_row(groups):
    order, rows = ordered(groups)
    group_of_edge = np.repeat(np.arange(len(groups)), np.diff(order.edge_ptr))
    # By group, then row, then edge, like a sort.
    expected = sorted(range(len(rows)), key=lambda edge: (group_of_edge[edge], rows[edge], edge))
    assert order.in_row_order(np.arange(len(rows))).tolist() == expected
    assert [expected[slot] for slot in order.slot_of_edge()] == list(range(len(rows)))


@given(grouped_edges())
def test_edges_in_order_need_no_list(groups):
    order, rows = ordered([sorted(group) for group in groups])
    bare = compress(rows, None, order.edge_ptr)
    assert np.array_equal(bare.in_row_order(rows), rows)
    assert bare.slot_of_edge().tolist() == list(range(len(rows)))
    assert np.array_equal(bare.by_edge(bare.rows), rows)
    assert np.array_equal(bare.rows, order.rows)


@given(grouped_edges(), st.data())
def test_concatenated_groups_are_what_ordering_them_gives(groups, data):
    order, _ = ordered(groups)
    chosen = data.draw(st.lists(st.integers(0, len(groups) - 1), min_size=1, max_size=4))
    joined = concatenate_groups([(order, group) for group in chosen])
    expected, _ = ordered([groups[group] for group in chosen])
    for name in ("rows", "starts", "pointers", "edges", "edge_ptr"):
        assert np.array_equal(getattr(joined, name), getattr(expected, name)), name
