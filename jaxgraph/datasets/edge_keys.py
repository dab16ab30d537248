"""The ends of all edges as 64-bit keys, which are ids, or hashes of names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxgraph.datasets.edge_files import Chunk, EdgeFile, NotWholeError, TextFile, numbers_among
from jaxgraph.datasets.file_rows import FileRows
from jaxgraph.datasets.files import AmbiguousFileError, BrokenFileError, option_advice
from jaxgraph.datasets.node_ids import polars

HASH_SEED = 0
_ROLE = 1 << 60
"""The place of the first receiver: names are numbered by senders, then receivers."""
# Times in seconds since 1970 have exceeded this since 1973.
_LIKE_TIMES = 1e8


Rows = np.ndarray | FileRows
"""An array in memory or in a file, whose rows are read by slices."""


@dataclasses.dataclass(frozen=True)
class Ends:
    """The keys of senders and receivers.

    Args:
        rows: two vectors [num_edges], or one array [num_edges, 2].
    """

    rows: tuple[Rows, ...]

    def read(self, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """The keys of the edges from `first` to before `stop`."""
        found = [rows[first:stop] for rows in self.rows]
        if len(found) == 1:
            return found[0][:, 0], found[0][:, 1]
        return found[0], found[1]


def ends_of(rows: Rows, *, by_edge: bool) -> Ends:
    """The ends of edges in an array [num_edges, 2], if `by_edge`, or [2, num_edges]."""
    if isinstance(rows, np.ndarray):
        return Ends((rows if by_edge else rows.T,))
    count = rows.shape[0] if by_edge else rows.shape[1]
    if by_edge != rows.by_column:
        return Ends((dataclasses.replace(rows, shape=(count, 2), by_column=False),))
    starts = (rows.offset, rows.offset + count * rows.dtype.itemsize)
    return Ends(tuple(FileRows(rows.path, rows.dtype, (count,), start) for start in starts))


@dataclasses.dataclass
class Facts:
    """Counts and signs of doubt, noted while edges are read.

    Args:
        are_texts: whether keys are hashes of names.
        edges: their number.
        first: the ends of the first edge.
        first_weight: its weight, or None.
        smallest, largest: keys of the others.
        first_again: whether another edge has an end of the first one.
        whole_weights: whether all weights are whole numbers.
        times: whether all weights are as large as times in seconds.
    """

    are_texts: bool
    edges: int = 0
    first: tuple[int, int] = (0, 0)
    first_weight: float | None = None
    smallest: int | None = None
    largest: int | None = None
    first_again: bool = False
    whole_weights: bool = True
    times: bool = True

    def add(self, ends: tuple[np.ndarray, np.ndarray], weights: np.ndarray | None) -> None:
        """Notes some edges that follow."""
        if not self.edges:
            self.first = (int(ends[0][0]), int(ends[1][0]))
            self.first_weight = None if weights is None else float(weights[0])
        for keys in ends:
            others = keys[not self.edges :]
            if others.size:
                least, most = int(others.min()), int(others.max())
                self.smallest = least if self.smallest is None else min(self.smallest, least)
                self.largest = most if self.largest is None else max(self.largest, most)
                again = self.first_again or any((others == end).any() for end in self.first)
                self.first_again = bool(again)
        if weights is not None:
            self.whole_weights &= bool((weights == np.rint(weights)).all())
            self.times &= bool((weights >= _LIKE_TIMES).all())
        self.edges += len(ends[0])


@dataclasses.dataclass(frozen=True)
class StoredEdges:
    """All edges of a file.

    Args:
        num_edges: their number.
        ends: their keys.
        are_texts: whether keys are hashes of names.
        data: further arrays [num_edges, ...] by name.
        place: where an edge stands in the user's file, for messages.
        names: of texts, a lazy frame of the names, their hashes and places in each chunk.
    """

    num_edges: int
    ends: Ends
    are_texts: bool
    data: Mapping[str, Rows]
    place: Callable[[int], str]
    names: Any = None


class Memory:
    """Keeps arrays and frames in memory; a subclass writes them to files."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets all."""
        self.arrays: dict[str, list[np.ndarray]] = {}
        self.frames: list[Any] = []

    def add(self, name: str, values: np.ndarray) -> None:
        """Appends values to an array."""
        self.arrays.setdefault(name, []).append(values)

    def add_names(self, frame: Any) -> None:
        """Adds the names of a chunk."""
        self.frames.append(frame)


def stored_in_memory(source: EdgeFile, relabel: bool | None) -> tuple[StoredEdges, Facts]:
    """Reads a file of edges into memory; raises as `read_keys`."""
    memory = Memory()
    facts = read_keys(memory, source, relabel)
    rows = {name: np.concatenate(some) for name, some in memory.arrays.items()}
    ends = [rows.pop(end, np.zeros(0, np.int64)) for end in ("senders", "receivers")]
    names = polars().concat(memory.frames).lazy() if memory.frames else None
    edges = StoredEdges(facts.edges, Ends(tuple(ends)), facts.are_texts, rows, source.place, names)
    return edges, facts


def read_keys(
    store: Memory,
    source: EdgeFile,
    relabel: bool | None,
    on_progress: Callable[[int, int], object] = lambda done, total: None,
) -> Facts:
    """Reads a file of edges: "senders", "receivers" and, where it has them, "edge_weight"."""
    try:
        return _read(store, source, False, relabel, on_progress)
    except NotWholeError as error:
        if relabel is None and error.follows_numbers:
            raise AmbiguousFileError(
                f"{error}, unlike ids before. If all ids are names, "
                f"{option_advice('relabel=True', '--relabel')}"
            ) from None
        if relabel is False:
            raise AmbiguousFileError(
                f"{error}, so that it is a name, which is not a row; leave out relabel=False "
                "(--no-relabel) to relabel ids and keep them in graph.node_names"
            ) from None
    store.clear()
    return _read(store, source, True, relabel, on_progress)


def _read(
    store: Memory,
    source: EdgeFile,
    as_texts: bool,
    relabel: bool | None,
    on_progress: Callable[[int, int], object],
) -> Facts:
    facts = Facts(as_texts)
    for chunk in source.chunks(as_texts=as_texts):
        ends = (chunk.senders, chunk.receivers)
        if as_texts:
            if relabel is None:
                _refuse_numbers(source, ends, facts.edges)
            ends, names = _hashed(ends, facts.edges)
            store.add_names(names)
        for name, keys in zip(("senders", "receivers"), ends, strict=True):
            store.add(name, keys)
        if chunk.weights is not None:
            store.add("edge_weight", _checked_weights(chunk, source, facts.edges))
        facts.add(ends, chunk.weights)
        on_progress(chunk.position, source.length)
    return facts


def _refuse_numbers(source: EdgeFile, ends: tuple[Any, Any], first: int) -> None:
    for series in ends:
        if (are_numbers := numbers_among(series)).any():
            row = int(are_numbers.arg_max())
            raise AmbiguousFileError(
                f"{source.place(first + row)}: the id {series[row][:80]!r} is a number, unlike "
                f"other ids. If all ids are names, {option_advice('relabel=True', '--relabel')}"
            )


def _hashed(ends: tuple[Any, Any], first: int) -> tuple[tuple[np.ndarray, np.ndarray], Any]:
    """The hashes of names, and the distinct names with their first places."""
    pl = polars()
    hashes = [series.hash(HASH_SEED) for series in ends]
    frames = [
        pl.DataFrame({"name": series, "hash": keys}).with_columns(
            place=pl.int_range(pl.len(), dtype=pl.Int64) + (first + role * _ROLE)
        )
        for role, (series, keys) in enumerate(zip(ends, hashes, strict=True))
    ]
    distinct = (
        pl.concat(frames)
        .group_by("name")
        .agg(pl.col("hash").first(), pl.col("place").min())
        .sort("hash")
    )
    return (hashes[0].to_numpy(), hashes[1].to_numpy()), distinct


def _checked_weights(chunk: Chunk, source: EdgeFile, first: int) -> np.ndarray:
    assert chunk.weights is not None
    with np.errstate(over="ignore"):
        stored = chunk.weights.astype(np.float32)
    if not np.isfinite(stored).all():
        place = source.place(first + int(np.argmin(np.isfinite(stored))))
        raise BrokenFileError(f"{place}: has a weight that is not finite in float32")
    return stored


def check_text(source: TextFile, facts: Facts, counts: bool | None) -> int | None:
    """Refuses a text that may be meant otherwise."""
    layout = source.layout
    if not facts.edges:
        raise BrokenFileError("no line of numbers or names; expected an edge on each line")
    _check_unnamed_weights(source, facts)
    if facts.are_texts:
        if layout.is_header_unsure and not facts.first_again:
            shown = ", ".join(repr(cell) for cell in layout.first_row)
            raise AmbiguousFileError(
                f"its first line holds {shown}, which no other line does, so that these may be "
                f"names of columns. If so, {option_advice('header=True')}; if it is an edge, "
                f"{option_advice('header=False')}."
            )
        return None
    if layout.counts is None:
        if counts is None and layout.names is None:
            _check_first_edge(facts)
        return None
    nodes, num_edges = _nodes_and_edges(layout.counts, facts.edges)
    if num_edges not in (None, facts.edges):
        raise BrokenFileError(
            f"its first line declares {num_edges} edges and {facts.edges} follow. If it is not a "
            f"line of counts, {option_advice('counts=False')}"
        )
    return nodes


def _check_unnamed_weights(source: TextFile, facts: Facts) -> None:
    columns, first_row = source.columns, source.layout.first_row
    if columns.is_weight_named or columns.weight is None:
        return
    shown = first_row[columns.weight]
    if (shown.lstrip("+-").isdigit() and facts.whole_weights) or facts.times:
        raise AmbiguousFileError(
            f"its third column is unnamed: {shown!r} may be a weight, a time or a type. To ignore "
            f"it, {option_advice('weights=False', '--weight-column none')}; if it holds weights, "
            f"{option_advice('weights=2', '--weight-column 2')}."
        )


def _nodes_and_edges(counts: tuple[int, ...], num_edges: int) -> tuple[int | None, int | None]:
    """The nodes and the edges that a line of counts declares, of a file of so many edges."""
    if len(counts) == 1:
        return (None, num_edges) if counts[0] == num_edges else (counts[0], None)
    return max(counts[:-1]), counts[-1]


def _check_first_edge(facts: Facts) -> None:
    """Refuses a first edge that may be a line of counts."""
    nodes, follow = facts.first
    if facts.first_weight is not None:
        # As in MatrixMarket: rows, columns, entries.
        if nodes != follow or not facts.first_weight.is_integer():
            return
        follow = int(facts.first_weight)
    if follow != facts.edges - 1 or facts.smallest is None or facts.largest is None:
        return
    if facts.largest < nodes or (facts.smallest > 0 and facts.largest == nodes):
        raise AmbiguousFileError(
            f"the first line holds {nodes} and {follow}: {follow} lines follow, with ids up to "
            f"{facts.largest}, so that these may be the numbers of nodes and edges. If so, "
            f"{option_advice('counts=True')}; if they are an edge, {option_advice('counts=False')}."
        )
