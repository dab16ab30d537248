"""Every orientation of the edges of a part, one by one; edges on columns chunk of rows by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from jaxgraph.layout.index_check import part_error
from jaxgraph.layout.manifest import Arrays, Shapes, fill_value

__all__ = ["by_orientation", "fill", "orientations", "tables_of"]

_POINTERS = "/compressed_ptr"


def orientations(names: Iterable[str]) -> list[str]:
    """Lists what the names of each orientation start with, such as "incoming/by_receiver"."""
    return [name.removesuffix(_POINTERS) for name in names if name.endswith(_POINTERS)]


def tables_of(part: Arrays, prefix: str) -> Arrays:
    """The arrays of an orientation, by the rest of their names."""
    start = f"{prefix}/"
    return {name.removeprefix(start): x for name, x in part.items() if name.startswith(start)}


def by_orientation(part: Arrays, placed: Shapes, make: Callable[[str, Arrays], Arrays]) -> Arrays:
    """Makes arrays for every orientation of a part.

    Args:
      part: the arrays of the part.
      placed: shapes and types of the new arrays, by name.
      make: `(prefix, tables) -> arrays`, from the arrays of one orientation by the rest of their
        names the new ones by name, not padded. Edges on columns come in a table for each chunk of
        rows, for which it is called one by one.

    Returns:
      The new arrays, padded.

    Raises:
      ValueError: an array has more entries than its shape has room for.
    """
    found: Arrays = {}
    for prefix in orientations(part):
        tables = tables_of(part, prefix)
        if not prefix.startswith("columns/"):
            for name, values in make(prefix, tables).items():
                found[name] = fill(name, values, *placed[name])
            continue
        pieces: dict[str, list[np.ndarray]] = {}
        for chunk in range(len(tables["compressed_ptr"])):
            made = make(prefix, {field: x[chunk] for field, x in tables.items()})
            for name, values in made.items():
                shape, dtype = placed[name]
                pieces.setdefault(name, []).append(fill(name, values, shape[1:], dtype))
        found |= {name: np.stack(each) for name, each in pieces.items()}
    return found


def fill(name: str, values: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Brings an array to its shape and type, padded with what means "none".

    Args:
      name: of the array.
      values: what it holds.
      shape: its shape, in which the values are the first ones.
      dtype: its type.

    Returns:
      The padded array, or the values themselves where nothing is to be done.

    Raises:
      ValueError: there are more values than the shape has room for.
    """
    if any(a > b for a, b in zip(values.shape, shape, strict=True)):
        raise part_error(
            f"{name} has shape {list(values.shape)}; expected at most {list(shape)}, which is what "
            "the manifest's row lengths come to"
        )
    if values.shape == shape:
        return np.asarray(values, dtype)
    padded = np.empty(shape, dtype)
    # Most arrays are shorter than their shape and otherwise like it: only the end is filled.
    start = len(values) if values.shape[1:] == shape[1:] else 0
    padded[start:] = fill_value(name, len(shape))
    padded[tuple(slice(0, size) for size in values.shape)] = values
    return padded
