"""Tables of numbers in comma-separated text, by Polars."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxgraph.datasets.edge_files import text_blocks
from jaxgraph.datasets.files import reading
from jaxgraph.datasets.node_ids import polars


def parse_table(path: Path, dtype: Any, size: int) -> Iterator[np.ndarray]:
    """Parses a text of numbers, perhaps compressed, in blocks of so many bytes."""
    columns, first = None, 0
    with reading(path, "compressed comma-separated numbers"):
        for block, _ in text_blocks(path, 0, size):
            values = parse_text(block, dtype, columns, first)
            yield values
            columns, first = values.shape[1], first + len(values)
        if not first:
            raise ValueError("it holds no number")


def parse_text(text: bytes, dtype: Any, columns: int | None = None, first: int = 0) -> np.ndarray:
    """Parses lines of equally many numbers, of which the first line is that of row `first`."""
    pl = polars()
    if columns is None:
        columns = text.partition(b"\n")[0].count(b",") + 1
    kind = pl.Int64 if np.dtype(dtype).kind == "i" else pl.Float64
    schema = {f"c{column}": kind for column in range(columns)}
    try:
        table = pl.read_csv(text, has_header=False, schema=schema)
    except pl.exceptions.PolarsError as error:
        # The other lines are advice to programmers who call Polars.
        reason = str(error).partition("\n")[0]
        kinds = "whole numbers" if kind == pl.Int64 else "numbers"
        raise ValueError(f"{reason}; expected {kinds}, {columns} in each line") from error
    if not len(table):
        raise ValueError("it holds no number")
    if sum(table.null_count().row(0)):
        raise ValueError(f"a number is missing from row {first} on")
    return table.to_numpy().astype(dtype)
