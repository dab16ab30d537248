"""Tables of nodes beside a list of edges: an id in each row, features, a label and a split."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxgraph.datasets.edge_files import NotWholeError, ids_of, not_flat
from jaxgraph.datasets.files import (
    AmbiguousFileError,
    BrokenFileError,
    MissingFileError,
    UnfitOptionError,
    option_advice,
)
from jaxgraph.datasets.node_columns import Coded, coded, encoded
from jaxgraph.datasets.node_ids import polars, trimmed
from jaxgraph.datasets.node_text import distinct_names, read_text

_IDS = ("id", "node", "node_id", "nodeid")
_LABELS = ("label", "labels", "class", "y")
_SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
# Up to here every whole number has a float of its own.
_LARGEST_WHOLE = 2**53
_Place = Callable[[int], str]


def read_node_table(
    path: Path, label_column: str | None, missing: str | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads arguments of ``Graph.from_edges``, ids as `node_names`, and facts of the report."""
    table, place = _table(path)
    id_column = _named(table, _IDS, "the id of each node")
    if id_column is None:
        raise BrokenFileError(
            f"the columns are {_shown(table)}; expected one named 'id' that holds the ids of the "
            "edges, and a first line with the names of columns separated by commas"
        )
    if label_column is not None and label_column not in table.columns:
        raise UnfitOptionError(
            f"label_column: got {label_column!r}; expected one of {_shown(table)}."
        )
    label_column = label_column or _named(table, _LABELS, "labels")
    split_column = _named(table, ("split",), "the split")
    found: dict[str, Any] = {"node_names": _ids(table[id_column], place)}
    facts: dict[str, Any] = {}
    if label_column is not None:
        found["labels"], facts["classes"] = _labels(table[label_column], place)
    if split_column is not None:
        found |= _masks(table[split_column], place)
    used = {id_column, label_column, split_column}
    columns = [(name, _values(table[name])) for name in table.columns if name not in used]
    if columns:
        try:
            found["nodes"], facts["node_columns"] = encoded(columns, "one-hot", missing, place)
        except ValueError as error:
            raise BrokenFileError(str(error)) from error
    return found, facts


def _table(path: Path) -> tuple[Any, _Place]:
    """The rows of a text with a header, or of a Parquet file, and their places."""
    if not path.is_file():
        raise MissingFileError(
            f"node_data: {path} is no file; expected a table of nodes (.csv, .tsv, .parquet). A "
            "folder of arrays is for jaxgraph partition --process-memory."
        )
    if path.suffix == ".parquet":
        table, place = polars().read_parquet(path), "row {}".format
        table.columns = distinct_names(table.columns)
    else:
        table, place = read_text(path, _IDS)
    if not len(table):
        raise BrokenFileError("holds no row; expected one for each node")
    for name, kind in table.schema.items():
        if kind.is_nested():
            raise not_flat(f"column {name!r} holds {kind}", name)
    return table, place


def _named(table: Any, names: tuple[str, ...], content: str) -> str | None:
    """The only column with one of some names, or None."""
    found = [name for name in table.columns if trimmed(name).casefold() in names]
    if len(found) > 1:
        way_out = option_advice("label_column=NAME") if names == _LABELS else "rename the others"
        shown = " and ".join(map(repr, found))
        raise AmbiguousFileError(f"the columns {shown} may all hold {content}; {way_out}.")
    return found[0] if found else None


def _shown(table: Any) -> str:
    return ", ".join(map(repr, table.columns))


def _ids(series: Any, place: _Place) -> np.ndarray:
    """Whole numbers or trimmed texts, as the reader of edges tells them, all different."""
    try:
        found = ids_of(series, place)
    except NotWholeError:
        found = ids_of(series, place, as_texts=True)
    ids = polars().Series(found)
    again = ~ids.is_first_distinct()
    if again.any():
        row = int(again.arg_max())
        raise BrokenFileError(
            f"{place(row)}: the id {ids[row]!r} is in several rows; expected each id once"
        )
    return np.asarray(ids.to_list())


def _labels(series: Any, place: _Place) -> tuple[np.ndarray, tuple[str, ...]]:
    """Classes that are numbers as they are, others in sorted order; -1 where nothing is."""
    if not series.dtype.is_numeric():
        return coded(series)
    pl = polars()
    # pandas writes whole numbers as floats where one is missing.
    numbers = series.cast(pl.Float64).fill_nan(None)
    is_class = (numbers == numbers.round()) & (numbers.abs() < _LARGEST_WHOLE)
    if not is_class.all():
        row = int((~is_class).fill_null(False).arg_max())
        raise BrokenFileError(
            f"{place(row)}: column {series.name!r} holds {series[row]}; expected classes, which "
            "are whole numbers from 0 or texts, or nothing. Targets of a regression are no labels: "
            "leave the column out, and give them by graph.with_nodes(target=...)"
        )
    return numbers.cast(pl.Int64).fill_null(-1).to_numpy(), ()


def _masks(series: Any, place: _Place) -> dict[str, np.ndarray]:
    """The masks of the splits that occur."""
    found = coded(series)
    splits = [_SPLITS.get(trimmed(name).casefold()) for name in found.names]
    if None in splits:
        wrong = splits.index(None)
        raise BrokenFileError(
            f"{place(int(np.argmax(found.codes == wrong)))}: column {series.name!r} holds "
            f"{found.names[wrong]!r}; expected train, val or test, or nothing"
        )
    of_node = np.array([*splits, None], object)[found.codes]
    return {f"{name}_mask": of_node == name for name in splits}


def _values(series: Any) -> np.ndarray | Coded:
    """A column of numbers, NaN where nothing is, or of categories."""
    if not series.count():
        return np.full(len(series), np.nan)
    if series.dtype.is_numeric():
        return series.cast(polars().Float64).fill_null(np.nan).to_numpy()
    return coded(series)
