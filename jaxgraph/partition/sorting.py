"""Stable orders of small integers in linear time."""

from __future__ import annotations

import numpy as np
from scipy import sparse

SPARSE_KEYS = 8
"""Possible keys per key above which a comparison sort is faster."""


def counting_argsort(keys: np.ndarray, num_keys: int) -> np.ndarray:
    """The stable ascending order of keys below `num_keys`.

    References:
      Gustavson, "Two fast algorithms for sparse matrices: multiplication and permuted
      transposition", 1978: the transpose of a sparse matrix is a counting sort.
    """
    count = len(keys)
    if num_keys > SPARSE_KEYS * count + 65536:
        return np.argsort(keys, kind="stable").astype(index_dtype(count), copy=False)
    rows = np.arange(count + 1, dtype=index_dtype(max(count, num_keys)))
    matrix = sparse.csr_array((np.zeros(count, np.int8), keys, rows), shape=(count, num_keys))
    return matrix.tocsc().indices


def inverse_permutation(order: np.ndarray) -> np.ndarray:
    """The position of each of 0, 1, ..., n - 1 in a permutation of them."""
    places = np.empty_like(order)
    places[order] = np.arange(len(order), dtype=order.dtype)
    return places


def run_starts(values: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """The starts of runs of equal values, with a new run at every bound."""
    starts = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=starts[1:])
    starts[bounds[bounds < len(values)]] = True
    return np.flatnonzero(starts)


def index_dtype(bound: int) -> type[np.int32] | type[np.int64]:
    """The integer type for positions up to `bound`."""
    return np.int32 if bound <= np.iinfo(np.int32).max else np.int64


def smallest_unsigned(bound: int) -> np.dtype:
    """The smallest unsigned type that holds `bound`; NumPy sorts 8 and 16 bits in linear time."""
    return np.min_scalar_type(max(bound, 0))
