"""Sparse matrices from arrays of files, with unchecked indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp


def compressed_rows(data: Any, indices: Any, indptr: Any, shape: Any) -> sp.csr_array:
    """Makes a CSR matrix from checked indices: SciPy's compiled code trusts them."""
    rows, columns = _two_sizes(shape)
    for name, array, kinds in (
        ("data", data, "biuf"),
        ("indices", indices, "iu"),
        ("indptr", indptr, "iu"),
    ):
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in kinds:
            raise ValueError(f"a CSR matrix whose {name} are not numbers [entries]")
    # Compared before any conversion, since that could wrap around.
    if (
        indptr.size != rows + 1
        or data.size != indices.size
        or int(indptr[0]) != 0
        or int(indptr[-1]) != indices.size
        or not (indptr[1:] >= indptr[:-1]).all()
    ):
        raise ValueError(
            f"a CSR matrix of {rows} rows whose {indptr.size} row pointers do not ascend from 0 to "
            f"its {indices.size} indices of {data.size} values"
        )
    if indices.size and not (int(indices.min()) >= 0 and int(indices.max()) < columns):
        raise ValueError(
            f"a CSR matrix whose indices run from {indices.min()} to {indices.max()}; expected "
            f"columns from 0 to {columns - 1}"
        )
    largest = max(rows, columns, indices.size)
    index = np.int32 if largest <= np.iinfo(np.int32).max else np.int64
    native = data.astype(data.dtype.newbyteorder("="), copy=False)
    if native.dtype == np.float16:
        native = native.astype(np.float32)
    return sp.csr_array(
        (native, indices.astype(index, copy=False), indptr.astype(index, copy=False)),
        shape=(rows, columns),
    )


def places_of_entries(matrix: sp.csr_array) -> tuple[np.ndarray, np.ndarray]:
    """Returns the row and the column of every entry that is not a stored zero."""
    entries = sp.coo_array(matrix)
    stored = entries.data != 0
    return entries.row[stored], entries.col[stored]


def _two_sizes(shape: Any) -> tuple[int, int]:
    values = shape.tolist() if isinstance(shape, np.ndarray) else shape
    if not isinstance(values, tuple | list) or [type(v) for v in values] != [int, int]:
        raise ValueError("a matrix whose shape is not two integers")
    rows, columns = values
    if not (0 <= rows < 2**62 and 0 <= columns < 2**62):
        raise ValueError(f"a matrix of {rows} x {columns}")
    return rows, columns
