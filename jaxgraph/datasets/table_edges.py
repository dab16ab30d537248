"""Edges from the columns of a table in memory: a pandas DataFrame or a Parquet file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxgraph.datasets.edge_columns import Column, EdgeColumns, choose_columns
from jaxgraph.datasets.files import BrokenFileError, MissingPackageError, option_advice
from jaxgraph.datasets.node_ids import NodeIds, ids_of_numbers, ids_of_texts, trimmed

__all__ = ["edges_of_table", "not_flat", "read_parquet"]

# A few bytes of a compressed column can stand for billions of equal values.
_BYTES_ALWAYS_ALLOWED = 1 << 28
_BYTES_PER_BYTE_ALLOWED = 256


def edges_of_table(
    names: Sequence[str],
    column: Callable[[int], Any],
    *,
    columns: tuple[Column, Column] | None,
    weights: Column | bool | None,
    relabel: bool | None,
    num_nodes: int | None,
) -> tuple[dict[str, Any], EdgeColumns]:
    """Chooses the columns of a table, and reads ids and weights from them.

    Args:
        names: of the columns.
        column: returns the array of a column, by its position.
        columns: as of ``choose_columns``.
        weights: as of ``choose_columns``.
        relabel: as of ``read_edge_list``.
        num_nodes: the number of nodes that the caller gave, or None.

    Returns:
        Arguments of ``Graph.from_edges``, and the columns.

    Raises:
        AmbiguousFileError: as ``choose_columns`` and ``ids_of_texts``.
        BrokenFileError: an id or a weight is missing or a list, or weights are no numbers.
    """
    chosen = choose_columns(names, len(names), columns=columns, weights=weights)
    ends = [_cells(names[end], column(end)) for end in (chosen.sender, chosen.receiver)]
    ids = _ids(ends, relabel=relabel, num_nodes=num_nodes)
    fields: dict[str, Any] = {"senders": ids.senders, "receivers": ids.receivers}
    if ids.names is not None:
        fields["node_names"] = ids.names
    if chosen.weight is not None:
        values = _cells(names[chosen.weight], column(chosen.weight))
        try:
            fields["edge_weight"] = values.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise BrokenFileError(
                f"column {names[chosen.weight]!r}: cannot be weights ({error}); expected numbers"
            ) from error
        if np.isnan(fields["edge_weight"]).any():
            row = int(np.argmax(np.isnan(fields["edge_weight"])))
            raise BrokenFileError(
                f"row {row}: nothing is in column {names[chosen.weight]!r}; expected a weight. To "
                f"ignore the column, {option_advice('weights=False', '--weight-column none')}"
            )
    return fields, chosen


def not_flat(what: str, name: str) -> BrokenFileError:
    """Returns the error for a column of lists or structs.

    Args:
        what: the column and its contents.
        name: of the column.

    Returns:
        The error.
    """
    return BrokenFileError(
        f"{what}; expected one value in each row. pandas' frame.explode({name!r}) makes a row of "
        "each value of a list, and pandas.json_normalize a column of each field of a struct"
    )


def _cells(name: str, column: Any) -> np.ndarray:
    """The array of a column; one with a list or a struct in a row is refused."""
    cells = np.asarray(column)
    nested = {list, dict, set, np.ndarray} & set(map(type, cells)) if cells.dtype == object else ()
    if nested:
        row, cell = next(each for each in enumerate(cells) if type(each[1]) in nested)
        raise not_flat(f"row {row}: column {name!r} holds {cell!r}", name)
    return cells


def _is_missing(value: Any) -> bool:
    """Tells whether a cell is None, NaN or pandas' NA, which equals nothing, not even itself."""
    try:
        return value is None or bool(value != value)
    except TypeError:
        return True


def _ids(ends: list[np.ndarray], *, relabel: bool | None, num_nodes: int | None) -> NodeIds:
    if all(array.dtype.kind in "iu" for array in ends):
        widest = np.result_type(*ends)
        if widest.kind in "iu":
            ends = [array.astype(widest, copy=False) for array in ends]
            return ids_of_numbers(ends[0], ends[1], relabel=relabel, num_nodes=num_nodes)
    codes: dict[str, int] = {}
    first_rows: list[int] = []
    numbered = []
    for array in ends:
        numbers = np.empty(array.size, np.int64)
        for row, value in enumerate(array.tolist()):
            text = "" if _is_missing(value) else trimmed(str(value))
            code = codes.setdefault(text, len(codes))
            if code == len(first_rows):
                if not text:
                    raise BrokenFileError(f"row {row}: has no id")
                first_rows.append(row)
            numbers[row] = code
        numbered.append(numbers)
    return ids_of_texts(
        (numbered[0], numbered[1]),
        list(codes),
        relabel=relabel,
        num_nodes=num_nodes,
        place=lambda code: f"row {first_rows[code]}",
    )


def read_parquet(
    path: Path,
    **choices: Any,
) -> tuple[dict[str, Any], tuple[str, ...], EdgeColumns]:
    """Reads the edges of a Parquet file.

    Args:
        path: the file.
        **choices: as of ``edges_of_table``.

    Returns:
        Arguments of ``Graph.from_edges``, the names of the columns, and the columns that were read.

    Raises:
        MissingPackageError: pyarrow is not installed.
        BrokenFileError: the file asks for far more memory than its size can justify.
    """
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise MissingPackageError(
            "reading a Parquet file needs pyarrow, which is not installed; install it with "
            "pip install 'jaxgraph[files]'"
        ) from error
    source = parquet.ParquetFile(path, memory_map=False)
    names = tuple(source.schema_arrow.names)
    num_rows = source.metadata.num_rows
    allowed = max(_BYTES_ALWAYS_ALLOWED, _BYTES_PER_BYTE_ALLOWED * path.stat().st_size)
    if 8 * num_rows > allowed:
        raise BrokenFileError(f"declares {num_rows:,} rows in {path.stat().st_size:,} bytes")

    def column(position: int) -> np.ndarray:
        return source.read(columns=[names[position]]).column(0).to_numpy()

    fields, chosen = edges_of_table(names, column, **choices)
    return fields, names, chosen
