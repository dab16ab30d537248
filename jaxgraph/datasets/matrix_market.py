"""Adjacency matrices in the MatrixMarket format, by SciPy."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse as sp

from jaxgraph.datasets.files import BrokenFileError
from jaxgraph.datasets.limits import opened
from jaxgraph.datasets.node_ids import check_num_nodes

__all__ = ["is_matrix_market", "read_matrix_market"]

_BANNER = b"%%matrixmarket"
_OF_NUMBERS = b"0123456789+-.eE \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# An entry takes at least "1 1\n".
_FEWEST_BYTES = 4


def is_matrix_market(path: Path) -> bool:
    """Tells whether a file, compressed by gzip or not, begins with MatrixMarket's banner.

    Args:
        path: the file.

    Returns:
        Whether its first line is a banner of MatrixMarket.
    """
    with opened(path) as stream:
        start = stream.read(len(_BYTE_ORDER_MARK) + len(_BANNER))
    return start.removeprefix(_BYTE_ORDER_MARK).lower().startswith(_BANNER)


def read_matrix_market(
    path: Path, *, num_nodes: int | None, weights: bool | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads a square matrix; the entry in row i and column j, from 1, is the edge i - 1 -> j - 1.

    SciPy reads a symmetric or skew-symmetric matrix with both directions of each edge. Entries
    that are zero are no edges.

    Args:
        path: the file.
        num_nodes: the number of nodes that the caller gave, or None.
        weights: False ignores the values; else they are weights, unless the matrix is a pattern
            or all its values are 1.

    Returns:
        Arguments of ``Graph.from_edges``, and facts of the report.

    Raises:
        AmbiguousFileError: the matrix has far more rows than entries.
        BrokenFileError: it is no MatrixMarket file, or dense, not square or complex, or symmetric
            with entries in both triangles for one edge.
    """
    if not is_matrix_market(path):
        raise BrokenFileError(
            "its first line is no banner of MatrixMarket; expected, as an example, '%%MatrixMarket "
            "matrix coordinate pattern general'. If it is a list of edges, pass format='text' (on "
            "the command line --option format=text)"
        )
    with opened(path) as stream:
        content = stream.read().removeprefix(_BYTE_ORDER_MARK).rstrip() + b"\n"
    _check_characters(content)
    rows, columns, entries, form, field, symmetry = scipy.io.mminfo(io.BytesIO(content))
    if rows != columns:
        raise BrokenFileError(
            f"holds a matrix of {rows} rows and {columns} columns; expected a square one, of the "
            "nodes. Of a bipartite graph, number the columns' nodes after the rows'"
        )
    if field == "complex":
        raise BrokenFileError("holds complex values; expected real weights, integers or a pattern")
    if form != "coordinate":
        raise BrokenFileError(
            "holds a dense matrix ('array'); expected one of entries ('coordinate'). SciPy makes "
            "one: scipy.io.mmwrite(path, scipy.sparse.coo_array(matrix))"
        )
    if entries * _FEWEST_BYTES > len(content) + 2:
        raise BrokenFileError(f"declares {entries:,} entries and has only {len(content):,} bytes")
    if num_nodes is None:
        check_num_nodes(rows, entries)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        matrix = sp.coo_array(scipy.io.mmread(io.BytesIO(content)))
        if symmetry != "general":
            _check_one_triangle(content, field, symmetry)
    kept = matrix.data != 0
    values = matrix.data[kept]
    fields: dict[str, Any] = {
        "senders": np.asarray(matrix.row)[kept],
        "receivers": np.asarray(matrix.col)[kept],
        "num_nodes": rows if num_nodes is None else num_nodes,
    }
    if weights is not False and field != "pattern" and not (values == 1).all():
        fields["edge_weight"] = values
    notes = [f"{symmetry} {field} matrix of {rows:,} rows and {entries:,} entries"]
    if not kept.all():
        notes.append(f"{int(kept.size - kept.sum()):,} zeros left out")
    return fields, {"notes": tuple(notes)}


def _check_one_triangle(content: bytes, field: str, symmetry: str) -> None:
    """Refuses a symmetric matrix that lists an entry and its mirror."""
    banner = f"%%MatrixMarket matrix coordinate {field} general".encode()
    listed = sp.coo_array(scipy.io.mmread(io.BytesIO(banner + content[content.index(b"\n") :])))
    rows, columns = np.asarray(listed.row), np.asarray(listed.col)
    is_upper, is_lower = rows < columns, rows > columns
    if not (is_upper.any() and is_lower.any()):
        return
    ends = np.sort([rows, columns], axis=0)
    order = np.lexsort((is_upper, *ends))
    ends, sides = ends[:, order], is_upper[order]
    twice = (ends[:, 1:] == ends[:, :-1]).all(0) & (sides[1:] != sides[:-1])
    if not twice.any():
        return
    first, second = sorted(order[int(np.argmax(twice)) :][:2].tolist())
    lines = [
        number
        for number, line in enumerate(content.split(b"\n"), 1)
        if line.strip() and not line.startswith(b"%")
    ]
    raise BrokenFileError(
        f"lines {lines[first + 1]} and {lines[second + 1]} hold the entry [{rows[first] + 1}, "
        f"{columns[first] + 1}] and its mirror, and an entry of a {symmetry} matrix stands for "
        f"both. If both triangles are listed, write 'general' for {symmetry!r} in line 1; else "
        "leave out one of the lines"
    )


def _check_characters(content: bytes) -> None:
    """Refuses entries that hold anything but numbers.

    On a line that it cannot parse, SciPy's reader searches past the end of the file for the end of
    the line, and crashes the interpreter.
    """
    lines = io.BytesIO(content)
    for line in lines:
        if not line.startswith(b"%") and line.strip():
            break
    start = lines.tell()
    body = content[start:]
    if not body.translate(None, _OF_NUMBERS):
        return
    position, byte = next((p, byte) for p, byte in enumerate(body) if byte not in _OF_NUMBERS)
    line = content.count(b"\n", 0, start + position) + 1
    raise BrokenFileError(f"line {line}: holds {chr(byte)!r}; expected numbers")
