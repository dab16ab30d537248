"""Iteration over the orientations of a part's edges; those on columns chunk by chunk of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from jaxgraph.layout.index_check import part_error, tables_of
from jaxgraph.layout.manifest import Arrays, Shapes
from jaxgraph.layout.schema import EdgeSet, orientations

_ALIGNMENT = 64
"""Bytes. JAX copies arrays that start elsewhere."""


def by_orientation(
    part: Arrays,
    placed: Shapes,
    sets: Iterable[EdgeSet],
    make: Callable[[EdgeSet, str, Arrays], Arrays],
) -> Arrays:
    """Makes arrays for every orientation of a part, from its tables by their own names."""
    found: Arrays = {}
    for edges, side, _ in orientations(sets):
        lead = 0 if edges.chunks is None else 1
        made: dict[str, list[np.ndarray]] = {}
        for tables in tables_of(part, edges, side):
            for name, values in make(edges, side, tables).items():
                shape, dtype = placed[name]
                made.setdefault(name, []).append(fill(name, values, shape[lead:], dtype))
        found |= {name: np.stack(each) if lead else each[0] for name, each in made.items()}
    return found


def fill(
    name: str,
    values: np.ndarray,
    shape: tuple[int, ...],
    dtype: np.dtype,
    padding: int = 0,
    *,
    copy: bool = False,
) -> np.ndarray:
    """Pads an array to its shape with the value that means "none", and casts it."""
    if any(a > b for a, b in zip(values.shape, shape, strict=True)):
        raise part_error(
            f"{name} has shape {list(values.shape)}; expected at most {list(shape)}, which is what "
            "the manifest's row lengths come to"
        )
    if values.shape == shape and not copy:
        return np.asarray(values, dtype)
    padded = aligned(shape, dtype)
    if values.shape == shape:
        padded[...] = values
        return padded
    # Most arrays are short along the first axis alone: only their end is filled.
    start = len(values) if values.shape[1:] == shape[1:] else 0
    padded[start:] = padding
    padded[tuple(slice(0, size) for size in values.shape)] = values
    return padded


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array without values that starts where a CPU device takes it without a copy."""
    size = math.prod(shape) * dtype.itemsize
    room = np.empty(size + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + size].view(dtype).reshape(shape)
