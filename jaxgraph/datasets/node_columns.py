"""Columns of a table of nodes as features: numbers, and categories as codes or as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from jaxgraph.byte_amounts import refuse_beyond_memory
from jaxgraph.datasets.node_ids import polars

_MOST_CATEGORIES = 1000
"""Each is a feature: a column with more holds names or numbers."""
_CHOICES = {"categories": ("codes", "one-hot"), "missing": ("mean", "zero")}


class Coded(NamedTuple):
    """A column of categories.

    Args:
        codes: int [rows], -1 where nothing is.
        names: the text of each category.
    """

    codes: np.ndarray
    names: tuple[str, ...]


def coded(series: Any) -> Coded:
    """The texts of a series of Polars as categories in sorted order."""
    pl = polars()
    texts = series.cast(pl.String)
    names = texts.drop_nulls().unique().sort()
    codes = texts.cast(pl.Enum(names)).to_physical().cast(pl.Int64).fill_null(-1)
    return Coded(codes.to_numpy(), tuple(names.to_list()))


def check_choices(**choices: Any) -> None:
    """Raises ValueError where one of `categories` and `missing` has a wrong value."""
    for name, value in choices.items():
        if value is not None and value not in _CHOICES[name]:
            known = ", ".join(map(repr, _CHOICES[name]))
            raise ValueError(f"{name}: got {value!r}; expected one of {known}, or None.")


def encoded(
    columns: Iterable[tuple[str, np.ndarray | Coded]],
    categories: str,
    missing: str | None,
    place: Callable[[int], str] = "row {}".format,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The features of all columns, float32 [rows, features], and their names."""
    blocks, names = [], []
    for name, column in columns:
        is_gap = column.codes < 0 if isinstance(column, Coded) else np.isnan(column)
        if missing is None and is_gap.any():
            raise ValueError(
                f"column {name!r} lacks {int(is_gap.sum()):,} of {is_gap.size:,} values, the first "
                f"in {place(int(is_gap.argmax()))}; pass missing='mean' or missing='zero' (on the "
                "command line --option missing=mean): a missing number is then the mean of its "
                "column, or 0, and a missing category one of its own"
            )
        if not isinstance(column, Coded):
            own, values = (name,), np.where(is_gap, _filling(name, column, missing), column)
        else:
            of_all = (*column.names, "missing") if is_gap.any() else column.names
            codes = np.where(is_gap, len(column.names), column.codes)
            own, values = (name,), codes
            if categories == "one-hot":
                _check_number(name, len(of_all), codes.size)
                own = tuple(f"{name}={category}" for category in of_all)
                values = codes[:, None] == np.arange(len(of_all))
        # `Graph` refuses numbers that are infinite in float32.
        with np.errstate(over="ignore"):
            blocks.append(values.reshape(len(is_gap), -1).astype(np.float32))
        names += own
    return np.concatenate(blocks, axis=1), tuple(names)


def _filling(name: str, column: np.ndarray, missing: str | None) -> float:
    """The number that stands for one that is missing."""
    present = column[~np.isnan(column)]
    if missing == "mean" and not present.size:
        raise ValueError(f"column {name!r} has no value, and no mean; leave it out")
    return float(present.mean()) if missing == "mean" else 0.0


def _check_number(name: str, count: int, rows: int) -> None:
    """Refuses a column of so many categories, each of which would be a feature."""
    if count > _MOST_CATEGORIES:
        raise ValueError(
            f"column {name!r} has {count:,} categories, and each would be a feature; expected at "
            f"most {_MOST_CATEGORIES:,}. Leave it out, or make it numbers"
        )
    refuse_beyond_memory(f"column {name!r} as {count} features", 4 * rows * count)
