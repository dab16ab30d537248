"""Sorts of small integers, compared with NumPy's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgraph.partition.sorting import (
    counting_argsort,
    index_dtype,
    smallest_unsigned,
)


@pytest.mark.parametrize("num_keys", [30, 10**7])  # counted, and too sparse to count
@given(keys=st.lists(st.integers(0, 29), max_size=200))
def test_counting_argsort_is_stable(num_keys, keys):
    keys = np.asarray(keys, np.int32)
    order = counting_argsort(keys, num_keys)
    assert order.dtype == np.int32
    assert np.array_equal(order, np.argsort(keys, kind="stable"))


def test_types_hold_their_bounds():
    assert index_dtype(2**31 - 1) is np.int32
    assert index_dtype(2**31) is np.int64
    assert smallest_unsigned(255) == np.uint8
    assert smallest_unsigned(256) == np.uint16
    assert smallest_unsigned(-1) == np.uint8
