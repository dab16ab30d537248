"""Graphs from lists of edges in files: text, npy and npz."""

from __future__ import annotations

import inspect
import itertools
from pathlib import Path
from typing import Any

import numpy as np

from jaxgraph import transforms
from jaxgraph.datasets.files import BrokenFileError, MissingFileError, reading
from jaxgraph.datasets.limits import opened_text
from jaxgraph.datasets.npz import load_npy, load_npz
from jaxgraph.graph import Graph

__all__ = ["SUFFIXES", "read_edge_list"]

_TEXT_SUFFIXES = (".csv", ".tsv", ".txt", ".edges")
SUFFIXES = (*_TEXT_SUFFIXES, *(f"{suffix}.gz" for suffix in _TEXT_SUFFIXES), ".npy", ".npz")

_COMMENTS = ("#", "%")
_WEIGHTED_EDGE = np.dtype([("sender", np.int64), ("receiver", np.int64), ("weight", np.float32)])


def read_edge_list(
    path: Path, *, num_nodes: int | None = None, undirected: bool = False, name: str | None = None
) -> Graph:
    """Reads a graph from a list of edges.

    - text (``.csv``, ``.tsv``, ``.txt``, ``.edges``, each also with ``.gz``): a line per edge,
      sender, receiver and perhaps a weight, separated by commas, semicolons, tabs or spaces; a line
      of column names may come first, and lines that begin with # or % are left out.
    - ``.npy``: int [num_edges, 2] or [2, num_edges].
    - ``.npz``: arrays named as the arguments of ``Graph.from_edges``, at least senders and
      receivers.

    Args:
        path: the file.
        num_nodes: number of nodes; None takes it from the file: its arrays, or its largest id.
        undirected: whether the reverse of every edge is added, and repeated edges removed.
        name: of the graph; None takes the file's.

    Returns:
        The graph.

    Raises:
        ValueError: the file is missing or broken, or its suffix is none of these.
    """
    path = Path(path)
    if not path.is_file():
        raise MissingFileError(f"{path}: no such file; expected a list of edges.")
    if not path.name.endswith(SUFFIXES):
        raise ValueError(f"{path}: the suffix is none of {', '.join(SUFFIXES)}; rename the file.")
    read = {".npz": _npz_fields, ".npy": _npy_fields}.get(path.suffix, _text_fields)
    given = {"num_nodes": num_nodes, "name": name}
    fields: dict[str, Any] = {"name": path.name.split(".")[0]} | read(path)
    fields |= {key: value for key, value in given.items() if value is not None}
    with reading(path, "a list of edges"):
        graph = Graph.from_edges(**fields)
    return transforms.to_undirected(graph) if undirected else graph


def _npz_fields(path: Path) -> dict[str, Any]:
    fields = {
        key: value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value
        for key, value in load_npz(path).items()
    }
    known = list(inspect.signature(Graph.from_edges).parameters)
    missing = [key for key in ("senders", "receivers") if key not in fields]
    unknown = [key for key in fields if key not in known]
    if missing or unknown:
        wrong = f"no array {missing[0]}" if missing else f"an array {unknown[0]}"
        raise BrokenFileError(f"{path}: has {wrong}; expected arrays named {', '.join(known)}.")
    return fields


def _npy_fields(path: Path) -> dict[str, Any]:
    pairs = load_npy(path)
    if pairs.ndim != 2 or 2 not in pairs.shape:
        raise BrokenFileError(
            f"{path}: has shape {list(pairs.shape)}; expected [num_edges, 2] or [2, num_edges]."
        )
    columns = pairs.T if pairs.shape[1] == 2 else pairs
    return {"senders": columns[0], "receivers": columns[1]}


def _text_fields(path: Path) -> dict[str, Any]:
    with reading(path, "lines of sender, receiver and perhaps weight"):
        skipped, delimiter, num_columns = _layout(path)
        if num_columns not in (2, 3):
            raise ValueError(f"{num_columns} columns")
        with opened_text(path) as stream:
            table: Any = np.loadtxt(
                stream,
                dtype=np.int64 if num_columns == 2 else _WEIGHTED_EDGE,
                comments=_COMMENTS,
                delimiter=delimiter,
                skiprows=skipped,
                ndmin=2 if num_columns == 2 else 1,
            )
    if num_columns == 2:
        return {"senders": table[:, 0], "receivers": table[:, 1]}
    return {
        "senders": table["sender"],
        "receivers": table["receiver"],
        "edge_weight": table["weight"],
    }


def _layout(path: Path) -> tuple[int, str | None, int]:
    """Returns the number of lines before the first edge, the delimiter, the number of columns."""
    with opened_text(path) as stream:
        # Comments of any length, then at most one line of column names.
        for skipped, line in enumerate(stream):
            if not line.strip() or line.startswith(_COMMENTS):
                continue
            delimiter = next((mark for mark in ",;\t" if mark in line), None)
            columns = line.split(delimiter)
            if columns[0].strip().lstrip("-").isdigit():
                return skipped, delimiter, len(columns)
            names, line = columns, next(itertools.islice(stream, 1), "")
            if len(line.split(delimiter)) == len(names):
                return skipped + 1, delimiter, len(names)
            break
    raise ValueError("no line of numbers")
