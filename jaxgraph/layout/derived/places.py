"""Where each edge by receiver is stored by sender, for CPU kernels.

The gradient of attention goes from senders to receivers: it is written in the order of the senders
and looked up by receiver, since a number that is written out of order brings a line of the cache in
and out. Only edges that end in a part are attended to: those that leave it, and those on feature
columns, need no places.
"""

from __future__ import annotations

import numpy as np

from jaxgraph.layout.manifest import Arrays, Manifest, Shapes

__all__ = ["arrays", "shapes"]

_PLACES = "incoming/by_receiver/places"
_SLOTS = "incoming/by_receiver/neighbors"
"""As long as `_PLACES`."""


def shapes(listed: Shapes, manifest: Manifest) -> Shapes:
    """Shape and type of the array that `arrays` makes.

    Args:
      listed: shapes of the arrays that devices hold anyway.
      manifest: of the graph.

    Returns:
      The same for the new array.
    """
    return {_PLACES: listed[_SLOTS]}


def arrays(part: Arrays, placed: Shapes, manifest: Manifest) -> Arrays:
    """Finds the place of the edges of all groups by sender, by their slots by receiver.

    Args:
      part: the arrays of a part that the manifest lists, in the shapes that devices hold.
      placed: these shapes, and that of the new array.
      manifest: of the graph.

    Returns:
      `places` of `jaxgraph.ops.core.edges.Orientation`, [slots], 0 after the edges.
    """
    pointers, starts, slots = (
        part[f"incoming/by_sender/{name}"]
        for name in ("compressed_ptr", "compressed_starts", "edge_ids")
    )
    edges = int(starts[pointers[-1]])
    places = np.zeros(*placed[_PLACES])
    places[slots[:edges]] = np.arange(edges, dtype=places.dtype)
    return {_PLACES: places}
