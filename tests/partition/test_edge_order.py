"""The layout of edges in slots, compared with listing heavy rows and slabs one after the other."""

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


def edges_by_hand(order: RowOrder, thresholds: np.ndarray) -> list[int]:
    """Of each group the heavy rows' edges, row by row, then the k-th edges of the light rows."""
    listed: list[int] = []
    assert order.edges is not None
    for group in range(order.num_groups):
        heavy, light = [], []
        for index in range(order.pointers[group], order.pointers[group + 1]):
            start = order.starts[index]
            edges = order.edges[start : start + order.degrees[index]].tolist()
            (heavy if len(edges) >= thresholds[group] else light).append(edges)
        listed += [edge for edges in heavy for edge in edges]
        longest = max(map(len, light), default=0)
        listed += [edges[k] for k in range(longest) for edges in light if len(edges) > k]
    return listed


@given(row_lists, st.integers(1, 5), st.data())
def test_slots_and_chunks(groups, chunk, data):
    order = ordered(groups)
    thresholds = np.asarray([data.draw(st.integers(1, 12)) for _ in groups])
    layout = lay_out(order, thresholds, chunk)
    expected = edges_by_hand(order, thresholds)
    assert layout.edges.tolist() == expected
    assert layout.slot_of_edge()[layout.edges].tolist() == list(range(len(expected)))

    chunks = layout.chunks
    counted = count_chunks(count_degrees([order]), thresholds, chunk)
    assert np.array_equal(np.diff(chunks.light_ptr), counted[0])
    assert np.array_equal(np.diff(chunks.heavy_ptr), counted[1])
    compact = order.compact_of_edge()
    seen: list[int] = []
    for kind in ("light", "heavy"):
        slots, rows, counts = (
            getattr(chunks, f"{kind}_{name}") for name in ("slots", "rows", "counts")
        )
        for slot, row, count in zip(slots, rows, counts, strict=True):
            assert 0 < count <= chunk
            edges = layout.edges[slot : slot + count]
            lanes = np.arange(count) if kind == "light" else 0
            assert np.all(compact[edges] == row + lanes)
            seen += range(slot, slot + count)
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
            slots, counts = (getattr(chunks, f"{kind}_{name}")[own] for name in ("slots", "counts"))
            assert np.all(slots >= low)
            assert np.all(slots + counts <= high)
