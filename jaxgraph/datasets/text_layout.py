"""The layout of a text of edges: encoding, comments, separator, header, line of counts."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from jaxgraph.datasets.edge_columns import names_edges
from jaxgraph.datasets.files import (
    AmbiguousFileError,
    BrokenFileError,
    UnfitOptionError,
    option_advice,
)
from jaxgraph.datasets.limits import opened
from jaxgraph.datasets.node_ids import is_number, trimmed

_COMMENTS = ("#", "%")
_SEPARATORS = "\t;|,"
# A command line passes a tab as \t; a space is white space of any length.
_SPELLED_OUT = {"\\t": "\t", " ": None}
_LONGEST_LINE = 1 << 20
_LINES_LOOKED_AT = 20
_BYTE_ORDER_MARKS = (
    (b"\xef\xbb\xbf", "utf-8-sig"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
# As SNAP writes: "# Nodes: 1005 Edges: 25571".
_COUNTS_IN_COMMENT = re.compile(r"nodes:?\s*(\d{1,18})\W+edges:?\s*(\d{1,18})", re.IGNORECASE)


@dataclass(frozen=True)
class Layout:
    """The layout of a text of edges.

    Args:
        separator: between columns; None for white space.
        names: of the columns, or None where no line holds names.
        num_columns: of each line.
        skipped: number of lines before the first edge.
        num_comments: number of comments among them.
        counts: the numbers of a line of counts, or None.
        commented_counts: nodes and edges, as a comment declares them, or None.
        first_row: the cells of the first edge.
        is_header_unsure: whether the first line may hold names of columns as well as of nodes.
    """

    separator: str | None
    names: tuple[str, ...] | None
    num_columns: int
    skipped: int
    num_comments: int
    counts: tuple[int, ...] | None
    commented_counts: tuple[int, int] | None
    first_row: tuple[str, ...]
    is_header_unsure: bool


def open_text(path: Path) -> IO[str]:
    """Opens a file as text in the encoding of its byte order mark, UTF-8 if it has none."""
    with opened(path) as stream:
        start = stream.read(4)
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS if start.startswith(mark)), "utf-8")
    return io.TextIOWrapper(opened(path), encoding=encoding)


def split_cells(line: str, separator: str | None) -> list[str]:
    """Returns the trimmed cells of one line, without the quotes around them."""
    if separator is None:
        return [trimmed(cell.strip('"')) for cell in line.split()]
    return [
        trimmed(cell)
        for cell in next(csv.reader([line], delimiter=separator, skipinitialspace=True))
    ]


def is_edge(line: str) -> bool:
    """Tells whether a line is neither empty nor a comment."""
    # Digits and letters, with which nearly all lines start, sort after both comment marks.
    if "&" <= line[0] <= "z":
        return True
    content = trimmed(line)
    return bool(content) and not content.startswith(_COMMENTS)


def find_layout(
    path: Path,
    *,
    separator: str | None = None,
    header: bool | None = None,
    counts: bool | None = None,
) -> Layout:
    """Finds the layout of a text of edges from its first lines."""
    lines, comments = _first_lines(path)
    if not lines:
        raise BrokenFileError("no line of numbers or names; expected an edge on each line")
    separator = (
        _separator([line for _, line in lines])
        if separator is None
        else _SPELLED_OUT.get(separator, separator)
    )
    if separator is not None and (len(separator) != 1 or separator in '"\r\n'):
        raise UnfitOptionError(f"separator: got {separator!r}; expected one character.")
    rows = [split_cells(line, separator) for _, line in lines]
    has_header = _has_header(rows) if header is None else header
    names = tuple(rows[0]) if has_header else None
    counted = None if has_header else _counts(rows, counts)
    used = has_header or counted is not None
    if len(rows) == used:
        raise BrokenFileError(
            f"line {lines[0][0]}: {lines[0][1].strip()[:80]!r} holds names of columns or counts, "
            "and no line of numbers or names follows; expected an edge on each line. If it is an "
            f"edge, {option_advice('header=False')}"
        )
    first = rows[used]
    if names is not None and len(names) != len(first):
        raise BrokenFileError(
            f"line {lines[1][0]}: has {len(first)} columns, and the header {len(names)}: "
            f"{', '.join(repr(name) for name in names[:8])}; expected one name for each column. "
            "Add or remove names, or remove the header"
        )
    return Layout(
        separator=separator,
        names=names,
        num_columns=len(first),
        skipped=lines[used][0] - 1,
        num_comments=len(comments),
        counts=counted,
        commented_counts=_commented_counts(comments),
        first_row=tuple(first),
        is_header_unsure=header is None and not used and not any(map(is_number, rows[0])),
    )


def _first_lines(path: Path) -> tuple[list[tuple[int, str]], list[str]]:
    lines, comments, number = [], [], 0
    with open_text(path) as stream:
        while len(lines) < _LINES_LOOKED_AT and (line := stream.readline(_LONGEST_LINE)):
            number += 1
            if len(line) == _LONGEST_LINE:
                raise BrokenFileError(f"line {number}: has over {_LONGEST_LINE:,} characters")
            if "\0" in line:
                raise BrokenFileError(f"line {number}: holds a zero byte; expected UTF-8 text")
            content = trimmed(line)
            if content.startswith(_COMMENTS):
                if not lines:
                    comments.append(content)
            elif content:
                lines.append((number, line))
    return lines, comments


def _separator(lines: list[str]) -> str | None:
    for separator in _SEPARATORS:
        counts = [len(split_cells(line, separator)) for line in lines]
        # A header or a line of counts may have fewer columns than the edges.
        if min(counts[1:] or counts) >= 2:
            return separator
    # A lone damaged line must not hide the separator of all others.
    return next((s for s in _SEPARATORS if s in lines[0]), None)


def _has_header(rows: list[list[str]]) -> bool:
    if any(map(is_number, rows[0])):
        return False
    return names_edges(rows[0]) or any(is_number(cell) for row in rows[1:] for cell in row)


def _counts(rows: list[list[str]], wanted: bool | None) -> tuple[int, ...] | None:
    first = rows[0]
    are_counts = len(first) <= 3 and all(cell.isdecimal() and len(cell) < 19 for cell in first)
    if wanted and not are_counts:
        raise UnfitOptionError(
            f"counts: the first line holds {first}; expected one to three counts."
        )
    if wanted is False or not are_counts or len(rows) == 1:
        return None
    if wanted or len(first) < len(rows[1]):
        return tuple(int(cell) for cell in first)
    if len(first) == 3 and len(rows[1]) == 2:
        raise AmbiguousFileError(
            f"the first line, {' '.join(first)!r}, has three numbers and the next two, as in "
            "a MatrixMarket file without its header, whose ids start at 1. Write "
            "'%%MatrixMarket matrix coordinate pattern general' above it, or "
            f"{option_advice('counts=True')} if ids are rows from 0."
        )
    return None


def _commented_counts(comments: list[str]) -> tuple[int, int] | None:
    found = next(filter(None, map(_COUNTS_IN_COMMENT.search, comments)), None)
    return None if found is None else (int(found[1]), int(found[2]))
