"""The walk over the edges, compared with listing heavy rows and slabs one after the other."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph.partition.degrees import count_chunks, count_degrees
from jaxgraph.partition.edge_order import lay_out
from jaxgraph.partition.row_order import RowOrder, order_rows

row_lists = st.lists(st.lists(st.integers(0, 9), max_size=40), min_size=1, max_size=4)


def ordered(groups: list[list[int]]) -> RowOrder:
    rows = np.asarray([row for group in groups for row in group], np.int32)
    edge_ptr = np.cumsum([0, *(len(group) for group in groups)])
    group = np.repeat(np.arange(len(groups)), np.diff(edge_ptr))
    edges = np.lexsort((rows, group)).astype(np.int32)
    return order_rows(rows[edges], edges, edge_ptr)


def walk_by_hand(order: RowOrder, thresholds: np.ndarray) -> list[int]:
    """Of each group the heavy rows' slots, row by row, then the k-th slots of the light rows."""
    listed: list[int] = []
    for group in range(order.num_groups):
        heavy, light = [], []
        for index in range(order.pointers[group], order.pointers[group + 1]):
            start = int(order.starts[index])
            slots = range(start, start + int(order.degrees[index]))
            (heavy if len(slots) >= thresholds[group] else light).append(slots)
        listed += [slot for slots in heavy for slot in slots]
        longest = max(map(len, light), default=0)
        listed += [slots[k] for k in range(longest) for slots in light if len(slots) > k]
    return listed


@given(row_lists, st.integers(1, 5), st.data())
def test_walk_and_chunks(groups, chunk, data):
    order = ordered(groups)
    thresholds = np.asarray([data.draw(st.integers(1, 12)) for _ in groups])
    layout = lay_out(order, thresholds, chunk)
    expected = walk_by_hand(order, thresholds)
    assert layout.walk.tolist() == expected
    assert [expected.index(slot) for slot in range(len(expected))] == (
        layout.walk_position().tolist()
    )

    chunks = layout.chunks
    counted = count_chunks(count_degrees([order]), thresholds, chunk)
    assert np.array_equal(np.diff(chunks.light_ptr), counted[0])
    assert np.array_equal(np.diff(chunks.heavy_ptr), counted[1])
    assert order.edges is not None
    compact = order.compact_of_edge()[order.edges]
    seen: list[int] = []
    for kind in ("light", "heavy"):
        places, rows, counts = (
            getattr(chunks, f"{kind}_{name}") for name in ("slots", "rows", "counts")
        )
        for place, row, count in zip(places, rows, counts, strict=True):
            assert 0 < count <= chunk
            slots = layout.walk[place : place + count]
            lanes = np.arange(count) if kind == "light" else 0
            assert np.all(compact[slots] == row + lanes)
            seen += range(place, place + count)
    assert sorted(seen) == list(range(len(expected)))


@given(row_lists)
def test_chunks_stay_in_their_group(groups):
    order = ordered(groups)
    chunks = lay_out(order, np.full(len(groups), 4), 3).chunks
    for group in range(len(groups)):
        low, high = order.edge_ptr[group], order.edge_ptr[group + 1]
        for kind in ("light", "heavy"):
            pointers = getattr(chunks, f"{kind}_ptr")
            own = slice(pointers[group], pointers[group + 1])
            names = ("slots", "counts")
            places, counts = (getattr(chunks, f"{kind}_{name}")[own] for name in names)
            assert np.all(places >= low)
            assert np.all(places + counts <= high)
