"""Iteration over the orientations of a part's edges; those on columns chunk by chunk of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from jaxgraph.layout.index_check import part_error
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
    for edges, side, prefix in orientations(sets):
        start = f"{prefix}/"
        tables = {name.removeprefix(start): x for name, x in part.items() if name.startswith(start)}
        if edges.chunks is None:
            for name, values in make(edges, side, tables).items():
                found[name] = fill(name, values, *placed[name])
            continue
        by_chunk: dict[str, list[np.ndarray]] = {}
        for chunk in range(edges.chunks):
            made = make(edges, side, {field: x[chunk] for field, x in tables.items()})
            for name, values in made.items():
                (_, *shape), dtype = placed[name]
                by_chunk.setdefault(name, []).append(fill(name, values, tuple(shape), dtype))
        found |= {name: np.stack(each) for name, each in by_chunk.items()}
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
    padded = _aligned(shape, dtype)
    if values.shape == shape:
        padded[...] = values
        return padded
    # Most arrays are short along the first axis alone: only their end is filled.
    start = len(values) if values.shape[1:] == shape[1:] else 0
    padded[start:] = padding
    padded[tuple(slice(0, size) for size in values.shape)] = values
    return padded


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array without values that starts where a CPU device takes it without a copy."""
    size = math.prod(shape) * dtype.itemsize
    room = np.empty(size + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + size].view(dtype).reshape(shape)
