"""Non-zeros of sparse features column by column, and the row and column of each.

A device sums over the non-zeros of each row, and for the gradient over those of each column. Values
are stored in both orders: a permutation at run time takes as long as the sum itself.
"""

from __future__ import annotations

import numpy as np

from jaxgraph.layout.derived.orientations import fill
from jaxgraph.layout.manifest import FEATURES, VALUES, Arrays, Manifest, Shapes
from jaxgraph.partition.sorting import counting_argsort

_BY_ROW, _BY_COLUMN = f"{FEATURES}/by_receiver", f"{FEATURES}/by_sender"


def shapes(listed: Shapes, manifest: Manifest) -> Shapes:
    """Shapes and dtypes of the arrays that `arrays` makes, and of the values."""
    if manifest.features is None:
        return {}
    slots, integer = listed[f"{_BY_ROW}/neighbors"][0], np.dtype(np.int32)
    found: Shapes = {VALUES: (slots, listed[VALUES][1])}
    found[f"{_BY_COLUMN}/values"] = found[VALUES]
    return found | {f"{_BY_ROW}/ends": (slots, integer), f"{_BY_COLUMN}/ends": (slots, integer)}


def arrays(part: Arrays, placed: Shapes, manifest: Manifest) -> Arrays:
    """Orders the values by column, and finds the row and the column of every slot."""
    if manifest.features is None:
        return {}
    found: Arrays = {}
    for prefix in (_BY_ROW, _BY_COLUMN):
        starts = part[f"{prefix}/compressed_starts"]
        count = part[f"{prefix}/compressed_ptr"][-1]
        rows = part[f"{prefix}/compressed_rows"][:count]
        found[f"{prefix}/ends"] = np.repeat(rows, np.diff(starts[: count + 1]))
    columns = part[f"{_BY_ROW}/neighbors"][: len(found[f"{_BY_ROW}/ends"])]
    order = counting_argsort(columns, manifest.features.num_columns)
    found[f"{_BY_COLUMN}/values"] = part[VALUES][order]
    return {name: fill(name, values, *placed[name]) for name, values in found.items()}
