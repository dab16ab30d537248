"""The arrays of a part on a device: those that a source lists, and those derived from them."""

from __future__ import annotations

import math

import numpy as np

from jaxgraph.layout.derived import row_splits, rows
from jaxgraph.layout.derived.orientations import fill
from jaxgraph.layout.index_check import check_indices, part_error
from jaxgraph.layout.index_range import check_sizes
from jaxgraph.layout.manifest import Arrays, Manifest, Shapes
from jaxgraph.layout.shard_tables import PartSource
from jaxgraph.layout.typed_manifest import TypedManifest

DERIVED = {"xla": (rows,), "cpu": (rows,), "mosaic_gpu": (rows, row_splits)}
"""The layouts of each implementation; all need `rows` for a user's own messages."""


def placed_shapes(manifest: Manifest | TypedManifest, implementation: str) -> Shapes:
    """Finds the shapes of all arrays of a part; they depend on the manifest alone."""
    found: Shapes = {}
    for prefix, member in manifest.members.items():
        shapes = dict(member.array_shapes())
        for layout in DERIVED[implementation]:
            shapes |= layout.shapes(shapes, member.edge_sets.values())
        found |= {prefix + name: shape for name, shape in shapes.items()}
    check_sizes({name: max(shape, default=0) for name, (shape, _) in found.items()})
    return found


def placed_part(
    source: PartSource, manifest: Manifest | TypedManifest, index: int, implementation: str
) -> Arrays:
    """Reads a part, checks it, and derives the other arrays that an implementation needs."""
    given, found = dict(source.part(index)), dict[str, np.ndarray]()
    for prefix, member in manifest.members.items():
        own = {name: given.pop(name) for name in list(given) if name.startswith(prefix)}
        own = {name.removeprefix(prefix): values for name, values in own.items()}
        shapes = placed_shapes(member, implementation)
        part = _listed(own, member, index, shapes)
        check_indices(part, member, index)
        arrays = dict(part)
        for layout in DERIVED[implementation]:
            arrays |= layout.arrays(part, shapes, member.edge_sets.values())
        found |= {prefix + name: values for name, values in arrays.items()}
    return found


def listed_part(source: PartSource, manifest: Manifest, index: int, shapes: Shapes) -> Arrays:
    """Reads the arrays of a part that its manifest lists."""
    return _listed(dict(source.part(index)), manifest, index, shapes)


def _listed(part: Arrays, manifest: Manifest, index: int, shapes: Shapes) -> Arrays:
    listed, fields = manifest.array_shapes(), manifest.fields
    found: Arrays = {}
    # An array is let go once it is copied, since mapped pages take memory, too; the largest comes
    # first, when there is least beside it.
    for name in sorted(listed, key=lambda name: -math.prod(listed[name][0])):
        shape, dtype = listed[name]
        if name not in part:
            raise part_error(f"part {index} lacks {name}, which its manifest lists")
        is_mapped, values = isinstance(part[name], np.memmap), np.asarray(part.pop(name))
        fits = len(values.shape) == len(shape) and all(map(int.__le__, values.shape, shape))
        if not fits or not np.can_cast(values.dtype, dtype, "same_kind"):
            raise part_error(
                f"part {index}: {name} is {values.dtype} {list(values.shape)}; expected the "
                f"manifest's {dtype}, at most {list(shape)}"
            )
        # A file may change after its indices are checked: devices never read it.
        found[name] = fill(name, values, *shapes[name], fields[name].fill, copy=is_mapped)
    return {name: found[name] for name in listed}
