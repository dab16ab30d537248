"""Reading pickles, and npz files that hold some, without running what they ask for.

A pickle is a program that may call any function by name. The data sets of the field need very few
names: numpy arrays, CSR matrices, a dictionary of lists. Any other is refused, not looked up.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import IO, Any

import numpy as np
import scipy.sparse as sp
from numpy._core.multiarray import _reconstruct

from jaxgraph.datasets.files import BrokenFileError, reading

__all__ = ["load_npz", "load_pickle"]


class _PickledCsr:
    """Takes the place of a CSR matrix in a pickle; its arrays are checked before they are used."""

    matrix: sp.csr_matrix | None = None

    def __setstate__(self, state: Any) -> None:
        arrays = [np.asarray(state[name]) for name in ("data", "indices", "indptr")]
        if any(array.dtype.kind not in "biuf" for array in arrays):
            raise ValueError("a CSR matrix whose arrays are not numbers")
        matrix = sp.csr_matrix(tuple(arrays), shape=state["_shape"])
        # Indices out of range would let scipy's compiled code write outside of its arrays.
        matrix.check_format(full_check=True)
        self.matrix = matrix


def _dtype(code: str, align: Any = False, copy: Any = False) -> np.dtype:
    # Old pickles give align and copy as 0 and 1, which newer versions of numpy warn about.
    return np.dtype(code, bool(align), bool(copy))


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): _dtype,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("scipy.sparse.csr", "csr_matrix"): _PickledCsr,
    ("scipy.sparse._csr", "csr_matrix"): _PickledCsr,
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
}


class _RestrictedUnpickler(pickle.Unpickler):
    def __init__(self, stream: IO[bytes], path: Path) -> None:
        super().__init__(stream, encoding="latin1")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise BrokenFileError(
                f"{self._path}: the pickle asks for {module}.{name}, which a graph's data has no "
                "use for; only numpy arrays, CSR matrices, lists and dictionaries are read. Do not "
                "open this file with another program unless you trust its source."
            ) from None


def load_pickle(path: Path) -> Any:
    """Reads a pickle of numpy arrays, CSR matrices, lists and dictionaries.

    Args:
        path: the file.

    Returns:
        The object.

    Raises:
        ValueError: the pickle asks for any other type, or is broken or truncated.
    """
    with reading(path, "a pickle"), path.open("rb") as stream:
        return _unpickled(stream, path)


def load_npz(path: Path) -> dict[str, Any]:
    """Reads an npz file, whose object arrays may hold what ``load_pickle`` reads.

    Args:
        path: the file.

    Returns:
        Arrays by name; a zero-dimensional object array is replaced by the object it holds.

    Raises:
        ValueError: a pickle inside asks for any other type, or the file is broken or truncated.
    """
    with reading(path, "an npz archive"), zipfile.ZipFile(path) as archive:
        members = {}
        for name in archive.namelist():
            with archive.open(name) as stream:
                members[name.removesuffix(".npy")] = _npy(stream, path)
        return members


def _npy(stream: IO[bytes], path: Path) -> Any:
    version = np.lib.format.read_magic(stream)
    # Versions 2 and 3 differ in the encoding of field names only, which object arrays do not have.
    header = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    _, _, dtype = header(stream)
    if dtype.hasobject:
        return _unpickled(stream, path)
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)


def _unpickled(stream: IO[bytes], path: Path) -> Any:
    value = _RestrictedUnpickler(stream, path).load()
    if isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype == object:
        value = value.item()
    if isinstance(value, _PickledCsr):
        value = value.matrix
    return value
