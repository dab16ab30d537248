"""Edges of files in chunks: text by Polars, block by block; Parquet by Polars; npy by offset.

Every reader can start at the position at which an earlier run has stopped.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from jaxgraph.datasets.edge_columns import EdgeColumns
from jaxgraph.datasets.files import (
    BrokenFileError,
    MissingPackageError,
    option_advice,
    reading,
)
from jaxgraph.datasets.limits import opened
from jaxgraph.datasets.node_ids import BLANK, MINUS, NUMBER, WHOLE, trimmed
from jaxgraph.datasets.text_edges import line_of_edge
from jaxgraph.datasets.text_layout import Layout, split_cells

__all__ = ["Chunk", "EdgeFile", "NotWholeError", "ParquetFile", "TextFile", "polars", "text_blocks"]

_LONGEST_LINE = 1 << 20
_UTF8_MARK, _UTF16_MARKS = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")
_NO_EDGE = re.compile(rb"(?m)^[ \t\r]*(?:[#%].*)?(?:\n|\Z)")
"""Empty lines and comments."""
_MAY_BE_NO_EDGE = re.compile(rb"(?:\A|\n)[ \t\r\n#%]")
_BLANKS = re.compile(rb"[ \t\v\f]+")
_OUTER_BLANKS = re.compile(rb"(?m)^ | (?=\r?$)")


class NotWholeError(ValueError):
    """An id is no whole number.

    Args:
      text: the id.
      place: where it is.

    Attributes:
      edges_before: edges of chunks before it, all of whose ids were whole numbers.
    """

    edges_before = 0

    def __init__(self, text: str, place: str) -> None:
        super().__init__(f"{place}: the id {text[:80]!r} is no whole number")
        self.text, self.place = text, place


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Some consecutive edges of a file.

    Attributes:
      senders, receivers: int64 [edges] where ids are numbers, else series of texts.
      weights: float64 [edges], or None.
      position: where the next chunk starts.
    """

    senders: Any
    receivers: Any
    weights: np.ndarray | None
    position: int


class EdgeFile(Protocol):
    """A file of edges that is read from beginning to end."""

    @property
    def path(self) -> Path:
        """The file."""
        ...

    @property
    def length(self) -> int:
        """The position of its end; 0 where that is not known."""
        ...

    def chunks(self, position: int, first_edge: int, *, as_texts: bool) -> Iterator[Chunk]:
        """Yields the edges from a position on; NotWholeError where a number was expected."""
        ...

    def place(self, edge: int) -> str:
        """Where an edge stands, for messages."""
        ...


def polars() -> Any:
    """Imports Polars.

    Raises:
      MissingPackageError: it is not installed.
    """
    try:
        import polars as found
    except ImportError as error:
        raise MissingPackageError(
            "text and Parquet files that are larger than memory are read by Polars, which is not "
            "installed; install it with pip install 'jaxgraph[large]', or take an .npy file"
        ) from error
    return found


def text_blocks(path: Path, skipped: int, position: int, size: int) -> Iterator[tuple[bytes, int]]:
    """Reads a text in blocks of whole lines.

    Args:
      path: the file, packed by gzip or not.
      skipped: lines before the first one that is wanted.
      position: of bytes after decompression, as an earlier block gave it; 0: the beginning.
      size: bytes of a block.

    Yields:
      A block, and the position after it.

    Raises:
      BrokenFileError: a line is longer than a megabyte, or the text is in UTF-16.
    """
    with reading(path, "text"), opened(path) as stream:
        if position:
            _skip_to(stream, position)
        else:
            for number in range(skipped):
                line = stream.readline()
                position += len(line)
                if number == 0 and line.startswith(_UTF16_MARKS):
                    raise _utf16(path)
        is_first, rest = position == 0, b""
        while more := stream.read(size):
            if is_first and more.startswith(_UTF16_MARKS):
                raise _utf16(path)
            if is_first and more.startswith(_UTF8_MARK):
                more, position = more[len(_UTF8_MARK) :], position + len(_UTF8_MARK)
            is_first, block = False, rest + more
            cut = block.rfind(b"\n") + 1
            rest = block[cut:]
            if len(rest) > _LONGEST_LINE + size:
                raise BrokenFileError(f"{path}: a line has over {_LONGEST_LINE:,} characters")
            if cut:
                position += cut
                yield block[:cut], position
        if rest:
            yield rest, position + len(rest)


def _utf16(path: Path) -> BrokenFileError:
    return BrokenFileError(
        f"{path}: is in UTF-16; convert it first, as with 'iconv -f utf-16 -t utf-8 {path.name}'"
    )


def _skip_to(stream: IO[bytes], position: int) -> None:
    if stream.seekable():
        stream.seek(position)
        return
    # A compressed file has no index: it is decompressed again up to here, but not parsed.
    while position:
        position -= len(stream.read(min(position, 1 << 24)) or b"x" * position)


@dataclasses.dataclass(frozen=True)
class TextFile:
    """A list of edges in text.

    Attributes:
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
    def length(self) -> int:
        """Bytes of the file; 0 of a compressed one."""
        with self.path.open("rb") as stream:
            packed = stream.read(2) == b"\x1f\x8b"
        return 0 if packed else self.path.stat().st_size

    def place(self, edge: int) -> str:
        """The line of an edge."""
        return f"{self.path}: line {line_of_edge(self.path, self.layout, edge)}"

    def chunks(self, position: int, first_edge: int, *, as_texts: bool) -> Iterator[Chunk]:
        """Yields the edges from a position on."""
        blocks = text_blocks(self.path, self.layout.skipped, position, self.block)
        for block, after in blocks:
            lines = self._lines(block)
            if lines.strip():
                cells = self._cells(lines, first_edge, as_texts=as_texts)
                yield Chunk(*cells, after)
                first_edge += len(cells[0])

    def _lines(self, block: bytes) -> bytes:
        if _MAY_BE_NO_EDGE.search(block):
            block = _NO_EDGE.sub(b"", block)
        if self.layout.separator is None:
            block = _OUTER_BLANKS.sub(b"", _BLANKS.sub(b" ", block))
        return block

    def _cells(
        self, lines: bytes, first_edge: int, *, as_texts: bool
    ) -> tuple[Any, Any, np.ndarray | None]:
        pl = polars()
        ends, weight = (self.columns.sender, self.columns.receiver), self.columns.weight
        if not as_texts:
            kinds = {ends[0]: pl.Int64, ends[1]: pl.Int64}
            kinds |= {} if weight is None else {weight: pl.Float64}
            found = self._table(lines, kinds)
            if found is not None and not sum(found.null_count().row(0)):
                arrays = [found[f"c{column}"].to_numpy() for column in kinds]
                return arrays[0], arrays[1], None if weight is None else arrays[2]
        wanted = [*ends] if weight is None else [*ends, weight]
        found = self._table(lines, dict.fromkeys(wanted, pl.String))
        if found is None or sum(found.null_count().row(0)):
            self._refuse_lines(lines, first_edge)
        assert found is not None
        texts = [stripped(found[f"c{column}"], quotes=True) for column in wanted]
        weights = None if weight is None else self._weights(texts[2], first_edge)
        at = [lambda row: self.place(first_edge + row)] * 2
        for series in texts[:2]:
            refuse_empty(series, at[0])
        if as_texts:
            return texts[0], texts[1], weights
        return whole(texts[0], at[0]), whole(texts[1], at[1]), weights

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
        except pl.exceptions.PolarsError:
            return None

    def _weights(self, texts: Any, first_edge: int) -> np.ndarray:
        pl = polars()
        found = texts.str.replace_all(MINUS, "-", literal=True).cast(pl.Float64, strict=False)
        if found.null_count():
            row = int(found.is_null().arg_max())
            raise BrokenFileError(
                f"{self.place(first_edge + row)}: {texts[row][:80]!r} is no number in column "
                f"{self.columns.weight}; expected a weight. To ignore the column, "
                f"{option_advice('weights=False', '--weight-column none')}"
            )
        return found.to_numpy()

    def _refuse_lines(self, lines: bytes, first_edge: int) -> None:
        """Names the line that is not like the others."""
        try:
            rows = lines.decode().splitlines()
        except UnicodeDecodeError:
            raise BrokenFileError(
                f"{self.path}: holds bytes that are not UTF-8; convert it first"
            ) from None
        for row, line in enumerate(rows):
            count = len(split_cells(line, self.layout.separator))
            if count != self.layout.num_columns:
                raise BrokenFileError(
                    f"{self.place(first_edge + row)}: has {count} columns, and the first edge "
                    f"{self.layout.num_columns}; expected lines of one length"
                )
        raise BrokenFileError(
            f"{self.place(first_edge)}: these lines or some that follow cannot be read as columns; "
            "is a quotation mark missing?"
        )


@dataclasses.dataclass(frozen=True)
class ParquetFile:
    """A list of edges in Parquet.

    Attributes:
      path: the file.
      names: of the columns of senders, receivers, and weights where there are any.
      length: its rows.
      rows: that are read at once.
    """

    path: Path
    names: tuple[str, ...]
    length: int
    rows: int

    def place(self, edge: int) -> str:
        """The row of an edge."""
        return f"{self.path}: row {edge}"

    def chunks(self, position: int, first_edge: int, *, as_texts: bool) -> Iterator[Chunk]:
        """Yields the edges from a position on."""
        pl = polars()
        columns = pl.scan_parquet(self.path).select(self.names)
        for first in range(position, self.length, self.rows):
            with reading(self.path, "Parquet"):
                table = columns.slice(first, self.rows).collect()
            ends = [self._ids(table[name], first, as_texts) for name in self.names[:2]]
            weights = None
            if len(self.names) == 3:
                found = table[self.names[2]].cast(pl.Float64, strict=False)
                if found.null_count():
                    row = first + int(found.is_null().arg_max())
                    raise BrokenFileError(f"{self.place(row)}: has no weight; expected a number")
                weights = found.to_numpy()
            yield Chunk(ends[0], ends[1], weights, min(first + self.rows, self.length))

    def _ids(self, series: Any, first: int, as_texts: bool) -> Any:
        def place(row: int) -> str:
            return self.place(first + row)

        pl = polars()
        if series.dtype.is_integer() and not as_texts and not series.null_count():
            found = series.cast(pl.Int64, strict=False)
            if not found.null_count():
                return found.to_numpy()
        texts = stripped(series.cast(pl.String).fill_null(""), quotes=False)
        refuse_empty(texts, place)
        return texts if as_texts else whole(texts, place)


def stripped(texts: Any, *, quotes: bool) -> Any:
    """Texts without blanks around them, and without quotation marks, as `trimmed` does."""
    texts = texts.str.strip_chars(BLANK)
    return texts.str.strip_chars('"').str.strip_chars(BLANK) if quotes else texts


def refuse_empty(texts: Any, place: Any) -> None:
    """Raises BrokenFileError where a text is empty."""
    empty = texts == ""
    if empty.any():
        raise BrokenFileError(f"{place(int(empty.arg_max()))}: has an empty id")


def whole(texts: Any, place: Any) -> np.ndarray:
    """Reads texts as whole numbers.

    Args:
      texts: a series of trimmed texts.
      place: returns where a row stands, for messages.

    Returns:
      int64 [rows].

    Raises:
      NotWholeError: a text is no whole number of 64 bits.
    """
    pl = polars()
    digits = texts.str.replace_all(MINUS, "-", literal=True)
    digits = digits.set(~digits.str.contains(f"^(?:{_plain(WHOLE)})$"), None)
    found = digits.str.replace(r"\..*$", "").str.strip_prefix("+").cast(pl.Int64, strict=False)
    if found.null_count():
        row = int(found.is_null().arg_max())
        raise NotWholeError(trimmed(texts[row]), place(row))
    return found.to_numpy()


def numbers_among(texts: Any) -> Any:
    """A series of bools: whether each text is a number."""
    digits = texts.str.replace_all(MINUS, "-", literal=True)
    return digits.str.contains(f"^(?:{_plain(NUMBER)})$")


def _plain(pattern: re.Pattern[str]) -> str:
    return pattern.pattern.replace(r"\d", "[0-9]")
