"""The arrays of edges that a device holds, those included that only some implementations need."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxgraph.layout.manifest import Manifest
from jaxgraph.ops.core.edges import Orientation
from jaxgraph.parallel.cut_rows import cut_arrays, cut_rows_at, cut_shapes
from jaxgraph.parallel.edge_places import place_arrays, place_shapes
from jaxgraph.parallel.lane_placement import lane_arrays, lane_shapes, lanes_at

__all__ = ["derived_arrays", "orientation", "shapes_of_part"]


def shapes_of_part(
    manifest: Manifest, implementation: str
) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shapes and types of all arrays of a part, those of `derived_arrays` included.

    Args:
      manifest: what a source lists.
      implementation: which kernels reduce over the edges.

    Returns:
      The shapes by name.
    """
    shapes = dict(manifest.array_shapes())
    if implementation == "xla" and manifest.lanes:
        return shapes | lane_shapes(manifest)
    if implementation == "cpu":
        return shapes | place_shapes(shapes)
    if implementation != "mosaic_gpu":
        return shapes
    if manifest.columns is None:
        return shapes | cut_shapes(shapes, manifest.longest_row)
    chunks = manifest.columns.chunks
    of_piece = {name: (shape[1:], dtype) for name, (shape, dtype) in _of_pieces(shapes).items()}
    cut = cut_shapes(of_piece, manifest.longest_row)
    by_piece = {name: ((chunks, *shape), dtype) for name, (shape, dtype) in cut.items()}
    return shapes | cut_shapes(_without_pieces(shapes), manifest.longest_row) | by_piece


def _of_pieces(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays of edges with a leading axis of pieces."""
    return {name: array for name, array in arrays.items() if name.startswith("columns/by_")}


def _without_pieces(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: array for name, array in arrays.items() if not name.startswith("columns/by_")}


def derived_arrays(
    part: Mapping[str, np.ndarray], manifest: Manifest, implementation: str
) -> dict[str, np.ndarray]:
    """What an implementation needs of the edges of a part beside the arrays that a source lists.

    Args:
      part: the arrays of a part, [1, ...] each, in their padded shapes.
      manifest: what the source lists.
      implementation: which kernels reduce over the edges.

    Returns:
      Arrays [1, ...] by name.
    """
    if implementation == "xla" and manifest.lanes:
        return lane_arrays(part, manifest)
    if implementation == "cpu":
        return place_arrays(part)
    return _cut_arrays(part, manifest) if implementation == "mosaic_gpu" else {}


def _cut_arrays(part: Mapping[str, np.ndarray], manifest: Manifest) -> dict[str, np.ndarray]:
    """`cut_arrays` of a part, [1, ...], and of each of its pieces, [1, pieces, ...]."""
    found = cut_arrays(_without_pieces(part), manifest.longest_row)
    pieces = _of_pieces(part)
    if not pieces:
        return found
    count = next(iter(pieces.values())).shape[1]
    cut = [
        cut_arrays({name: x[:, i] for name, x in pieces.items()}, manifest.longest_row)
        for i in range(count)
    ]
    return found | {name: np.stack([each[name] for each in cut], axis=1) for name in cut[0]}


def orientation(arrays: Mapping[str, Any], prefix: str, longest: int) -> Orientation:
    """The orientation whose arrays have names that start with a prefix.

    Args:
      arrays: by name.
      prefix: what the names start with.
      longest: edges of a row at most.

    Returns:
      The orientation.
    """
    optional = {"edge_ids", "places", "cut", "lanes"}
    names = {field.name for field in dataclasses.fields(Orientation)} - optional
    tables = {name: arrays[f"{prefix}/{name}"] for name in names}
    return Orientation(
        **tables,
        edge_ids=arrays.get(f"{prefix}/edge_ids"),
        places=arrays.get(f"{prefix}/places"),
        cut=cut_rows_at(arrays, prefix, longest),
        lanes=lanes_at(arrays, prefix),
    )
