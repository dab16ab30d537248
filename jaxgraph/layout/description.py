"""The manifest of a surveyed graph: the shape of every array of a part, before any is made."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from jaxgraph.layout.extents import Extents, extents_of
from jaxgraph.layout.feature_tables import FeatureEdges, count_features
from jaxgraph.layout.halo import SMALLEST_UNIT, choose_unit, in_units
from jaxgraph.layout.manifest import FeatureSizes, Manifest, SenderTable
from jaxgraph.layout.node_tables import num_edge_types
from jaxgraph.layout.row_lengths import RowLengths, leaving
from jaxgraph.layout.survey import Survey

Shape = tuple[int, ...]
FEWEST_ROWS = 16
"""The least number of rows of a part, and of a chunk of its rows."""


def choose_halo_unit(graphs: Sequence[Survey | Extents]) -> int:
    """Chooses the unit of messages for graphs that are to have the same shapes."""
    if graphs[0].mode == "domain":
        # All messages have the same size: a larger unit would gain nothing.
        return SMALLEST_UNIT
    return min(choose_unit(found.halo) for found in graphs)


def describe(
    found: Survey | Extents, unit: int, chunks: int | None = None, fewest_rows: int = FEWEST_ROWS
) -> Manifest:
    """The manifest of a partitioned graph, with the shapes that its parts need."""
    extents = extents_of(found) if isinstance(found, Survey) else found
    divisor = 1 if chunks is None else chunks
    least = max(int(extents.part_nodes.max()), fewest_rows * divisor)
    node_rows = -(-least // divisor) * divisor
    manifest = Manifest(
        mode=extents.mode,
        num_parts=extents.num_parts,
        num_classes=extents.num_classes,
        multilabel=extents.multilabel,
        node_rows=node_rows,
        boundary_rows=extents.boundary,
        halo_unit=unit,
        halo_units=_as_tuples(in_units(extents.halo, unit)),
        reach_units=_as_tuples(in_units(extents.reach, unit)),
        shapes=(),
        lengths=(extents.lengths,),
        has_padding=bool(extents.part_nodes.min() < node_rows),
        num_edge_types=num_edge_types(found.graph) if isinstance(found, Survey) else 0,
        counts=extents.counts,
        senders=_senders(extents, fewest_rows),
    )
    listed = [(name, (0, *rest), dtype) for name, rest, dtype in extents.node_data]
    edges = int(extents.part_edges.max())
    listed += [(name, (edges, *rest), dtype) for name, rest, dtype in extents.edge_data]
    listed += [(name, shape, np.dtype(np.int32)) for name, shape in _table_extents(extents)]
    # Sorted by name: manifests of the same arrays compare equal.
    shapes = tuple(
        (name, with_slack(manifest, name, extent), dtype.str)
        for name, extent, dtype in sorted(listed, key=lambda each: each[0])
    )
    manifest = dataclasses.replace(manifest, shapes=shapes)
    if chunks is None and isinstance(found, Survey) and found.features is not None:
        return with_features(manifest, found.graph.num_features, found.features)
    return manifest


def _senders(extents: Extents, fewest_rows: int) -> SenderTable | None:
    senders = extents.part_senders
    if senders is None:
        return None
    return SenderTable(max(int(senders.max()), fewest_rows), extents.boundary_of_senders)


def with_features(
    manifest: Manifest, num_columns: int, features: Sequence[FeatureEdges]
) -> Manifest:
    """The manifest with the sparse features of each part."""
    lengths, of_features = count_features(features)
    found = [
        (name, with_slack(manifest, name, shape), dtype.str)
        for name, (shape, dtype) in of_features.items()
    ]
    shapes = tuple(sorted((*manifest.shapes, *found)))
    sizes = FeatureSizes(num_columns, (lengths,))
    return dataclasses.replace(manifest, shapes=shapes, features=sizes)


def with_slack(manifest: Manifest, name: str, extents: Shape) -> Shape:
    """The shape of an array of these extents, with the slack that a manifest adds."""
    slack = manifest.slack(name, len(extents))
    return tuple(extent + more for extent, more in zip(extents, slack, strict=True))


def orientation_extents(
    prefix: str, lengths: RowLengths, edges: int, *, leave: bool = False
) -> Iterator[tuple[str, Shape]]:
    """The extents of the arrays of an orientation."""
    rows = lengths.by_group(lengths.rows)
    rows = leaving(rows) if leave else rows
    yield f"{prefix}/neighbors", (edges,)
    if prefix.endswith("by_sender"):
        yield f"{prefix}/edge_ids", (edges,)
    yield f"{prefix}/compressed_ptr", (rows.shape[1] + 1,)
    for field in ("compressed_rows", "compressed_starts"):
        yield f"{prefix}/{field}", (int(rows.sum(axis=1).max()),)


def _table_extents(extents: Extents) -> Iterator[tuple[str, Shape]]:
    """The int32 arrays of edges and halos."""
    parts, lengths = extents.num_parts, extents.lengths
    edges = int(extents.part_edges.max())
    yield from orientation_extents("incoming/by_receiver", lengths.by_receiver, edges)
    yield from orientation_extents("incoming/by_sender", lengths.by_sender, edges)
    if extents.has_repetitions:
        yield "incoming/repetition", (edges,)
    if extents.mode == "domain":
        yield "incoming/sender_ids", (0,)
        yield "incoming/sender_ptr", (1,)
    else:
        senders = extents.part_nodes if extents.part_senders is None else extents.part_senders
        known = senders + extents.halo.sum(axis=1)
        yield "incoming/sender_ids", (int(known.max()),)
        yield "incoming/sender_ptr", (parts,)
    if parts == 1:
        return
    if extents.mode == "sar":
        sides = lengths.by_sender
        by_group = sides.by_group(sides.rows * sides.lengths)
        cut = int(leaving(by_group).sum(axis=1).max())
        for side in ("by_receiver", "by_sender"):
            counts = getattr(lengths, side)
            yield from orientation_extents(f"outgoing/{side}", counts, cut, leave=True)
        # Arrays that a loop indexes need an entry, even where the loop makes no pass.
        if extents.has_repetitions:
            yield "outgoing/repetition", (max(cut, 1),)
        yield "outgoing/receiver_ids", (max(int(extents.reach.sum(axis=0).max()), 1),)
        yield "outgoing/receiver_ptr", (parts - 1,)
        yield "reach/rows", (int(extents.reach.sum(axis=1).max()),)
        yield "reach/ptr", (parts,)
        yield "reach/position", (parts - 1, 0)
    yield "send/rows", (int(extents.halo.sum(axis=0).max()),)
    yield "send/ptr", (parts,)
    yield "send/position", (parts - 1, 0)


def _as_tuples(matrix: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in matrix.tolist())
