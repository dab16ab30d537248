"""Adjacency matrices in the MatrixMarket format: a list of edges after a banner and sizes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from jaxgraph.datasets.edge_columns import Choices
from jaxgraph.datasets.edge_files import open_text_edges
from jaxgraph.datasets.edge_keys import stored_in_memory
from jaxgraph.datasets.files import BrokenFileError
from jaxgraph.datasets.limits import opened
from jaxgraph.datasets.node_ids import check_num_nodes

_BANNER = re.compile(
    rb"(?:\xef\xbb\xbf)?%%matrixmarket\s+matrix\s+(\w+)\s+(\w+)\s+([\w-]+)", re.IGNORECASE
)
_LONGEST_BANNER = 200
_BLOCK = 1 << 26


def is_matrix_market(path: Path) -> bool:
    """Tells whether a file, compressed by gzip or not, begins with MatrixMarket's banner."""
    return _banner(path) is not None


def _banner(path: Path) -> list[str] | None:
    """The format, the field and the symmetry of a banner, or None."""
    with opened(path) as stream:
        found = _BANNER.match(stream.read(_LONGEST_BANNER))
    return None if found is None else found[0].decode("latin1").lower().split()[2:]


def read_matrix_market(
    path: Path, *, num_nodes: int | None, weights: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads a square matrix; the entry in row i and column j, from 1, is the edge i - 1 -> j - 1.

    An entry of a symmetric or skew-symmetric matrix is both directions of an edge. Entries that
    are zero are no edges.
    """
    banner = _banner(path)
    if banner is None:
        raise BrokenFileError(
            "its first line is no banner of MatrixMarket; expected, as an example, '%%MatrixMarket "
            "matrix coordinate pattern general'. If it is a list of edges, pass format='text' (on "
            "the command line --option format=text)"
        )
    form, field, symmetry = banner
    if field not in ("real", "double", "integer", "pattern"):
        raise BrokenFileError(f"holds {field} values; expected real weights, integers or a pattern")
    if form != "coordinate":
        raise BrokenFileError(
            "holds a dense matrix ('array'); expected one of entries ('coordinate'). SciPy makes "
            "one: scipy.io.mmwrite(path, scipy.sparse.coo_array(matrix))"
        )
    has_values = field != "pattern"
    choices = Choices(counts=True, header=False, weights=2 if has_values else False)
    source = open_text_edges(path, choices, _BLOCK)
    counts, columns = source.layout.counts, source.layout.num_columns
    if counts is None or len(counts) != 3 or columns != 2 + has_values:
        raise BrokenFileError(
            f"has {columns} columns after the sizes {counts}; expected rows, columns and entries "
            f"of the matrix, then {2 + has_values} columns of a {field} matrix"
        )
    rows, columns, entries = counts
    if rows != columns:
        raise BrokenFileError(
            f"holds a matrix of {rows} rows and {columns} columns; expected a square one, of the "
            "nodes. In a bipartite graph, give the nodes of columns numbers after those of rows"
        )
    edges, _ = stored_in_memory(source, relabel=False)
    if entries != edges.num_edges:
        raise BrokenFileError(f"declares {entries:,} entries and has {edges.num_edges:,}")
    if num_nodes is None:
        check_num_nodes(rows, entries)
    ends = np.stack(edges.ends.read(0, entries)) - 1
    outside = ((ends < 0) | (ends >= rows)).any(axis=0)
    if outside.any():
        place = edges.place(int(np.argmax(outside)))
        raise BrokenFileError(f"{place}: is an entry outside of the matrix of {rows} rows")
    values = edges.data["edge_weight"][:] if has_values else np.ones(entries, np.float32)
    if symmetry != "general":
        _check_one_triangle(ends, edges.place, symmetry)
        mirrored = np.flatnonzero(ends[0] != ends[1])
        sign = -1 if symmetry == "skew-symmetric" else 1
        ends = np.concatenate([ends, ends[::-1, mirrored]], axis=1)
        values = np.concatenate([values, sign * values[mirrored]])
    kept = values != 0
    fields: dict[str, Any] = {
        "senders": ends[0, kept],
        "receivers": ends[1, kept],
        "num_nodes": rows if num_nodes is None else num_nodes,
    }
    if weights and not (values[kept] == 1).all():
        fields["edge_weight"] = values[kept]
    notes = [f"{symmetry} {field} matrix of {rows:,} rows and {entries:,} entries"]
    if not kept.all():
        notes.append(f"{int(kept.size - kept.sum()):,} zeros left out")
    return fields, {"notes": tuple(notes)}


def _check_one_triangle(ends: np.ndarray, place: Any, symmetry: str) -> None:
    """Refuses a symmetric matrix that lists an entry and its mirror."""
    is_upper = ends[0] < ends[1]
    off_diagonal = np.flatnonzero(ends[0] != ends[1])
    if len(np.unique(is_upper[off_diagonal])) < 2:
        return
    pairs = np.sort(ends[:, off_diagonal], axis=0)
    order = np.lexsort((is_upper[off_diagonal], *pairs))
    pairs, listed = pairs[:, order], off_diagonal[order]
    twice = (pairs[:, 1:] == pairs[:, :-1]).all(0) & (is_upper[listed[1:]] != is_upper[listed[:-1]])
    if not twice.any():
        return
    first, second = sorted(listed[int(np.argmax(twice)) :][:2].tolist())
    raise BrokenFileError(
        f"{place(first)} holds the entry {(ends[:, first] + 1).tolist()}, and {place(second)} its "
        f"mirror; an entry of a {symmetry} matrix stands for both. If both triangles are listed, "
        f"write 'general' for {symmetry!r} in line 1; else leave out one of the lines"
    )
