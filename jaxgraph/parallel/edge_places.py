"""Where each edge by receiver stands by sender, for CPU kernels, found when a part is placed.

What the gradient of attention hands from senders to receivers is written in the order of the
senders and looked up: a number that is written out of order brings a line of the cache in and out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

__all__ = ["place_arrays", "place_shapes"]

Shapes = Mapping[str, tuple[tuple[int, ...], np.dtype]]

_SLOTS = "/by_sender/edge_ids"


def place_shapes(shapes: Shapes) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shapes and types of the arrays that `place_arrays` makes.

    Args:
      shapes: of the arrays of a part, by name.

    Returns:
      The same for the new arrays.
    """
    return {
        f"{name}/by_receiver/places": shapes[f"{name}/by_receiver/neighbors"]
        for name in _names(shapes)
    }


def place_arrays(part: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The places of the edges of all groups by sender, by their slots by receiver.

    Args:
      part: the arrays of a part, [1, ...] each, in their padded shapes.

    Returns:
      `places` of `jaxgraph.ops.edges.Orientation`, [1, slots], 0 behind the edges.
    """
    found: dict[str, np.ndarray] = {}
    for name in _names(part):
        by_sender = f"{name}/by_sender"
        rows = part[f"{by_sender}/compressed_ptr"][0, -1]
        edges = part[f"{by_sender}/compressed_starts"][0, rows]
        places = np.zeros_like(part[f"{name}/by_receiver/neighbors"])
        places[0, part[f"{name}{_SLOTS}"][0, :edges]] = np.arange(edges, dtype=places.dtype)
        found[f"{name}/by_receiver/places"] = places
    return found


def _names(arrays: Iterable[str]) -> list[str]:
    """What the names of the edges start with; those on feature columns have no attention."""
    names = [name.removesuffix(_SLOTS) for name in arrays if name.endswith(_SLOTS)]
    return [name for name in names if name != "columns"]
