"""The third step: the edges by the part that they end in, in the order of the file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxgraph.datasets.edge_keys import StoredEdges
from jaxgraph.datasets.file_rows import FileRows, npy_rows
from jaxgraph.datasets.files import BrokenFileError
from jaxgraph.datasets.node_ids import Numbering
from jaxgraph.external.request import Request
from jaxgraph.external.work import StepFiles, Work
from jaxgraph.partition.assignment import Partition
from jaxgraph.partition.hashing import hash_assignment
from jaxgraph.partition.ranges import equal_edges_assignment, equal_vertices_assignment
from jaxgraph.partition.sorting import smallest_unsigned

_INT32 = np.dtype(np.int32)


@dataclasses.dataclass(frozen=True)
class Buckets:
    """The edges that end in each part, in files.

    Attributes:
      folder: of the files.
      counts: edges of each part.
      data: shape of a row and dtype of further arrays by name.
    """

    folder: Path
    counts: tuple[int, ...]
    data: Mapping[str, tuple[tuple[int, ...], np.dtype]]

    def rows(self, part: int, name: str) -> FileRows:
        """An array with a row for each edge of a part: "senders", "receivers" or data."""
        rest, dtype = self.data.get(name, ((), _INT32))
        return FileRows(self.folder / f"{part:04d}-{name}", dtype, (self.counts[part], *rest))

    def read(self, part: int, name: str) -> np.ndarray:
        """All of such an array."""
        return self.rows(part, name)[:]


def assign(request: Request, edges: StoredEdges, numbering: Numbering, chunk: int) -> np.ndarray:
    """Assigns every node to a part."""
    parts, num_nodes = request.num_parts, numbering.num_nodes
    if parts > num_nodes:
        raise ValueError(
            f"num_parts: got {parts} for a graph of {num_nodes} nodes; expected at most one part "
            f"per node. Use num_parts={num_nodes} or fewer."
        )
    if request.method == "hash":
        found = hash_assignment(num_nodes, parts, request.seed)
    elif request.method == "equal-vertices":
        found = equal_vertices_assignment(num_nodes, parts)
    elif request.method == "equal-edges":
        degrees = np.zeros(num_nodes, np.int64)
        for first in range(0, edges.num_edges, chunk):
            _, receivers = edges.ends.read(first, first + chunk)
            np.add.at(degrees, _rows(edges, numbering, receivers, first), 1)
        found = equal_edges_assignment(degrees, parts)
    else:
        assert request.assignment is not None
        rows = npy_rows(request.assignment)
        if rows.shape != (num_nodes,):
            raise ValueError(
                f"{request.assignment}: has shape {list(rows.shape)}; expected [{num_nodes}], the "
                "part of each node"
            )
        found = Partition.from_assignment(rows[:], parts).assignment
    return found.astype(smallest_unsigned(parts - 1))


def split_edges(
    work: Work,
    request: Request,
    edges: StoredEdges,
    numbering: Numbering,
    part: np.ndarray,
    chunk: int,
    on_progress: Callable[[int, int], object],
) -> Buckets:
    """Writes every edge to the file of the part that it ends in."""
    num_parts = request.num_parts

    def make(files: StepFiles) -> dict[str, Any]:
        counts = np.zeros(num_parts, np.int64)
        for first in range(0, edges.num_edges, chunk):
            stop = min(first + chunk, edges.num_edges)
            keys = edges.ends.read(first, stop)
            senders, receivers = (_rows(edges, numbering, each, first) for each in keys)
            arrays = {"senders": senders, "receivers": receivers}
            if request.undirected:
                arrays = {
                    "senders": np.concatenate([senders, receivers]),
                    "receivers": np.concatenate([receivers, senders]),
                }
            arrays |= {name: _checked(name, rows[first:stop]) for name, rows in edges.data.items()}
            counts += add_by_part(files, arrays, part[arrays["receivers"]], num_parts)
            on_progress(stop, edges.num_edges)
        return {"counts": counts.tolist()}

    folder, facts = work.step("split", make)
    data = {name: (rows.shape[1:], np.dtype(np.float32)) for name, rows in edges.data.items()}
    return Buckets(folder, tuple(facts["counts"]), data)


def add_by_part(
    files: StepFiles, arrays: Mapping[str, np.ndarray], parts: np.ndarray, num_parts: int
) -> np.ndarray:
    """Adds the rows of arrays to the files of their parts, and counts the rows of each."""
    by_part = np.argsort(parts, kind="stable")
    counts = np.bincount(parts, minlength=num_parts)
    bounds = np.concatenate([[0], np.cumsum(counts)])
    for name, values in arrays.items():
        ordered = values[by_part]
        for index in np.flatnonzero(counts):
            files.add(f"{index:04d}-{name}", ordered[bounds[index] : bounds[index + 1]])
    return counts


def _rows(edges: StoredEdges, numbering: Numbering, keys: np.ndarray, first: int) -> np.ndarray:
    rows, unknown = numbering.rows_of(keys)
    if unknown is not None:
        edge = int(np.argmax(unknown))
        shown = "a name" if edges.are_texts else f"the id {keys[edge]}"
        raise BrokenFileError(
            f"{edges.place(first + edge)}: has {shown} that no node has; expected one of "
            f"{numbering.num_nodes:,} nodes"
        )
    return rows.astype(np.int32)


def _checked(name: str, values: np.ndarray) -> np.ndarray:
    stored = values.astype(np.float32)
    if not np.isfinite(stored).all():
        raise BrokenFileError(f"{name}: a value is not finite in float32; expected finite values")
    return stored


def without_repeats(work: Work, buckets: Buckets, num_nodes: int) -> Buckets:
    """Keeps one edge of each sender and receiver, sorted by sender, then receiver."""

    def make(files: StepFiles) -> dict[str, Any]:
        counts = []
        for part in range(len(buckets.counts)):
            keys = buckets.read(part, "senders").astype(np.int64) * num_nodes
            keys += buckets.read(part, "receivers")
            keys.sort()
            keys = keys[np.diff(keys, prepend=-1) != 0]
            ends = np.divmod(keys, num_nodes)
            for name, rows in zip(("senders", "receivers"), ends, strict=True):
                files.add(f"{part:04d}-{name}", rows.astype(np.int32))
            counts.append(len(keys))
        return {"counts": counts}

    folder, facts = work.step("unique", make)
    return Buckets(folder, tuple(facts["counts"]), {})
