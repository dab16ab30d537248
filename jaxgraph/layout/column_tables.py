"""The arrays of the first layer on feature columns: columns of all nodes, and edges among them.

One table holds all nodes, part after part, with the same number of rows for each part. The rows of
every part are cut into chunks of equal length. For each chunk, a device holds the edges that end in
that chunk of its own part, or of all parts of its row of devices.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import scipy.sparse as sp

from jaxgraph.kinds import check_positive
from jaxgraph.layout.derived import rows
from jaxgraph.layout.derived.orientations import fill
from jaxgraph.layout.description import sized
from jaxgraph.layout.edge_tables import group_tables
from jaxgraph.layout.extents import Extents
from jaxgraph.layout.feature_tables import FeatureEdges, count_features, feature_edges
from jaxgraph.layout.index_range import check_sizes
from jaxgraph.layout.local_order import LocalOrder
from jaxgraph.layout.manifest import (
    COLUMNS,
    FEATURES,
    TOPOLOGIES,
    VALUES,
    Arrays,
    ColumnSchedule,
    FeatureSizes,
    Manifest,
)
from jaxgraph.layout.node_tables import counted_arrays, edge_arrays
from jaxgraph.layout.part_edges import PartEdges, edge_lengths, edges_between
from jaxgraph.layout.schema import EDGE_PREFIX
from jaxgraph.layout.survey import Survey
from jaxgraph.partition.sorting import counting_argsort


@dataclasses.dataclass(frozen=True)
class ColumnRequest:
    """The user's choices for features that are split by column.

    Attributes:
      topology: "replicated" or "pushed", see `ColumnSchedule`.
      chunks: the number of chunks that the rows of every part are cut into.
      budget: bytes of columns and edges that a device may hold for the first layer; the features
        are cut into the fewest slices that fit. None: one slice per device.
      node_dtype: dtype of the features on devices; None: that of the graph.

    Raises:
      ValueError: the topology is unknown, or a number is no positive integer.
    """

    topology: str = "replicated"
    chunks: int = 1
    budget: int | None = None
    node_dtype: np.dtype | None = None

    def __post_init__(self) -> None:
        if self.topology not in TOPOLOGIES:
            raise ValueError(
                f"topology is {self.topology!r}; expected one of {', '.join(TOPOLOGIES)}"
            )
        check_positive("chunks", self.chunks, "into how many chunks the rows of a part are cut")
        if self.budget is not None:
            check_positive("feature_budget", self.budget, "bytes per device")


@dataclasses.dataclass(frozen=True, eq=False)
class ColumnTables:
    """The edges of all devices, chunk by chunk, ordered.

    Attributes:
      survey: the graph, ordered.
      manifest: counts and padded shapes.
      by_chunk: for each holder (a row of devices, or a part), the edges of each chunk.
      by_slice: the non-zeros of every slice of sparse features, or None.
    """

    survey: Survey
    manifest: Manifest
    by_chunk: tuple[tuple[PartEdges, ...], ...]
    by_slice: tuple[FeatureEdges, ...] | None
    _latest: dict[int, Arrays] = dataclasses.field(default_factory=dict)

    def arrays(self, part: int) -> Arrays:
        """The arrays of the device of a part, in the shapes of the manifest."""
        schedule = self.manifest.columns
        assert schedule is not None
        own, graph = schedule.slice_of(part % schedule.groups), self.survey.graph
        holder = part // schedule.groups if schedule.topology == "replicated" else part
        counted = counted_arrays(self.survey.degrees, np.arange(graph.num_nodes))
        of_nodes = {f"{COLUMNS}/{name}": self._of_all(values) for name, values in counted.items()}
        return {
            f"{COLUMNS}/offset": np.asarray(own.start, np.int32),
            **self._features(own, part % schedule.groups),
            **of_nodes,
            **self._edge_arrays(holder),
        }

    def _features(self, own: slice, group: int) -> Arrays:
        if self.by_slice is not None:
            return self.by_slice[group].arrays()
        nodes = self.survey.graph.nodes
        assert isinstance(nodes, np.ndarray)
        values = np.zeros(*self.manifest.array_shapes()["nodes"])
        # A memory-mapped file is read in these columns alone.
        values[:, : own.stop - own.start] = self._of_all(nodes[:, own])
        return {"nodes": values}

    def _of_all(self, values: np.ndarray) -> np.ndarray:
        """[all rows, ...] of values [nodes, ...] in the order of the graph, padded with zeros."""
        order, node_rows = self.survey.order, self.manifest.node_rows
        table = np.zeros((order.num_parts * node_rows, *values.shape[1:]), values.dtype)
        table[_rows_of(order, node_rows)] = values
        return table

    def _edge_arrays(self, holder: int) -> Arrays:
        """The consecutive chunks of a holder, cached for the next device that needs them."""
        if holder not in self._latest:
            self._latest.clear()
            chunks, stacked = list(map(self._chunk, self.by_chunk[holder])), {}
            for name in chunks[0]:
                (_, *shape), dtype = self.manifest.array_shapes()[name]
                padded = [fill(name, each[name], tuple(shape), dtype) for each in chunks]
                stacked[name] = np.stack(padded)
            self._latest[holder] = stacked
        return self._latest[holder]

    def _chunk(self, edges: PartEdges) -> Arrays:
        arrays = group_tables(COLUMNS, edges)
        in_slots = edge_arrays(self.survey.graph, edges.by_receiver.in_row_order(edges.edges))
        in_slots = {f"{COLUMNS}/{name}": values for name, values in in_slots.items()}
        return arrays | {x: in_slots[x] for x in in_slots.keys() & self.manifest.fields.keys()}


def column_tables(survey: Survey, manifest: Manifest, request: ColumnRequest) -> ColumnTables:
    """Chooses the number of slices of the features, and orders the edges of every chunk."""
    graph, parts = survey.graph, manifest.num_parts
    check_sizes({"the rows of all parts": parts * manifest.node_rows})
    if graph.nodes is None:
        raise ValueError(
            "mode='p3' splits node features by column, and the graph has none; make some with "
            "jaxgraph.transforms.degree_features, or take mode='domain' or 'sar'"
        )
    features = graph.num_features
    if request.budget is None and features < parts:
        raise ValueError(
            f"the graph has {features} feature column(s) for {parts} devices; mode='p3' gives "
            "every device a slice of its own: take fewer devices or another mode, or let devices "
            "share slices with feature_budget=<bytes per device> of jaxgraph.parallel.shard"
        )
    candidates = [g for g in range(1, parts + 1) if parts % g == 0 and g <= features]
    budget, least = request.budget, 0
    if budget is None:
        candidates, budget = [parts], math.inf
    for groups in candidates:
        of_slice = _bytes_of_nodes(survey, manifest, request, groups)
        if of_slice > budget and groups != candidates[-1]:
            continue
        tables = _tables(survey, manifest, request, groups)
        least = of_slice + _bytes_of_edges(tables.manifest, request)
        if least <= budget:
            return tables
    push = ", or topology='pushed'" if request.topology == "replicated" else ""
    raise ValueError(
        f"feature_budget is {request.budget} bytes, but the smallest slice of the features, "
        f"1 of {candidates[-1]}, needs {least} with the edges that a device holds; raise the "
        f"budget, or take more devices{push}"
    )


def _bytes_of_nodes(survey: Survey, manifest: Manifest, request: ColumnRequest, groups: int) -> int:
    """The bytes of a slice of dense features; sparse ones count as edges."""
    nodes = survey.graph.nodes
    if not isinstance(nodes, np.ndarray):
        return 0
    dtype = nodes.dtype if request.node_dtype is None else request.node_dtype
    width = -(-nodes.shape[1] // groups)
    return manifest.num_parts * manifest.node_rows * width * dtype.itemsize


def _bytes_of_edges(manifest: Manifest, request: ColumnRequest) -> int:
    """The bytes of edges that a device holds for the first layer under every implementation."""
    if manifest.features is not None and request.node_dtype is not None:
        manifest = manifest.storing(VALUES, request.node_dtype)
    listed = manifest.array_shapes()
    placed = listed | rows.shapes(listed, manifest.edge_sets.values())
    return sum(
        math.prod(shape) * dtype.itemsize
        for name, (shape, dtype) in placed.items()
        if name.startswith((f"{COLUMNS}/", f"{FEATURES}/"))
    )


def _tables(
    survey: Survey, manifest: Manifest, request: ColumnRequest, groups: int
) -> ColumnTables:
    parts, chunks = manifest.num_parts, int(request.chunks)
    step = groups if request.topology == "replicated" else 1
    by_chunk = tuple(
        _by_chunk(survey, manifest.node_rows, range(first, first + step), chunks)
        for first in range(0, parts, step)
    )
    flat = [edges for of_holder in by_chunk for edges in of_holder]
    schedule = ColumnSchedule(
        num_features=survey.graph.num_features,
        groups=groups,
        replicas=parts // groups,
        topology=request.topology,
        chunks=chunks,
        lengths=edge_lengths(flat),
    )
    slots = max(len(each.edges) for each in flat)
    nodes, order, by_slice, features = survey.graph.nodes, survey.order, None, None
    if isinstance(nodes, sp.csr_array):
        rows, ordered = _rows_of(order, manifest.node_rows, order.nodes), nodes[order.nodes]
        slices = map(schedule.slice_of, range(groups))
        by_slice = tuple(feature_edges(ordered[:, own], rows) for own in slices)
        features = count_features(schedule.width, by_slice)
    found = describe_columns(survey.extents, manifest, schedule, slots, features)
    return ColumnTables(survey, found, by_chunk, by_slice)


def _rows_of(order: LocalOrder, node_rows: int, nodes: Any = ...) -> np.ndarray:
    """The rows of nodes in the table of all parts; those of all nodes where none are named."""
    return order.part[nodes].astype(np.int64) * node_rows + order.row[nodes]


def describe_columns(
    extents: Extents,
    manifest: Manifest,
    schedule: ColumnSchedule,
    slots: int,
    features: FeatureSizes | None = None,
) -> Manifest:
    """The manifest of a counted graph, split by column, for chunks of so many edges."""
    check_sizes({"the rows of all parts": extents.num_parts * manifest.node_rows})
    manifest = dataclasses.replace(manifest, columns=schedule, features=features)
    sizes = manifest.edge_sets[COLUMNS].sizes(slots)
    if features is not None:
        sizes |= manifest.edge_sets[FEATURES].sizes()
    # Named arrays of edges are left out: first layers on columns read no others.
    of_all = {
        f"{COLUMNS}/{name}": kind
        for name, kind in extents.data.items()
        if not name.startswith(EDGE_PREFIX)
    }
    shapes = sized(manifest, sizes, of_all)
    if "nodes" in extents.data:
        rows, dtype = extents.num_parts * manifest.node_rows, extents.data["nodes"][1]
        shapes["nodes"] = (rows, schedule.width), dtype
    return manifest.listing(shapes)


def _by_chunk(survey: Survey, node_rows: int, parts: range, chunks: int) -> tuple[PartEdges, ...]:
    """The edges that end in each chunk of some parts; a chunk joins the rows of all these parts."""
    graph, order = survey.graph, survey.order
    run = node_rows // chunks
    edges = np.concatenate([order.edges[slice(*order.edge_ptr[part : part + 2])] for part in parts])
    chunk, row = np.divmod(order.row[graph.receivers[edges]], run)
    receivers = (order.part[graph.receivers[edges]].astype(np.int32) - parts.start) * run + row
    by_chunk = counting_argsort(chunk, chunks)
    bounds = np.searchsorted(chunk[by_chunk], np.arange(1, chunks))
    senders = _rows_of(order, node_rows, graph.senders[edges])
    found = []
    for some in np.split(by_chunk, bounds):
        sizes = order.num_parts * node_rows, len(parts) * run
        ordered = edges_between(senders[some], receivers[some], *sizes)
        found.append(dataclasses.replace(ordered, edges=edges[some][ordered.edges]))
    return tuple(found)
