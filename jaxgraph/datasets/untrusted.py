"""Files whose readers could be made to do harm, read in a process with limits of memory and time.

A pickle is a program, and SciPy's reader of MATLAB files crashes on one in 35 damaged files. The
process gives plain arrays back (`untrusted_worker`); a crash, or too much memory or time, becomes
an error that names the file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from jaxgraph.datasets.files import reading
from jaxgraph.datasets.sparse import compressed_rows

_WORKER = Path(__file__).with_name("untrusted_worker.py")


@dataclass(frozen=True)
class Lists:
    """A dictionary of lists of integers.

    Args:
        keys: int64 [keys].
        lengths: int64 [keys], of the list of each.
        values: int64 [values], the lists one after the other.
    """

    keys: np.ndarray
    lengths: np.ndarray
    values: np.ndarray


Data = np.ndarray | sp.csr_array | Lists


def load_pickles(paths: Mapping[str, Path]) -> dict[str, Data]:
    """Reads pickles of numpy arrays, CSR matrices and dictionaries of lists of integers."""
    found = _read_apart("pickle", dict.fromkeys(paths.values()), "a pickle")
    return dict(zip(paths, map(_decoded, paths.values(), found), strict=True))


def unpickled(content: bytes, path: Path) -> Data:
    """Reads a pickle that a file holds; a zero-dimensional array of objects comes as its object."""
    (found,) = _read_apart("pickle", {path: content}, "a pickle")
    return _decoded(path, found)


def _decoded(path: Path, arrays: Mapping[str, np.ndarray]) -> Data:
    """The object that the arrays of the other process stand for."""
    if "array" in arrays:
        return arrays["array"]
    if "keys" in arrays:
        return Lists(**arrays)
    with reading(path, "a pickle"):
        return _matrix(arrays)


def load_sparse(path: Path) -> dict[str, sp.csr_array]:
    """Reads the sparse matrices "network" and "group" of a MATLAB file, where they are there."""
    (found,) = _read_apart("matlab", {path: None}, "a MATLAB file")
    with reading(path, "a MATLAB file"):
        return {
            name: _matrix({key.partition(".")[2]: found[key] for key in found if name in key})
            for name in ("network", "group")
            if f"{name}.data" in found
        }


def _matrix(arrays: Mapping[str, np.ndarray]) -> sp.csr_array:
    data, indices, indptr, shape = (arrays[x] for x in ("data", "indices", "indptr", "shape"))
    if not arrays["by_column"]:
        return compressed_rows(data, indices, indptr, shape)
    return sp.csr_array(compressed_rows(data, indices, indptr, shape[::-1]).T)


def _read_apart(
    reader: str, contents: Mapping[Path, bytes | None], kind: str
) -> list[dict[str, np.ndarray]]:
    """Reads files, or their given contents, in another process; an error names its file."""
    with tempfile.TemporaryDirectory() as folder:
        for number, (path, content) in enumerate(contents.items()):
            with reading(path, kind):
                Path(folder, str(number)).write_bytes(
                    path.read_bytes() if content is None else content
                )
        # -P: the folder of the script holds modules that are not for it.
        ended = subprocess.run(
            [sys.executable, "-P", str(_WORKER), reader, folder],
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        found = []
        for number, path in enumerate(contents):
            result = Path(folder, f"{number}.npz")
            with reading(path, kind):
                if not result.exists():
                    raise ValueError(_reason(ended))
                with np.load(result) as arrays:
                    found.append(dict(arrays))
    return found


def _reason(ended: subprocess.CompletedProcess[bytes]) -> str:
    if ended.returncode < 0:
        name = signal.Signals(-ended.returncode).name
        return f"its reader ended with {name}, as from damage, or too much memory or time"
    return ended.stderr.decode(errors="replace").strip()[-500:]
