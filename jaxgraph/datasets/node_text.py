"""Tables of nodes in text: trimmed cells, columns of numbers, and the line of each row."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from jaxgraph.datasets.files import BrokenFileError
from jaxgraph.datasets.node_ids import BLANK, MINUS, polars
from jaxgraph.datasets.text_layout import open_text

_SEPARATORS = ",;\t|"
_AROUND = BLANK + '"'
_EMPTY_LINES = re.compile(r"(?m)^[ \t]*\n")
_NOTHING = ("NA", "NaN", "nan", "null", "NULL", "None", "N/A", "n/a", "<NA>", "#N/A")


def read_text(path: Path, ids: Collection[str]) -> tuple[Any, Callable[[int], str]]:
    """Reads a frame of texts and numbers, and the place of a row; columns named as `ids` are texts.

    The reader of edges trims ids alike, and takes no text for a missing one.
    """
    pl = polars()
    with open_text(path) as stream:
        text = stream.read()
    separator = max(_SEPARATORS, key=text.lstrip("\n").partition("\n")[0].count)
    _, header = next(_records(text, separator), (0, []))
    if not header:
        raise BrokenFileError("holds no row; expected names of columns, and a row for each node")
    try:
        table = pl.read_csv(
            _EMPTY_LINES.sub("", text).encode(),
            has_header=False,
            separator=separator,
            schema={f"c{column}": pl.String for column in range(len(header))},
        )
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        _check_lengths(text, separator)
        raise BrokenFileError(
            "its lines are no columns; expected quotation marks in pairs"
        ) from error
    table = table.select(pl.all().str.strip_chars(_AROUND).replace("", None))
    table = table.filter(~pl.all_horizontal(pl.all().is_null()))
    # Polars fills a line that is too short.
    if table.to_series(len(header) - 1).null_count():
        _check_lengths(text, separator)
    columns = zip(distinct_names(header), table.slice(1), strict=True)

    def place(row: int) -> str:
        lines = (line for line, _ in _records(text, separator))
        return f"line {next(itertools.islice(lines, row + 1, None), '?')}"

    found = {
        name: column if name.casefold() in ids else _numbers_or_texts(column)
        for name, column in columns
    }
    return pl.DataFrame(found), place


def distinct_names(names: Collection[str]) -> list[str]:
    """Returns trimmed names of columns, or raises BrokenFileError where two are equal."""
    found = [name.strip(_AROUND) for name in names]
    for name, count in Counter(found).most_common(1):
        if count > 1:
            raise BrokenFileError(f"{count} columns are named {name!r}; expected different names")
    return found


def _records(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """The first line, from 1, and the cells of each record that is not empty."""
    rows, line = csv.reader(io.StringIO(text), delimiter=separator), 1
    for cells in rows:
        if any(cell.strip(_AROUND) for cell in cells):
            yield line, cells
        line = rows.line_num + 1


def _check_lengths(text: str, separator: str) -> None:
    """Refuses a record with more or fewer cells than the header."""
    expected = 0
    for line, cells in _records(text, separator):
        expected = expected or len(cells)
        if len(cells) != expected:
            raise BrokenFileError(
                f"line {line}: has {len(cells)} cells, and the header {expected}; expected a cell "
                f"for each column, which is in quotes where it holds {separator!r}"
            )


def _numbers_or_texts(texts: Any) -> Any:
    """A column of whole numbers or of floats where all its values are, else of texts."""
    pl = polars()
    texts = texts.set(texts.is_in(_NOTHING), None)
    plain = texts.str.replace_all(MINUS, "-", literal=True)
    for kind in (pl.Int64, pl.Float64):
        numbers = plain.cast(kind, strict=False)
        if numbers.null_count() == texts.null_count():
            return numbers
    return texts
