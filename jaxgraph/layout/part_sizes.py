"""Shapes of parts that follow from given sizes, whatever the edges."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.layout.description import describe
from jaxgraph.layout.extents import Extents
from jaxgraph.layout.halo import SMALLEST_UNIT
from jaxgraph.layout.manifest import Manifest
from jaxgraph.layout.row_lengths import EdgeLengths, RowLengths, leaving
from jaxgraph.layout.schema import EDGES, REPETITION
from jaxgraph.layout.shard_tables import PartTables
from jaxgraph.layout.survey import survey
from jaxgraph.partition.assignment import Partition


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartSizes:
    """The sizes of a part of a graph, from which all its shapes follow, whatever its edges.

    A function that was compiled for one graph then runs on all graphs that fit into these sizes,
    with the same kinds of data, mode and number of parts. A size that is None leaves room for every
    graph that the others hold: give it where you know it, for less memory and shorter messages.

    Args:
      nodes: nodes of a part.
      edges: edges that end in a part.
      leaving: edges from a part to all others; None: as many as can end there.
      halo: nodes of a part with edges to, or from, one other part; None: all that can have some.
        So many rows are sent, whatever the graph.
      longest: edges that enter a node, or leave it; None: all edges of a part.
      classes: classes of the labels, where a node has one label.
      edge_types: types of edges.

    Raises:
      ValueError: a size is no positive integer.
    """

    nodes: int
    edges: int
    leaving: int | None = None
    halo: int | None = None
    longest: int | None = None
    classes: int = 0
    edge_types: int = 0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            size, least = getattr(self, field.name), 0 if field.default == 0 else 1
            if size is None and field.default is None:
                continue
            if not isinstance(size, int) or isinstance(size, bool) or size < least:
                raise ValueError(f"{field.name} is {size!r}; expected an integer from {least} up")


def sized_tables(graph: Graph, partition: Partition, mode: str, sizes: PartSizes) -> PartTables:
    """Tabulates a graph in shapes that follow from sizes."""
    found = survey(graph, partition, mode)
    if found.features is not None:
        raise ValueError(
            "PartSizes has no room for sparse features; graph.replace(nodes=graph.nodes.toarray()) "
            "makes them dense, and jaxgraph.parallel.common_shapes makes shapes for sparse ones"
        )
    _check_room(sizes, found.extents)
    return PartTables(sized_manifest(sizes, found.extents), found)


def sized_manifest(sizes: PartSizes, extents: Extents) -> Manifest:
    """The manifest of the largest graph of these sizes, with the counts and data of another one."""
    parts, in_steps = extents.num_parts, extents.mode == "sar"
    rows = min(sizes.nodes, sizes.edges)
    sent = min(rows, sizes.halo or rows)
    halo = sent * (1 - np.eye(parts, dtype=np.int64))
    by_step = [rows, *[sent] * (parts - 1)]
    of_receivers, of_senders = [rows], [min(sum(by_step), sizes.edges)]
    if in_steps:
        of_receivers = of_senders = by_step
    has_classes = "labels" in extents.data and not extents.multilabel
    largest = dataclasses.replace(
        extents,
        num_classes=sizes.classes if has_classes else extents.num_classes,
        num_edge_types=sizes.edge_types if "edge_type" in extents.data else 0,
        part_nodes=np.full(parts, sizes.nodes),
        part_edges=np.full(parts, sizes.edges),
        boundary=sizes.nodes,
        halo=halo,
        reach=halo if in_steps else np.zeros_like(halo),
        lengths=EdgeLengths(
            _lengths(sizes, parts, of_receivers), _lengths(sizes, parts, of_senders)
        ),
        has_repetitions=True,
    )
    manifest = dataclasses.replace(describe(largest, SMALLEST_UNIT), has_padding=True)
    left, kinds = sizes.leaving or sizes.edges * (parts - 1), manifest.array_shapes()
    return manifest.listing(
        {
            name: ((left,), kinds[name][1])
            for name, field in manifest.fields.items()
            if field.owner == "outgoing" and field.axis in (EDGES, REPETITION)
        }
    )


def _lengths(sizes: PartSizes, parts: int, groups: Sequence[int]) -> RowLengths:
    """Rows of a mean length in the groups of every part, and one of all edges, cut into runs."""
    longest, mean = sizes.longest or sizes.edges, max(sizes.edges // sum(groups), 1)
    rows = [[1, count - 1] for count in groups] * parts
    lengths = np.tile([longest, min(mean, longest)], len(rows))
    numbers = np.repeat(np.arange(len(rows)), 2)
    return RowLengths(numbers, lengths, np.ravel(rows), parts, len(groups))


def _check_room(sizes: PartSizes, found: Extents) -> None:
    """Raises `ValueError` where a graph has more of something than there is room for."""
    assert found.lengths is not None
    ends = found.lengths.by_receiver, found.lengths.by_sender
    needed = {
        "nodes": found.part_nodes.max(),
        "edges": found.part_edges.max(),
        "halo": max(found.halo.max(), found.reach.max()),
        "longest": max(end.longest for end in ends),
        "classes": 0 if found.multilabel else found.num_classes,
        "edge_types": found.num_edge_types,
    }
    if found.mode == "sar":
        between = ends[1].by_group(ends[1].rows * ends[1].lengths)
        needed["leaving"] = leaving(between).sum(axis=1).max()
    rooms = {name: getattr(sizes, name) for name in needed}
    small = [
        f"{name} {size} > {rooms[name]}"
        for name, size in needed.items()
        if rooms[name] is not None and size > rooms[name]
    ]
    if small:
        raise ValueError(
            f"the graph does not fit into pad_to: {', '.join(small)}; expected "
            "jaxgraph.parallel.PartSizes that hold the largest part of every graph"
        )
