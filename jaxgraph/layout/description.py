"""The manifest of a surveyed graph: what every array of every part needs, before any is made."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from jaxgraph.layout.feature_tables import count_features
from jaxgraph.layout.halo import SMALLEST_UNIT, choose_unit, in_units
from jaxgraph.layout.manifest import Counts, FeatureSizes, Manifest
from jaxgraph.layout.node_tables import edge_arrays, node_arrays
from jaxgraph.layout.row_lengths import RowLengths, leaving
from jaxgraph.layout.survey import Survey

__all__ = ["choose_halo_unit", "describe", "orientation_extents", "with_slack"]

Shape = tuple[int, ...]
FEWEST_ROWS = 16
"""Rows of a part, and of a chunk of its rows, at least."""


def choose_halo_unit(surveys: Sequence[Survey]) -> int:
    """Chooses the unit of messages for graphs that are to have the same shapes.

    Args:
      surveys: the graphs.

    Returns:
      Rows by which messages are rounded up.
    """
    if surveys[0].mode == "domain":
        # All its messages have one size: rounding it up would gain nothing.
        return SMALLEST_UNIT
    return min(choose_unit(found.halo) for found in surveys)


def describe(
    survey: Survey, unit: int, chunks: int | None = None, fewest_rows: int = FEWEST_ROWS
) -> Manifest:
    """The manifest of a surveyed graph, with the shapes that its parts need.

    Args:
      survey: the graph.
      unit: rows by which messages are rounded up.
      chunks: into how many chunks of equal length the rows of a part can be cut, for features that
        are split by column: sparse ones are then left out. None: features are split by node.
      fewest_rows: rows of a part, and of a chunk, at least.

    Returns:
      The manifest.

    Raises:
      ValueError: a table is too large for the indices of devices.
    """
    graph, order = survey.graph, survey.order
    divisor = 1 if chunks is None else chunks
    least = max(order.largest_part, fewest_rows * divisor)
    node_rows = -(-least // divisor) * divisor
    manifest = Manifest(
        mode=survey.mode,
        num_parts=survey.num_parts,
        num_classes=graph.num_classes,
        multilabel=graph.is_multilabel,
        node_rows=node_rows,
        boundary_rows=int(order.boundary.max()),
        halo_unit=unit,
        halo_units=_as_tuples(in_units(survey.halo, unit)),
        reach_units=_as_tuples(in_units(survey.reach, unit)),
        shapes=(),
        lengths=(survey.lengths,),
        has_padding=bool(np.diff(order.part_ptr).min() < node_rows),
        counts=Counts(graph.num_nodes, graph.num_edges, int(survey.halo.sum())),
    )
    extents = _data_extents(survey)
    for name, shape in _table_extents(survey):
        extents.append((name, shape, np.dtype(np.int32)))
    if chunks is None and survey.features is not None:
        lengths, shapes = count_features(survey.features)
        manifest = dataclasses.replace(
            manifest, features=FeatureSizes(graph.num_features, (lengths,))
        )
        extents += [(name, *shape) for name, shape in shapes.items()]
    # Sorted by name, so that the order in which they were found makes no difference.
    listed = tuple(
        (name, with_slack(manifest, name, extent), dtype.str)
        for name, extent, dtype in sorted(extents)
    )
    return dataclasses.replace(manifest, shapes=listed)


def with_slack(manifest: Manifest, name: str, extents: Shape) -> Shape:
    """The shape of an array that stores so much, under the sizes of a manifest."""
    slack = manifest.slack(name, len(extents))
    return tuple(extent + more for extent, more in zip(extents, slack, strict=True))


def _data_extents(survey: Survey) -> list[tuple[str, Shape, np.dtype]]:
    """Arrays of the user's data, and what is derived from it per node."""
    graph, nothing = survey.graph, np.zeros(0, np.int64)
    edges = int(np.diff(survey.order.edge_ptr).max())
    by_node = node_arrays(graph, survey.degrees, nothing)
    by_edge = edge_arrays(graph, nothing)
    return [(name, values.shape, values.dtype) for name, values in by_node.items()] + [
        (name, (edges, *values.shape[1:]), values.dtype) for name, values in by_edge.items()
    ]


def orientation_extents(
    prefix: str, lengths: RowLengths, edges: int, *, leave: bool = False
) -> Iterator[tuple[str, Shape]]:
    """The extents of the arrays of an orientation.

    Args:
      prefix: what their names start with.
      lengths: of the rows of all tables.
      edges: of the largest table.
      leave: whether to take the edges that leave parts instead of those that end there.

    Yields:
      Names and shapes, without slack.
    """
    rows = lengths.by_group(lengths.rows)
    rows = leaving(rows) if leave else rows
    yield f"{prefix}/neighbors", (edges,)
    if prefix.endswith("by_sender"):
        yield f"{prefix}/edge_ids", (edges,)
    yield f"{prefix}/compressed_ptr", (rows.shape[1] + 1,)
    for field in ("compressed_rows", "compressed_starts"):
        yield f"{prefix}/{field}", (int(rows.sum(axis=1).max()),)


def _table_extents(survey: Survey) -> Iterator[tuple[str, Shape]]:
    """Arrays of int32 that say where edges and halos are."""
    order, parts, lengths = survey.order, survey.num_parts, survey.lengths
    edges = int(np.diff(order.edge_ptr).max())
    yield from orientation_extents("incoming/by_receiver", lengths.by_receiver, edges)
    yield from orientation_extents("incoming/by_sender", lengths.by_sender, edges)
    if survey.has_repetitions:
        yield "incoming/repetition", (edges,)
    if survey.mode == "domain":
        yield "incoming/sender_ids", (0,)
        yield "incoming/sender_ptr", (1,)
    else:
        known = np.diff(order.part_ptr) + survey.halo.sum(axis=1)
        yield "incoming/sender_ids", (int(known.max()),)
        yield "incoming/sender_ptr", (parts,)
    if parts == 1:
        return
    if survey.mode == "sar":
        by_group = np.stack([np.diff(edges.by_sender.edge_ptr) for edges in survey.incoming])
        cut = int(leaving(by_group).sum(axis=1).max())
        for side in ("by_receiver", "by_sender"):
            counts = getattr(lengths, side)
            yield from orientation_extents(f"outgoing/{side}", counts, cut, leave=True)
        # What is looked up in a loop has an entry, even where the loop makes no pass.
        if survey.has_repetitions:
            yield "outgoing/repetition", (max(cut, 1),)
        yield "outgoing/receiver_ids", (max(int(survey.reach.sum(axis=0).max()), 1),)
        yield "outgoing/receiver_ptr", (parts - 1,)
        yield "reach/rows", (int(survey.reach.sum(axis=1).max()),)
        yield "reach/ptr", (parts,)
        yield "reach/position", (parts - 1, 0)
    yield "send/rows", (int(survey.halo.sum(axis=0).max()),)
    yield "send/ptr", (parts,)
    yield "send/position", (parts - 1, 0)


def _as_tuples(matrix: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in matrix.tolist())
