"""Row lengths of edge groups whose rows have given degrees."""

import numpy as np
from hypothesis import strategies as st

from jaxgraph.layout.compressed_rows import CompressedRows, compress
from jaxgraph.layout.row_lengths import RowLengths, count_lengths

Groups = list[list[int]]
degree_lists = st.lists(st.lists(st.integers(1, 40), max_size=12), min_size=1, max_size=4)
"""The degree of each row, by group."""


def order_of(groups: Groups) -> CompressedRows:
    """An order whose rows have these degrees."""
    rows = [row for group in groups for row, degree in enumerate(group) for _ in range(degree)]
    edge_ptr = np.cumsum([0, *(sum(group) for group in groups)])
    return compress(np.asarray(rows, np.int32), None, edge_ptr)


def lengths_of(groups: Groups) -> RowLengths:
    """The lengths of these rows."""
    return count_lengths([order_of(groups)])
