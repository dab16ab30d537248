"""The lanes of a graph on one device, made on the host when it is placed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxgraph.ops.lanes import Lanes, LaneTable
from jaxgraph.partition.manifest import Manifest

__all__ = ["lane_arrays", "lane_shapes", "lanes_at"]

_ENDS = ("receiver", "sender")
_FIELDS = ("rows", "starts", "lengths", "neighbors")


def lane_shapes(manifest: Manifest) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shapes and types of the arrays that `lane_arrays` makes.

    Args:
      manifest: of a graph in one part.

    Returns:
      The shapes by name.
    """
    found: dict[str, tuple[int, ...]] = {}
    for end in _ENDS:
        prefix = f"incoming/by_{end}/lanes"
        runs, heavy = (getattr(manifest, f"{end}_{name}") for name in ("runs", "heavy"))
        for table, rows in (("rows", manifest.node_rows), ("runs", runs)):
            found |= {f"{prefix}/{table}/{name}": (rows,) for name in _FIELDS[:-1]}
            found[f"{prefix}/{table}/neighbors"] = (manifest.longest, rows)
        found |= {f"{prefix}/{name}": (heavy,) for name in ("firsts", "counts")}
        found[f"{prefix}/heavy"] = (manifest.node_rows,)
    return {name: (shape, np.dtype(np.int32)) for name, shape in found.items()}


def lane_arrays(part: Mapping[str, np.ndarray], manifest: Manifest) -> dict[str, np.ndarray]:
    """The arrays of `jaxgraph.ops.lanes.Lanes` in both orientations.

    Args:
      part: the arrays of the only part, [1, ...] each, in their padded shapes.
      manifest: of the graph.

    Returns:
      Arrays [1, ...] by name.
    """
    found: dict[str, np.ndarray] = {}
    for end in _ENDS:
        prefix = f"incoming/by_{end}/"
        tables = {
            name.removeprefix(prefix): x[0] for name, x in part.items() if name.startswith(prefix)
        }
        sizes = (getattr(manifest, f"{end}_{name}") for name in ("runs", "heavy"))
        lanes = _lanes(tables, manifest.longest, *sizes)
        found |= {f"{prefix}lanes/{name}": x.astype(np.int32)[None] for name, x in lanes.items()}
    return found


def _lanes(
    tables: Mapping[str, np.ndarray], lanes: int, num_runs: int, num_heavy: int
) -> dict[str, np.ndarray]:
    """The arrays of one orientation, from those of `jaxgraph.ops.edges.Orientation`."""
    rows, starts, degrees = (tables[name] for name in ("rows", "starts", "degrees"))
    position, heavy = tables["position"], int(tables["heavy_rows"][0])
    has, is_heavy = position >= 0, (position >= 0) & (position < heavy)
    # A row, or of a heavy row the first of its runs, which has as many edges as there are lanes.
    first = np.where(is_heavy, starts[position], position)
    own = np.where(has, np.arange(len(position)), rows[0])
    firsts, lengths = (np.where(has, values[first], 0) for values in (starts, degrees))
    found = _table("rows", own, firsts, lengths, tables, lanes)
    behind = np.arange(tables["compressed_ptr"][1], tables["run_ptr"][1])
    runs = _padded(np.setdiff1d(behind, starts[:heavy], assume_unique=True), num_runs, -1)
    own = np.where(runs >= 0, rows[runs], rows[0])
    firsts, lengths = (np.where(runs >= 0, values[runs], 0) for values in (starts, degrees))
    found |= _table("runs", own, firsts, lengths, tables, lanes)
    counts = degrees[:heavy] - 1
    return found | {
        "heavy": np.where(is_heavy, position, -1),
        "firsts": _padded(np.cumsum(counts) - counts, num_heavy, 0),
        "counts": _padded(counts, num_heavy, 0),
    }


def _padded(values: np.ndarray, size: int, fill: int) -> np.ndarray:
    return np.append(values, np.full(size - len(values), fill, values.dtype))


def _table(
    name: str,
    rows: np.ndarray,
    starts: np.ndarray,
    lengths: np.ndarray,
    tables: Mapping[str, np.ndarray],
    lanes: int,
) -> dict[str, np.ndarray]:
    last = np.maximum(lengths - 1, 0)
    neighbors = np.empty((lanes, len(rows)), np.int32)
    for lane in range(lanes):
        neighbors[lane] = tables["neighbors"][starts + np.minimum(lane, last)]
    values = (rows, starts, lengths, neighbors)
    return {f"{name}/{field}": x for field, x in zip(_FIELDS, values, strict=True)}


def lanes_at(arrays: Mapping[str, Any], prefix: str) -> Lanes | None:
    """The lanes whose arrays have names that start with a prefix, or None."""
    if f"{prefix}/lanes/heavy" not in arrays:
        return None

    def table(name: str) -> LaneTable:
        return LaneTable(*(arrays[f"{prefix}/lanes/{name}/{field}"] for field in _FIELDS))

    some = (arrays[f"{prefix}/lanes/{name}"] for name in ("heavy", "firsts", "counts"))
    return Lanes(table("rows"), table("runs"), *some)
