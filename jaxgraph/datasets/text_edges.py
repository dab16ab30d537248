"""Edges from text: NumPy reads plain numbers; names and odd numbers are read cell by cell."""

from __future__ import annotations

import csv
import itertools
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from jaxgraph.datasets.edge_columns import EdgeColumns
from jaxgraph.datasets.files import AmbiguousFileError, BrokenFileError, option_advice
from jaxgraph.datasets.node_ids import (
    NodeIds,
    ids_of_numbers,
    ids_of_texts,
    number,
    trimmed,
)
from jaxgraph.datasets.text_layout import Layout, is_edge, open_text, split_cells

__all__ = [
    "LIKE_TIMES",
    "TextEdges",
    "check_counts",
    "check_first_edge",
    "check_unnamed_weights",
    "is_empty_column",
    "line_of_edge",
    "nodes_and_edges",
    "read_text_edges",
    "refuse_first_names",
]

# Times in seconds since 1970 have exceeded this since 1973.
LIKE_TIMES = 1e8
_ROWS_AT_A_TIME = 1 << 13


@dataclass(frozen=True)
class TextEdges:
    """The edges of a text.

    Args:
        ids: senders and receivers.
        weights: float64 [num_edges], or None.
    """

    ids: NodeIds
    weights: np.ndarray | None


def read_text_edges(
    path: Path,
    layout: Layout,
    columns: EdgeColumns,
    *,
    relabel: bool | None,
    num_nodes: int | None,
) -> TextEdges:
    """Reads all edges of a text.

    Args:
        path: the file.
        layout: how it is written.
        columns: the columns to read.
        relabel: as of ``read_edge_list``.
        num_nodes: the number of nodes that the caller gave, or None.

    Returns:
        The edges.

    Raises:
        AmbiguousFileError: ids or weights can be read in several ways.
        BrokenFileError: a line is not like the others; the message says which.
    """
    numbers = _plain_numbers(path, layout, columns)
    if numbers is None:
        edges = _edges_of_cells(path, layout, columns, relabel=relabel, num_nodes=num_nodes)
    else:
        senders, receivers, weights = numbers
        _check_unnamed_weights(layout, columns, weights)
        ids = ids_of_numbers(senders, receivers, relabel=relabel, num_nodes=num_nodes)
        edges = TextEdges(ids, weights)
    _check_values(path, layout, edges)
    return edges


def _check_values(path: Path, layout: Layout, edges: TextEdges) -> None:
    checks = [
        ("a negative id; expected ids from 0", edges.ids.senders < 0),
        ("a negative id; expected ids from 0", edges.ids.receivers < 0),
    ]
    if edges.weights is not None:
        checks.append(("a weight that is not finite", ~np.isfinite(edges.weights)))
    for wrong, where in checks:
        if where.any():
            line = line_of_edge(path, layout, int(np.argmax(where)))
            raise BrokenFileError(f"line {line}: has {wrong}")


def line_of_edge(path: Path, layout: Layout, edge: int) -> int:
    """Returns the number of the line of an edge, from 1."""
    with open_text(path) as stream:
        numbers = (
            number
            for number, line in enumerate(stream, start=1)
            if number > layout.skipped and is_edge(line)
        )
        return next(itertools.islice(numbers, edge, None))


def is_empty_column(path: Path, layout: Layout, column: int) -> bool:
    """Tells whether a column is empty, as when every line ends with a comma.

    Args:
        path: the file.
        layout: how it is written.
        column: position of the column, from 0.

    Returns:
        Whether the column is empty.
    """
    if layout.first_row[column]:
        return False
    with open_text(path) as stream:
        _skip(stream, layout.skipped)
        cells = (split_cells(line, layout.separator) for line in stream if is_edge(line))
        # The reader refuses lines of another length.
        return not any(row[column] for row in cells if len(row) > column)


def check_counts(layout: Layout, edges: TextEdges, wanted: bool | None) -> int | None:
    """Compares a line of counts with the edges, and refuses a first edge that may be one.

    Args:
        layout: of the file.
        edges: the edges that were read.
        wanted: whether the caller said that the first line holds counts.

    Returns:
        The number of nodes that the counts declare, or None.

    Raises:
        AmbiguousFileError: the first edge may be a line of counts.
        BrokenFileError: the counts do not fit the edges.
    """
    senders, receivers = edges.ids.senders, edges.ids.receivers
    names = edges.ids.names
    named = names is not None
    if layout.counts is None:
        if wanted is None and layout.names is None:
            if names is None:
                _check_first_edge(senders, receivers, edges.weights)
            elif names.dtype.kind == "i":
                _check_first_edge(names[senders], names[receivers], edges.weights)
        return None
    nodes, num_edges = nodes_and_edges(layout.counts, senders.size)
    if num_edges not in (None, senders.size):
        raise BrokenFileError(
            f"its first line declares {num_edges} edges and {senders.size} follow. If it is not a "
            f"line of counts, {option_advice('counts=False')}"
        )
    largest = -1 if named else int(max(senders.max(), receivers.max()))
    if nodes is not None and not named and nodes <= largest:
        raise AmbiguousFileError(
            f"its first line declares {nodes} nodes, and the largest id is {largest}; do ids start "
            f"at 1? To relabel them, {option_advice('relabel=True', '--relabel')}."
        )
    return None if named else nodes


def nodes_and_edges(counts: tuple[int, ...], num_edges: int) -> tuple[int | None, int | None]:
    """The nodes and the edges that a line of counts declares, of a file of so many edges."""
    if len(counts) == 1:
        return (None, num_edges) if counts[0] == num_edges else (counts[0], None)
    return max(counts[:-1]), counts[-1]


def _check_first_edge(
    senders: np.ndarray, receivers: np.ndarray, weights: np.ndarray | None
) -> None:
    first = (int(senders[0]), int(receivers[0]))
    rest = (senders[1:], receivers[1:])
    smallest = min((int(ids.min()) for ids in rest if ids.size), default=0)
    largest = max((int(ids.max()) for ids in rest if ids.size), default=0)
    weight = None if weights is None else float(weights[0])
    check_first_edge(first, weight, senders.size, smallest, largest)


def check_first_edge(
    first: tuple[int, int], weight: float | None, num_edges: int, smallest: int, largest: int
) -> None:
    """Refuses a first edge that may be a line of counts.

    Args:
        first: its ids.
        weight: its weight, or None.
        num_edges: edges of the file, the first included.
        smallest, largest: ids of the other edges.

    Raises:
        AmbiguousFileError: the first edge may be a line of counts.
    """
    if weight is not None:
        # As in MatrixMarket: rows, columns, entries.
        if first[0] != first[1] or not weight.is_integer():
            return
        first = (first[0], int(weight))
    nodes, follow = first
    if follow != num_edges - 1 or follow == 0:
        return
    others, from_one, num_edges = largest, smallest > 0, follow
    if others < nodes or (from_one and others == nodes):
        raise AmbiguousFileError(
            f"the first line holds {nodes} and {num_edges}: {num_edges} lines follow, with ids up "
            f"to {others}, so that these may be the numbers of nodes and edges. If so, "
            f"{option_advice('counts=True')}; if they are an edge, "
            f"{option_advice('counts=False')}."
        )


def _plain_numbers(
    path: Path, layout: Layout, columns: EdgeColumns
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None] | None:
    """Reads whole numbers as ids and numbers as weights; None if the file holds anything else."""
    kinds: dict[int, Any] = {columns.sender: np.int64, columns.receiver: np.int64}
    if columns.weight is not None:
        kinds[columns.weight] = np.float64
    # Ignored columns are split off too, so that lines of another length are noticed.
    dtype = np.dtype(
        [(f"c{column}", kinds.get(column, "U1")) for column in range(layout.num_columns)]
    )
    # Few files have comments after the first edge, and filtering them takes time.
    for may_have_comments in (False, True):
        with open_text(path) as stream:
            _skip(stream, layout.skipped)
            table = _loaded(filter(is_edge, stream) if may_have_comments else stream, dtype, layout)
        if table is not None:
            weights = None if columns.weight is None else table[f"c{columns.weight}"]
            return table[f"c{columns.sender}"], table[f"c{columns.receiver}"], weights
    return None


def _loaded(lines: Iterable[str], dtype: np.dtype, layout: Layout) -> np.ndarray | None:
    try:
        with warnings.catch_warnings():
            # NumPy 2.0 warns where it cuts a fraction off an id, later versions raise.
            warnings.simplefilter("error")
            return np.loadtxt(
                lines,
                dtype=dtype,
                comments=None,
                delimiter=layout.separator,
                quotechar='"',
                ndmin=1,
            )
    except UnicodeDecodeError:
        raise
    except (ValueError, Warning):
        return None


def _skip(stream: IO[str], num_lines: int) -> None:
    for _ in range(num_lines):
        next(stream)


def _check_unnamed_weights(
    layout: Layout, columns: EdgeColumns, weights: np.ndarray | None
) -> None:
    if weights is None or columns.is_weight_named or columns.weight is None:
        return
    are_whole = bool((weights == np.rint(weights)).all())
    check_unnamed_weights(layout, columns, are_whole, bool((weights >= LIKE_TIMES).all()))


def check_unnamed_weights(
    layout: Layout, columns: EdgeColumns, are_whole: bool, are_like_times: bool
) -> None:
    """Refuses a third column without a name that may hold something else than weights.

    Args:
        layout: of the file.
        columns: its columns.
        are_whole: whether all weights are whole numbers.
        are_like_times: whether all are as large as times in seconds.

    Raises:
        AmbiguousFileError: the column may hold types or times.
    """
    if columns.is_weight_named or columns.weight is None:
        return
    looks_whole = layout.first_row[columns.weight].lstrip("+-").isdigit()
    if (looks_whole and are_whole) or are_like_times:
        raise AmbiguousFileError(
            f"its third column is unnamed: {layout.first_row[columns.weight]!r} may be a weight, a "
            "time or a type. To ignore it, "
            f"{option_advice('weights=False', '--weight-column none')}; if it holds weights, "
            f"{option_advice('weights=2', '--weight-column 2')}."
        )


class _Codes(dict[str, int]):
    """Numbers texts in the order of look-up; texts that differ in blanks share a number."""

    def __init__(self) -> None:
        self.of_trimmed: dict[str, int] = {}

    def __missing__(self, cell: str) -> int:
        code = self.of_trimmed.setdefault(_text(cell), len(self.of_trimmed))
        self[cell] = code
        return code


def _text(cell: str) -> str:
    return trimmed(trimmed(cell).strip('"'))


def _edges_of_cells(
    path: Path,
    layout: Layout,
    columns: EdgeColumns,
    *,
    relabel: bool | None,
    num_nodes: int | None,
) -> TextEdges:
    codes = _Codes()
    senders, receivers, weights = array("q"), array("q"), array("d")

    def place(edge: int) -> str:
        return f"line {line_of_edge(path, layout, edge)}"

    with open_text(path) as stream:
        _skip(stream, layout.skipped)
        for first, cells in _cells(stream, layout, place):
            senders.extend(map(codes.__getitem__, cells[columns.sender]))
            receivers.extend(map(codes.__getitem__, cells[columns.receiver]))
            if columns.weight is not None:
                weights.extend(_weights(cells[columns.weight], first, columns, place))
    pairs = (np.array(senders, np.int64), np.array(receivers, np.int64))

    def place_of_code(code: int) -> str:
        return place(int(np.argmax((pairs[0] == code) | (pairs[1] == code))))

    if "" in codes.of_trimmed:
        raise BrokenFileError(f"{place_of_code(codes.of_trimmed[''])}: has an empty id")
    if layout.is_header_unsure:
        _check_first_names(pairs, layout)
    values = None if columns.weight is None else np.array(weights, np.float64)
    _check_unnamed_weights(layout, columns, values)
    texts = list(codes.of_trimmed)
    ids = ids_of_texts(pairs, texts, relabel=relabel, num_nodes=num_nodes, place=place_of_code)
    return TextEdges(ids, values)


def _cells(
    stream: IO[str], layout: Layout, place: Callable[[int], str]
) -> Iterator[tuple[int, Sequence[Sequence[str]]]]:
    """Yields the number of an edge and the columns of a few thousand edges from there."""
    lines = filter(is_edge, stream)
    rows: Iterator[list[str]] = (
        map(str.split, lines)
        if layout.separator is None
        else csv.reader(lines, delimiter=layout.separator, skipinitialspace=True)
    )
    first = 0
    while several := list(itertools.islice(rows, _ROWS_AT_A_TIME)):
        if set(map(len, several)) != {layout.num_columns}:
            odd = next(n for n, row in enumerate(several) if len(row) != layout.num_columns)
            raise BrokenFileError(
                f"{place(first + odd)}: has {len(several[odd])} columns, and the first edge "
                f"{layout.num_columns}; expected lines of one length. If another character "
                f"separates the columns, {option_advice('separator=CHARACTER')}"
            )
        yield first, list(zip(*several, strict=True))
        first += len(several)


def _weights(
    cells: Sequence[str], first: int, columns: EdgeColumns, place: Callable[[int], str]
) -> list[float]:
    values = []
    for edge, cell in enumerate(cells, start=first):
        text = _text(cell)
        try:
            values.append(number(text))
        except ValueError as error:
            wrong = f"{error} in column" if text else "nothing is in column"
            raise BrokenFileError(
                f"{place(edge)}: {wrong} {columns.weight}; expected a weight. To ignore the "
                f"column, {option_advice('weights=False', '--weight-column none')}"
            ) from error
    return values


def _check_first_names(pairs: tuple[np.ndarray, np.ndarray], layout: Layout) -> None:
    first = [int(pairs[0][0]), int(pairs[1][0])]
    if not any(np.isin(first, ends[1:]).any() for ends in pairs):
        refuse_first_names(layout)


def refuse_first_names(layout: Layout) -> NoReturn:
    """Raises AmbiguousFileError: the first line, whose names no other has, may be a header."""
    shown = ", ".join(repr(cell) for cell in layout.first_row)
    raise AmbiguousFileError(
        f"its first line holds {shown}, which no other line does, so that these may be names of "
        f"columns. If so, {option_advice('header=True')}; if it is an edge, "
        f"{option_advice('header=False')}."
    )
