"""Edges of texts and tables in chunks, by Polars: a file that is larger than memory is one more."""

from __future__ import annotations

import codecs
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from jaxgraph.datasets.edge_columns import Choices, EdgeColumns, choose_columns
from jaxgraph.datasets.files import BrokenFileError, option_advice, reading
from jaxgraph.datasets.limits import opened
from jaxgraph.datasets.node_ids import BLANK, MINUS, NUMBER, WHOLE, is_number, polars
from jaxgraph.datasets.text_layout import Layout, find_layout, is_edge, open_text, split_cells

_LONGEST_LINE = 1 << 20
_UTF8_MARK, _UTF16_MARKS = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")
_NO_EDGE = re.compile(rb"(?m)^[ \t\r]*(?:[#%].*)?(?:\n|\Z)")
"""Empty lines and comments."""
_MAY_BE_NO_EDGE = b" \t\r\n#%"
"""The first bytes of lines that may be empty or a comment."""
_BLANKS = re.compile(rb"[ \t\v\f]+")
_OUTER_BLANKS = re.compile(rb"(?m)^ | (?=\r?$)")
# A few bytes of a compressed column can stand for billions of equal values.
_BYTES_ALWAYS_ALLOWED = 1 << 28
_BYTES_PER_BYTE_ALLOWED = 256


class NotWholeError(ValueError):
    """An id is no whole number of 64 bits.

    Args:
        text: the id.
        place: where it is.
        follows_numbers: whether ids before it are whole numbers.
    """

    def __init__(self, text: str, place: str, *, follows_numbers: bool) -> None:
        super().__init__(f"{place}: the id {text[:80]!r} is no whole number")
        self.follows_numbers = follows_numbers


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Some consecutive edges of a file.

    Args:
        senders, receivers: int64 [edges] where ids are numbers, else series of texts.
        weights: float64 [edges], or None.
        position: how much of the file has been read.
    """

    senders: Any
    receivers: Any
    weights: np.ndarray | None
    position: int


def text_blocks(path: Path, skipped: int, size: int) -> Iterator[tuple[bytes, int]]:
    """Reads a text in blocks of whole lines of about a size, after some lines."""
    with reading(path, "text"), _opened_utf8(path) as stream:
        position = sum(len(stream.readline()) for _ in range(skipped))
        rest = b""
        while more := stream.read(size):
            block = rest + more
            cut = block.rfind(b"\n") + 1
            rest = block[cut:]
            if len(rest) > _LONGEST_LINE + size:
                raise BrokenFileError(f"{path}: a line has over {_LONGEST_LINE:,} characters")
            position += cut
            if cut:
                yield block[:cut], position
        if rest:
            yield rest, position + len(rest)


def _opened_utf8(path: Path) -> IO[bytes]:
    """Opens a text after its byte order mark; UTF-16 is converted."""
    stream = opened(path)
    mark = stream.peek(3)  # pyright: ignore[reportAttributeAccessIssue]
    if mark.startswith(_UTF16_MARKS):
        return codecs.EncodedFile(stream, "utf-8", "utf-16")
    if mark.startswith(_UTF8_MARK):
        stream.read(len(_UTF8_MARK))
    return stream


@dataclasses.dataclass(frozen=True)
class TextFile:
    """A list of edges in text.

    Args:
        path: the file.
        layout: how it is written.
        columns: the columns to read.
        block: bytes that are read at once.
    """

    path: Path
    layout: Layout
    columns: EdgeColumns
    block: int

    @property
    def names(self) -> Sequence[str | int]:
        """The names of all columns, or their numbers."""
        return self.layout.names or range(self.layout.num_columns)

    @property
    def length(self) -> int:
        """Bytes of the file; 0 of a compressed one."""
        return 0 if self.path.suffix == ".gz" else self.path.stat().st_size

    def place(self, edge: int) -> str:
        """The line of an edge, from 1."""
        with open_text(self.path) as stream:
            numbers = (
                number
                for number, line in enumerate(stream, start=1)
                if number > self.layout.skipped and is_edge(line)
            )
            return f"line {next(itertools.islice(numbers, edge, None), '?')}"

    def chunks(self, *, as_texts: bool) -> Iterator[Chunk]:
        """Yields the edges."""
        first = 0
        for block, position in text_blocks(self.path, self.layout.skipped, self.block):
            lines = self._lines(block)
            if lines.strip():
                chunk = self._chunk(lines, first, position, as_texts=as_texts)
                yield chunk
                first += len(chunk.senders)

    def _lines(self, block: bytes) -> bytes:
        if any(b"\n%c" % first in block or block[0] == first for first in _MAY_BE_NO_EDGE):
            block = _NO_EDGE.sub(b"", block)
        if self.layout.separator is None:
            block = _OUTER_BLANKS.sub(b"", _BLANKS.sub(b" ", block))
        return block

    def _chunk(self, lines: bytes, first: int, position: int, *, as_texts: bool) -> Chunk:
        pl = polars()
        sender, receiver, weight = self.columns.sender, self.columns.receiver, self.columns.weight
        self._check_separators(lines, first)
        if not as_texts:
            kinds = {sender: pl.Int64, receiver: pl.Int64}
            kinds |= {} if weight is None else {weight: pl.Float64}
            found = self._table(lines, kinds)
            if found is not None and not sum(found.null_count().row(0)):
                arrays = [found[f"c{column}"].to_numpy() for column in kinds]
                return Chunk(arrays[0], arrays[1], None if weight is None else arrays[2], position)
        wanted = [sender, receiver] if weight is None else [sender, receiver, weight]
        found = self._table(lines, dict.fromkeys(wanted, pl.String))
        if found is None or sum(found.null_count().row(0)):
            self._refuse_lines(lines, first)
        assert found is not None
        texts = [found[f"c{column}"].str.strip_chars(BLANK + '"') for column in wanted]

        def place(row: int) -> str:
            return self.place(first + row)

        weights = None if weight is None else _weights(texts[2], place, weight)
        return Chunk(*_ids(texts[:2], first, place, as_texts=as_texts), weights, position)

    def _check_separators(self, lines: bytes, first: int) -> None:
        """Refuses lines of another length, of which Polars would fill some."""
        separators = (self.layout.num_columns - 1) * (
            lines.count(b"\n") + (not lines.endswith(b"\n"))
        )
        found = lines.count((self.layout.separator or " ").encode())
        if found != separators and b'"' not in lines:
            self._refuse_lines(lines, first)

    def _table(self, lines: bytes, kinds: dict[int, Any]) -> Any:
        """The wanted columns of some lines, or None where they are of another kind."""
        pl = polars()
        names = [f"c{column}" for column in range(self.layout.num_columns)]
        try:
            return pl.read_csv(
                lines,
                has_header=False,
                separator=self.layout.separator or " ",
                schema={name: kinds.get(i, pl.String) for i, name in enumerate(names)},
                columns=sorted(kinds),
                empty_string_is_null=False,
            )
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
            return None

    def _refuse_lines(self, lines: bytes, first: int) -> None:
        """Names the line that is not like the others."""
        for row, line in enumerate(lines.decode().splitlines()):
            count = len(split_cells(line, self.layout.separator))
            if count != self.layout.num_columns:
                raise BrokenFileError(
                    f"{self.place(first + row)}: has {count} columns, and the first edge "
                    f"{self.layout.num_columns}; expected lines of one length. If another "
                    f"character separates the columns, {option_advice('separator=CHARACTER')}"
                )
        raise BrokenFileError(
            f"{self.place(first)}: these lines or some that follow cannot be read as columns; "
            "is a quotation mark missing?"
        )


def open_text_edges(path: Path, choices: Choices, block: int) -> TextFile:
    """Finds the layout and the columns of a text of edges."""
    layout = find_layout(
        path, separator=choices.separator, header=choices.header, counts=choices.counts
    )
    columns = choose_columns(
        layout.names, layout.num_columns, columns=choices.columns, weights=choices.weights
    )
    third = columns.weight
    if third is not None and not columns.is_weight_named and _is_empty(path, layout, third):
        columns = dataclasses.replace(columns, weight=None)
    return TextFile(path, layout, columns, block)


def _is_empty(path: Path, layout: Layout, column: int) -> bool:
    """Tells whether a column is empty, as when every line ends with a comma."""
    if layout.first_row[column]:
        return False
    with open_text(path) as stream:
        lines = filter(is_edge, itertools.islice(stream, layout.skipped, None))
        cells = (split_cells(line, layout.separator) for line in lines)
        # The reader refuses lines of another length.
        return not any(row[column] for row in cells if len(row) > column)


@dataclasses.dataclass(frozen=True)
class TableFile:
    """A list of edges in a table: a Parquet file, or a frame in memory.

    Args:
        frame: of the columns of senders, receivers, and weights where there are any; lazy.
        columns: their positions.
        names: of all columns.
        length: its rows.
        rows: that are read at once.
    """

    frame: Any
    columns: EdgeColumns
    names: tuple[str, ...]
    length: int
    rows: int

    def place(self, edge: int) -> str:
        """The row of an edge."""
        return f"row {edge}"

    def chunks(self, *, as_texts: bool) -> Iterator[Chunk]:
        """Yields the edges."""
        for first in range(0, self.length, self.rows):
            table = self.frame.slice(first, self.rows).collect()
            texts = [table.to_series(position) for position in range(2)]

            def place(row: int, first: int = first) -> str:
                return self.place(first + row)

            weights = None
            if self.columns.weight is not None:
                column = self.names[self.columns.weight]
                weights = _weights(table.to_series(2), place, column)
            ends = _ids(texts, first, place, as_texts=as_texts)
            yield Chunk(*ends, weights, min(first + self.rows, self.length))


EdgeFile = TextFile | TableFile
"""A file of edges that is read from beginning to end."""


def _weights(values: Any, place: Callable[[int], str], column: int | str) -> np.ndarray:
    """Reads a series of numbers or texts as weights."""
    pl = polars()
    if values.dtype == pl.String:
        values = values.str.replace_all(MINUS, "-", literal=True)
    found = values.cast(pl.Float64, strict=False).fill_nan(None)
    if found.null_count():
        row = int(found.is_null().arg_max())
        value = values[row]
        shown = "nothing is" if value in (None, "") else f"{str(value)[:80]!r} is no number"
        raise BrokenFileError(
            f"{place(row)}: {shown} in column {column!r}; expected a weight. To ignore the column, "
            f"{option_advice('weights=False', '--weight-column none')}"
        )
    return found.to_numpy()


def open_parquet(path: Path, choices: Choices, rows: int) -> TableFile:
    """Finds the columns of a Parquet file of edges."""
    pl, size = polars(), path.stat().st_size
    with reading(path, "Parquet"):
        schema = pl.read_parquet_schema(path)
        length = int(pl.scan_parquet(path).select(pl.len()).collect().item())
    if 8 * length > max(_BYTES_ALWAYS_ALLOWED, _BYTES_PER_BYTE_ALLOWED * size):
        raise BrokenFileError(f"declares {length:,} rows in {size:,} bytes")
    names = tuple(schema)
    chosen = choose_columns(names, len(names), columns=choices.columns, weights=choices.weights)
    wanted = [names[position] for position in chosen.used]
    for name in wanted:
        if schema[name].is_nested():
            raise not_flat(f"column {name!r} holds {schema[name]}", name)
    return TableFile(pl.scan_parquet(path).select(wanted), chosen, names, length, rows)


def not_flat(what: str, name: str) -> BrokenFileError:
    """The error for a column of lists or structs."""
    return BrokenFileError(
        f"{what}; expected one value in each row. pandas' frame.explode({name!r}) makes a row of "
        "each value of a list, and pandas.json_normalize a column of each field of a struct"
    )


def _ids(
    ends: list[Any], first: int, place: Callable[[int], str], *, as_texts: bool
) -> tuple[Any, Any]:
    """The ids of senders and of receivers."""
    senders = ids_of(ends[0], place, as_texts=as_texts, follows_numbers=first > 0)
    return senders, ids_of(ends[1], place, as_texts=as_texts, follows_numbers=True)


def ids_of(
    series: Any,
    place: Callable[[int], str],
    *,
    as_texts: bool = False,
    follows_numbers: bool = False,
) -> Any:
    """Reads ids as an array of whole numbers, or raises NotWholeError; or as trimmed texts."""
    pl = polars()
    if series.dtype.is_integer() and not as_texts and not series.null_count():
        numbers = series.cast(pl.Int64, strict=False)
        if not numbers.null_count():
            return numbers.to_numpy()
    if series.dtype.is_float():
        series = series.fill_nan(None)
    texts = series.cast(pl.String).fill_null("").str.strip_chars(BLANK)
    empty = texts == ""
    if empty.any():
        raise BrokenFileError(f"{place(int(empty.arg_max()))}: has an empty id")
    return texts if as_texts else _whole(texts, place, follows_numbers)


def _whole(texts: Any, place: Callable[[int], str], follows_numbers: bool) -> np.ndarray:
    """Reads trimmed texts as whole numbers of 64 bits, or raises NotWholeError."""
    pl = polars()
    # Names are told by the first one.
    if not is_number(texts[0]):
        raise NotWholeError(texts[0], place(0), follows_numbers=follows_numbers)
    digits = texts.str.replace_all(MINUS, "-", literal=True)
    plain = digits.set(~_matches(digits, WHOLE), None)
    found = plain.str.replace(r"\..*$", "").str.strip_prefix("+").cast(pl.Int64, strict=False)
    if found.null_count():
        # Up to 2**53 every whole number has a float of its own.
        floats = digits.set(~_matches(digits, NUMBER), None).cast(pl.Float64, strict=False)
        is_whole = (floats == floats.round()) & (floats.abs() <= 2**53)
        found = found.fill_null(floats.set(~is_whole, None).cast(pl.Int64, strict=False))
    if found.null_count():
        row = int(found.is_null().arg_max())
        raise NotWholeError(texts[row], place(row), follows_numbers=follows_numbers or row > 0)
    return found.to_numpy()


def numbers_among(texts: Any) -> Any:
    """A series of bools: whether each text is a number."""
    return _matches(texts.str.replace_all(MINUS, "-", literal=True), NUMBER)


def _matches(texts: Any, pattern: re.Pattern[str]) -> Any:
    return texts.str.contains(f"^(?:{pattern.pattern.replace(chr(92) + 'd', '[0-9]')})$")
