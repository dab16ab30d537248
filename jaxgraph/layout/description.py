"""The manifest of a counted graph: the shape of every array of a part, before any is made."""

from __future__ import annotations

from collections.abc import Sequence

from jaxgraph.layout.extents import Extents
from jaxgraph.layout.halo import SMALLEST_UNIT, choose_unit, in_units
from jaxgraph.layout.manifest import FeatureSizes, Manifest, SenderTable, Shapes
from jaxgraph.layout.schema import EDGES, IDS, REPETITION, ROWS, Kinds, Sizes

FEWEST_ROWS = 16
"""The least number of rows of a part, and of a chunk of its rows."""


def choose_halo_unit(graphs: Sequence[Extents]) -> int:
    """Chooses the unit of messages for graphs that are to have the same shapes."""
    if graphs[0].mode == "domain":
        # All messages have the same size: a larger unit would gain nothing.
        return SMALLEST_UNIT
    return min(choose_unit(found.halo) for found in graphs)


def describe(
    extents: Extents,
    unit: int,
    chunks: int = 1,
    fewest_rows: int = FEWEST_ROWS,
    features: FeatureSizes | None = None,
) -> Manifest:
    """The manifest of a graph, with the shapes that its parts need."""
    least = max(int(extents.part_nodes.max()), fewest_rows * chunks)
    node_rows = -(-least // chunks) * chunks
    manifest = Manifest(
        mode=extents.mode,
        num_parts=extents.num_parts,
        num_classes=extents.num_classes,
        multilabel=extents.multilabel,
        node_rows=node_rows,
        boundary_rows=extents.boundary,
        halo_unit=unit,
        halo_units=tuple(map(tuple, in_units(extents.halo, unit).tolist())),
        reach_units=tuple(map(tuple, in_units(extents.reach, unit).tolist())),
        shapes=(),
        lengths=() if extents.lengths is None else (extents.lengths,),
        has_padding=bool(extents.part_nodes.min() < node_rows),
        features=features,
        num_edge_types=extents.num_edge_types,
        senders=_senders(extents, fewest_rows),
        counts=extents.counts,
    )
    return manifest.listing(sized(manifest, _sizes(extents, manifest), extents.data))


def _senders(extents: Extents, fewest_rows: int) -> SenderTable | None:
    senders = extents.part_senders
    if senders is None:
        return None
    return SenderTable(max(int(senders.max()), fewest_rows), extents.boundary_of_senders)


def sized(manifest: Manifest, sizes: Sizes, data: Kinds) -> Shapes:
    """The shapes of the arrays whose sizes are known, and of this data."""
    shapes: Shapes = {}
    for name, field in manifest.schema(data).items():
        size = sizes.get((field.owner, field.axis), field.count)
        row, dtype = data.get(name, ((), field.dtype))
        dtype = dtype if field.dtype is None else field.dtype
        if size is not None and dtype is not None and (name in data or not field.is_data):
            shapes[name] = field.shape(size, row), dtype
    return shapes


def _sizes(extents: Extents, manifest: Manifest) -> Sizes:
    """The sizes of the edges and halos of the largest part."""
    halo, reach, senders = extents.halo, extents.reach, extents.part_senders
    senders = extents.part_nodes if senders is None else senders
    sizes: Sizes = {
        ("incoming", IDS): int((senders + halo.sum(axis=1)).max()),
        # Arrays that a loop indexes need an entry, even where the loop makes no pass.
        ("outgoing", IDS): max(int(reach.sum(axis=0).max()), 1),
        ("send", ROWS): int(halo.sum(axis=0).max()),
        ("reach", ROWS): int(reach.sum(axis=1).max()),
    }
    for name, edges in manifest.edge_sets.items():
        counts = edges.sizes(int(extents.part_edges.max()) if name == "incoming" else None)
        sizes |= counts
        if extents.has_repetitions and edges.other_end is not None:
            sizes[name, REPETITION] = max(counts[name, EDGES], 1)
    return sizes
