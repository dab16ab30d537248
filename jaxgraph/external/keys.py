"""The first step: the ends of all edges as 64-bit keys, which are ids, or hashes of names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxgraph.datasets.files import AmbiguousFileError, BrokenFileError, option_advice
from jaxgraph.datasets.text_edges import LIKE_TIMES
from jaxgraph.external.edge_files import (
    Chunk,
    EdgeFile,
    NotWholeError,
    TextFile,
    numbers_among,
    polars,
)
from jaxgraph.external.file_rows import FileRows
from jaxgraph.external.work import GrowingFiles, Work

__all__ = ["HASH_SEED", "NAMES", "READ", "Ends", "StoredEdges", "ends_of", "read_keys"]

READ, NAMES = "read", "names"
HASH_SEED = 0
_ROWS_OF_NAMES = 1 << 13
"""Names are numbered as `read_edge_list` numbers them: senders of so many lines, then receivers."""


@dataclasses.dataclass(frozen=True)
class Ends:
    """The keys of senders and receivers in files.

    Attributes:
      files: two vectors [num_edges], or one array [num_edges, 2].
    """

    files: tuple[FileRows, ...]

    def read(self, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """The keys of the edges from `first` to before `stop`."""
        found = [file.read(first, stop) for file in self.files]
        if len(found) == 1:
            return found[0][:, 0], found[0][:, 1]
        return found[0], found[1]


def ends_of(rows: FileRows, *, by_edge: bool, fortran: bool) -> tuple[Ends, int]:
    """Finds the ends of edges in an array of a file.

    Args:
      rows: integers [num_edges, 2] or [2, num_edges].
      by_edge: whether they have the first of these shapes.
      fortran: whether they are stored by column.

    Returns:
      The ends, and the number of edges.
    """
    count = rows.shape[0] if by_edge else rows.shape[1]
    if by_edge != fortran:
        return Ends((dataclasses.replace(rows, shape=(count, 2)),)), count
    starts = (rows.offset, rows.offset + count * rows.dtype.itemsize)
    return Ends(tuple(FileRows(rows.path, rows.dtype, (count,), x) for x in starts)), count


@dataclasses.dataclass(frozen=True)
class StoredEdges:
    """All edges in binary files.

    Attributes:
      num_edges: their number.
      ends: their keys.
      are_texts: whether keys are hashes of names.
      data: further arrays [num_edges, ...] by name.
      facts: counts and signs of doubt, noted while they were read.
      place: where an edge stands in the user's file, for messages.
    """

    num_edges: int
    ends: Ends
    are_texts: bool
    data: Mapping[str, FileRows]
    facts: Mapping[str, Any]
    place: Callable[[int], str]


def read_keys(
    work: Work,
    source: EdgeFile,
    *,
    relabel: bool | None,
    has_weights: bool,
    on_progress: Callable[[int, int], object],
) -> StoredEdges:
    """Reads a file of edges once, from where an earlier run has stopped.

    Args:
      work: the folder of the run.
      source: the file.
      relabel: as for `read_edge_list`.
      has_weights: whether its edges have weights.
      on_progress: called with the position and the length of the file.

    Returns:
      The edges.

    Raises:
      AmbiguousFileError: some ids are numbers and others are not.
      BrokenFileError: a line is not like the others, or a weight is not finite.
    """
    facts = work.read(READ)
    try:
        _read(work, source, facts.get("are_texts", False), relabel, on_progress)
    except NotWholeError as error:
        if relabel is None and error.edges_before:
            raise AmbiguousFileError(
                f"{error}, unlike the ids before. If all ids are names, "
                f"{option_advice('relabel=True', '--relabel')}"
            ) from None
        if relabel is False:
            raise AmbiguousFileError(
                f"{error}, so that it is a name, which is not a row; leave out relabel=False "
                "(--no-relabel) to relabel ids and keep them in graph.node_names"
            ) from None
        work.forget(READ)
        _read(work, source, True, relabel, on_progress)
    facts = work.read(READ)
    folder, edges = work.files_of(READ), facts["edges"]
    key = np.dtype(np.uint64 if facts["are_texts"] else np.int64)
    ends = tuple(FileRows(folder / end, key, (edges,)) for end in ("senders", "receivers"))
    weights = FileRows(folder / "edge_weight", np.dtype(np.float32), (edges,))
    data = {"edge_weight": weights} if has_weights else {}
    return StoredEdges(edges, Ends(ends), facts["are_texts"], data, facts, source.place)


def _read(
    work: Work,
    source: EdgeFile,
    as_texts: bool,
    relabel: bool | None,
    on_progress: Callable[[int, int], object],
) -> None:
    files = GrowingFiles(work, READ)
    facts = {"are_texts": as_texts, "edges": 0, "position": 0, "chunks": 0} | files.facts
    if facts.get("done"):
        return
    for chunk in _chunks(source, facts, as_texts):
        ends = chunk
        if as_texts:
            ends, names = _keys(work, source, chunk, facts, relabel)
            files.add_whole(names)
        for name in ("senders", "receivers"):
            files.add(name, getattr(ends, name))
        if chunk.weights is not None:
            files.add("edge_weight", _checked_weights(chunk.weights, source, facts["edges"]))
        facts |= _noticed(facts, ends, chunk.weights)
        facts |= {"position": chunk.position, "chunks": facts["chunks"] + 1}
        files.record(**facts)
        on_progress(chunk.position, source.length)
    files.record(**facts, done=True)


def _chunks(source: EdgeFile, facts: Mapping[str, Any], as_texts: bool) -> Iterator[Chunk]:
    try:
        yield from source.chunks(facts["position"], facts["edges"], as_texts=as_texts)
    except NotWholeError as error:
        error.edges_before = facts["edges"]
        raise


def _keys(
    work: Work, source: EdgeFile, chunk: Chunk, facts: Mapping[str, Any], relabel: bool | None
) -> tuple[Chunk, Path]:
    """The hashes of names, and the file of the names of this chunk."""
    pl = polars()
    first, count = facts["edges"], len(chunk.senders)
    edge = np.arange(first, first + count, dtype=np.int64)
    frames, hashes = [], []
    for role, series in enumerate((chunk.senders, chunk.receivers)):
        if relabel is None and (are_numbers := numbers_among(series)).any():
            row = int(are_numbers.arg_max())
            raise AmbiguousFileError(
                f"{source.place(first + row)}: the id {series[row]!r} is a number, unlike other "
                f"ids. If all ids are names, {option_advice('relabel=True', '--relabel')}"
            )
        if isinstance(source, TextFile):
            batch, within = np.divmod(edge, _ROWS_OF_NAMES)
            place = (2 * batch + role) * _ROWS_OF_NAMES + within
        else:
            place = edge + role * (1 << 60)
        hashes.append(series.hash(HASH_SEED))
        frames.append(pl.DataFrame({"name": series, "hash": hashes[-1], "place": place}))
    distinct = (
        pl.concat(frames)
        .group_by("name")
        .agg(pl.col("hash").first(), pl.col("place").min())
        .sort("hash")
    )
    path = work.files_of(NAMES) / f"{facts['chunks']:08d}.parquet"
    distinct.write_parquet(path, row_group_size=1 << 16, statistics=True)
    return Chunk(hashes[0].to_numpy(), hashes[1].to_numpy(), None, chunk.position), path


def _checked_weights(weights: np.ndarray, source: EdgeFile, first: int) -> np.ndarray:
    with np.errstate(over="ignore"):
        stored = weights.astype(np.float32)
    if not np.isfinite(stored).all():
        place = source.place(first + int(np.argmin(np.isfinite(stored))))
        raise BrokenFileError(f"{place}: has a weight that is not finite in float32")
    return stored


def _noticed(facts: dict[str, Any], ends: Chunk, weights: np.ndarray | None) -> dict[str, Any]:
    """The facts of all edges up to and with a chunk, from which doubtful files are refused."""
    facts, rest = dict(facts), slice(0, None)
    if not facts["edges"]:
        facts["first"] = [int(ends.senders[0]), int(ends.receivers[0])]
        facts["first_weight"] = None if weights is None else float(weights[0])
        facts |= {"first_again": False, "whole_weights": True, "times": True}
        rest = slice(1, None)
    for keys in (ends.senders[rest], ends.receivers[rest]):
        if keys.size:
            facts["smallest"] = min(facts.get("smallest", int(keys.min())), int(keys.min()))
            facts["largest"] = max(facts.get("largest", int(keys.max())), int(keys.max()))
            facts["first_again"] |= bool(np.isin(facts["first"], keys).any())
    if weights is not None:
        facts["whole_weights"] &= bool((weights == np.rint(weights)).all())
        facts["times"] &= bool((weights >= LIKE_TIMES).all())
    facts["edges"] += len(ends.senders)
    return facts
