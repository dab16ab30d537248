"""Tables of nodes beside a list of edges: an id in each row, features, a label and a split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from jaxgraph.datasets.files import (
    AmbiguousFileError,
    BrokenFileError,
    MissingFileError,
    UnfitOptionError,
    option_advice,
    reading,
)
from jaxgraph.datasets.limits import opened
from jaxgraph.datasets.node_columns import Coded, check_choices, coded, encoded
from jaxgraph.datasets.node_ids import BLANK, polars, trimmed

_IDS = ("id", "node", "node_id", "nodeid")
_LABELS = ("label", "labels", "class", "y")
_SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
_NOTHING = ["", "NA", "NaN", "nan"]
_SEPARATORS = ",;\t|"


def read_node_table(
    path: Path, label_column: str | None, missing: str | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads arguments of ``Graph.from_edges``, ids as `node_names`, and facts of the report."""
    check_choices(missing=missing)
    table = _table(path)
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
    found: dict[str, Any] = {"node_names": _ids(table[id_column])}
    facts: dict[str, Any] = {}
    if label_column is not None:
        found["labels"], facts["classes"] = _labels(table[label_column])
    if split_column is not None:
        found |= _masks(table[split_column])
    used = {id_column, label_column, split_column}
    columns = [(name, _values(table[name])) for name in table.columns if name not in used]
    if columns:
        try:
            found["nodes"], facts["node_columns"] = encoded(columns, "one-hot", missing)
        except ValueError as error:
            raise BrokenFileError(str(error)) from error
    return found, facts


def _table(path: Path) -> Any:
    """The rows of a text with a header, or of a Parquet file."""
    pl = polars()
    if not path.is_file():
        raise MissingFileError(
            f"node_data: {path} is no file; expected a table of nodes (.csv, .tsv, .parquet). A "
            "folder of arrays is for jaxgraph partition --process-memory."
        )
    with reading(path, "a table of nodes"):
        if path.suffix == ".parquet":
            table = pl.read_parquet(path)
        else:
            with opened(path) as stream:
                text = stream.read()
            header = text.partition(b"\n")[0].decode(errors="replace")
            table = pl.read_csv(
                text,
                separator=max(_SEPARATORS, key=header.count),
                infer_schema_length=None,
                null_values=_NOTHING,
            )
    if not len(table):
        raise BrokenFileError("holds no row; expected one for each node")
    return table


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


def _ids(series: Any) -> np.ndarray:
    """Whole numbers or trimmed texts, all different."""
    pl = polars()
    if not series.dtype.is_integer():
        if series.dtype != pl.String:
            raise BrokenFileError(
                f"column {series.name!r} holds {series.dtype}; expected whole numbers or names"
            )
        series = series.str.strip_chars(BLANK)
    if series.null_count():
        raise BrokenFileError(f"row {int(series.is_null().arg_max())}: has an empty id")
    again = series.is_duplicated()
    if again.any():
        twice = series[int(again.arg_max())]
        raise BrokenFileError(f"the id {twice!r} is in several rows; expected each id once")
    ids = series.to_list()
    return np.asarray(ids, np.int64 if series.dtype.is_integer() else None)


def _labels(series: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    """Classes that are numbers as they are, others in sorted order; -1 where nothing is."""
    if series.dtype.is_float():
        series = series.fill_nan(None)
        # pandas writes whole numbers as floats where one is missing.
        if (series == series.round()).all():
            series = series.cast(polars().Int64)
    return (series.fill_null(-1).to_numpy(), ()) if series.dtype.is_numeric() else coded(series)


def _masks(series: Any) -> dict[str, np.ndarray]:
    """The masks of the splits that occur."""
    found = coded(series)
    splits = [_SPLITS.get(trimmed(name).casefold()) for name in found.names]
    if None in splits:
        wrong = found.names[splits.index(None)]
        raise BrokenFileError(
            f"column {series.name!r} holds {wrong!r}; expected train, val or test, or nothing"
        )
    of_node = np.array([*splits, None], object)[found.codes]
    return {f"{name}_mask": of_node == name for name in splits}


def _values(series: Any) -> np.ndarray | Coded:
    """A column of numbers, NaN where nothing is, or of categories."""
    pl = polars()
    if series.dtype.is_nested():
        raise BrokenFileError(
            f"column {series.name!r} holds {series.dtype}; expected one value in each row"
        )
    if series.dtype.is_numeric():
        return series.cast(pl.Float64).fill_null(np.nan).to_numpy()
    return coded(series)
