"""Where each edge by receiver stands by sender, for CPU kernels, found when a part is placed.

What the gradient of attention hands from senders to receivers is written in the order of the
senders and looked up: a number that is written out of order brings a line of the cache in and out.
Only edges that end in a part are attended to: those that leave it, and those on feature columns,
have no places.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

__all__ = ["place_arrays", "place_shapes"]

_PLACES = "incoming/by_receiver/places"
_SLOTS = "incoming/by_receiver/neighbors"
"""As long as `_PLACES`."""


def place_shapes(
    shapes: Mapping[str, tuple[tuple[int, ...], np.dtype]],
) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and type of the array that `place_arrays` makes.

    Args:
      shapes: of the arrays of a part, by name.

    Returns:
      The same for the new array.
    """
    return {_PLACES: shapes[_SLOTS]}


def place_arrays(part: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The places of the edges of all groups by sender, by their slots by receiver.

    Args:
      part: the arrays of a part, [1, ...] each, in their padded shapes.

    Returns:
      `places` of `jaxgraph.ops.core.edges.Orientation`, [1, slots], 0 behind the edges.
    """
    pointers, starts, slots = (
        part[f"incoming/by_sender/{name}"][0]
        for name in ("compressed_ptr", "compressed_starts", "edge_ids")
    )
    edges = starts[pointers[-1]]
    places = np.zeros_like(part[_SLOTS])
    places[0, slots[:edges]] = np.arange(edges, dtype=places.dtype)
    return {_PLACES: places}
