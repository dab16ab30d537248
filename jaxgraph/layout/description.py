"""The manifest of a surveyed graph: what every array of every part needs, before any is made."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from jaxgraph.layout.degrees import (
    SMALLEST_CHUNK,
    choose_chunk,
    choose_lanes,
    count_joins,
    count_levels,
    join_counts,
)
from jaxgraph.layout.halo import SMALLEST_UNIT, choose_unit, in_units
from jaxgraph.layout.manifest import Counts, Manifest
from jaxgraph.layout.node_tables import edge_arrays, node_arrays
from jaxgraph.layout.row_counts import RowCounts, count_rows, leaving
from jaxgraph.layout.survey import Survey

__all__ = ["Grain", "choose_grain", "describe", "with_slack"]

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Grain:
    """What graphs of the same shapes have in common, whatever their sizes.

    Attributes:
      chunk: edges handled at a time.
      unit: rows by which messages between parts are rounded up.
      lanes: of each level of a graph in one part, and of its runs; none where there are several.
    """

    chunk: int
    unit: int
    lanes: tuple[int, ...] = ()

    @classmethod
    def of(cls, manifest: Manifest) -> Grain:
        """That of a graph which is laid out already."""
        return cls(manifest.chunk, manifest.halo_unit, manifest.lanes)


def choose_grain(surveys: Sequence[Survey]) -> Grain:
    """The grain for graphs that share it.

    Args:
      surveys: the graphs.

    Returns:
      The grain.
    """
    counts = join_counts(
        [counts for found in surveys for counts in (found.receiver_degrees, found.sender_degrees)]
    )
    node_rows = max(found.order.largest_part for found in surveys)
    num_parts = surveys[0].num_parts
    chunk = choose_chunk(counts, node_rows, num_parts)
    lanes = choose_lanes(counts) if num_parts == 1 else ()
    if surveys[0].mode == "domain":
        # All its messages have one size: rounding it up would gain nothing.
        return Grain(chunk, SMALLEST_UNIT, lanes)
    return Grain(chunk, min(choose_unit(found.halo) for found in surveys), lanes)


def describe(survey: Survey, grain: Grain, divisor: int = 1) -> Manifest:
    """What is known of a surveyed graph, with the shapes that its parts need.

    Args:
      survey: the graph.
      grain: what it has in common with other graphs.
      divisor: into how many runs of equal length the rows of a part can be cut.

    Returns:
      The manifest.
    """
    graph, order = survey.graph, survey.order
    chunk, unit, lanes = grain.chunk, grain.unit, grain.lanes
    by_receiver, by_sender = row_counts = count_rows(survey, chunk)
    leave = survey.mode == "sar" and survey.num_parts > 1
    least = max(order.largest_part, chunk, SMALLEST_CHUNK * divisor)
    node_rows = -(-least // divisor) * divisor
    manifest = Manifest(
        mode=survey.mode,
        num_parts=survey.num_parts,
        num_classes=graph.num_classes,
        multilabel=graph.is_multilabel,
        node_rows=node_rows,
        boundary_rows=int(order.boundary.max()),
        chunk=chunk,
        halo_unit=unit,
        halo_units=_as_tuples(in_units(survey.halo, unit)),
        reach_units=_as_tuples(in_units(survey.reach, unit)),
        receiver_capacity=by_receiver.capacity(chunk),
        sender_capacity=by_sender.capacity(chunk),
        outgoing_receiver_capacity=by_receiver.leaving().capacity(chunk) if leave else 0,
        outgoing_sender_capacity=by_sender.leaving().capacity(chunk) if leave else 0,
        receiver_longest=by_receiver.longest_row,
        sender_longest=by_sender.longest_row,
        shapes=(),
        lanes=lanes,
        receiver_levels=count_levels(survey.receiver_degrees, lanes),
        sender_levels=count_levels(survey.sender_degrees, lanes),
        receiver_joins=count_joins(survey.receiver_degrees, lanes),
        sender_joins=count_joins(survey.sender_degrees, lanes),
        has_padding=bool(np.diff(order.part_ptr).min() < node_rows),
        counts=Counts(graph.num_nodes, graph.num_edges, int(survey.halo.sum())),
    )
    extents = _data_extents(survey)
    for name, shape in _table_extents(survey, row_counts):
        extents.append((name, shape, np.dtype(np.int32)))
    # Sorted by name, so that the order in which they were found makes no difference.
    shapes = tuple(
        (name, with_slack(manifest, name, extent), dtype.str)
        for name, extent, dtype in sorted(extents)
    )
    return dataclasses.replace(manifest, shapes=shapes)


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


def _table_extents(
    survey: Survey, row_counts: tuple[RowCounts, RowCounts]
) -> Iterator[tuple[str, Shape]]:
    """Arrays of int32 that say where edges and halos are."""
    order, parts = survey.order, survey.num_parts
    by_receiver, by_sender = row_counts
    edges = int(np.diff(order.edge_ptr).max())
    yield from by_receiver.extents("incoming/by_receiver", edges)
    yield from by_sender.extents("incoming/by_sender", edges)
    yield "incoming/receivers", (edges,)
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
        yield from by_receiver.leaving().extents("outgoing/by_receiver", cut)
        yield from by_sender.leaving().extents("outgoing/by_sender", cut)
        if survey.has_repetitions:
            yield "outgoing/repetition", (cut,)
        yield "outgoing/receiver_ids", (int(survey.reach.sum(axis=0).max()),)
        yield "outgoing/receiver_ptr", (parts - 1,)
        yield "reach/rows", (int(survey.reach.sum(axis=1).max()),)
        yield "reach/ptr", (parts,)
        yield "reach/position", (parts - 1, 0)
    yield "send/rows", (int(survey.halo.sum(axis=0).max()),)
    yield "send/ptr", (parts,)
    yield "send/position", (parts - 1, 0)


def _as_tuples(matrix: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in matrix.tolist())
