"""The arrays of the first layer on feature columns: columns of all nodes, and edges among them.

One table holds all nodes, part after part, with the same number of rows for each part. The rows of
every part are cut into chunks of equal length. For each chunk, a device holds the edges that end in
that chunk of its own part, or of all parts of its row of devices.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from numbers import Integral

import numpy as np
import scipy.sparse as sp

from jaxgraph.layout.compressed_rows import compress
from jaxgraph.layout.derived import rows
from jaxgraph.layout.description import orientation_extents, with_slack
from jaxgraph.layout.edge_tables import Side, edge_tables
from jaxgraph.layout.extents import Extents, extents_of
from jaxgraph.layout.feature_tables import FeatureEdges, count_features, feature_edges
from jaxgraph.layout.index_range import check_sizes
from jaxgraph.layout.manifest import (
    EDGE_DATA,
    FEATURES,
    TOPOLOGIES,
    VALUES,
    Arrays,
    ColumnSchedule,
    FeatureSizes,
    Manifest,
    Shapes,
    fill_value,
)
from jaxgraph.layout.node_tables import edge_arrays
from jaxgraph.layout.part_edges import PartEdges
from jaxgraph.layout.row_lengths import EdgeLengths, count_lengths
from jaxgraph.layout.survey import Survey
from jaxgraph.partition.sorting import counting_argsort

PREFIX = "columns/"
_DEGREES = ("in_degree", "missing_self_loop", "weighted_in_degree")


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
        _check_positive("chunks", self.chunks, "into how many chunks the rows of a part are cut")
        if self.budget is not None:
            _check_positive("feature_budget", self.budget, "bytes per device")


def _check_positive(name: str, value: object, meaning: str) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} is {value!r}; expected a positive integer: {meaning}")


@dataclasses.dataclass(frozen=True, eq=False)
class ColumnTables:
    """The edges of all devices, chunk by chunk, ordered.

    Attributes:
      survey: the graph, ordered.
      schedule: the split of the features.
      node_rows: rows of every part in the table of all nodes.
      by_chunk: for each holder (a row of devices, or a part), the edges of each chunk.
      shapes: of the arrays of a device that its manifest lists.
      features: the sizes of sparse features, or None.
      by_slice: the non-zeros of every slice of sparse features, or None.
    """

    survey: Survey
    schedule: ColumnSchedule
    node_rows: int
    by_chunk: tuple[tuple[PartEdges, ...], ...]
    shapes: Shapes
    features: FeatureSizes | None
    by_slice: tuple[FeatureEdges, ...] | None
    _latest: dict[int, Arrays] = dataclasses.field(default_factory=dict)

    def arrays(self, part: int) -> Arrays:
        """The arrays of the device of a part, in the shapes of the manifest."""
        schedule = self.schedule
        own = schedule.slice_of(part % schedule.groups)
        holder = part // schedule.groups if schedule.topology == "replicated" else part
        return {
            f"{PREFIX}offset": np.asarray(own.start, np.int32),
            **self._features(own, part % schedule.groups),
            **self._node_arrays(),
            **self._edge_arrays(holder),
        }

    def _features(self, own: slice, group: int) -> Arrays:
        if self.by_slice is not None:
            return self.by_slice[group].arrays()
        nodes = self.survey.graph.nodes
        assert isinstance(nodes, np.ndarray)
        values = np.zeros(*self.shapes["nodes"])
        # A memory-mapped file is read in these columns alone.
        values[:, : own.stop - own.start] = self._table_of_nodes(nodes[:, own])
        return {"nodes": values}

    def _table_of_nodes(self, values: np.ndarray) -> np.ndarray:
        """[all rows, ...] of values [nodes, ...] in the order of the graph, padded with zeros."""
        order = self.survey.order
        table = np.zeros((order.num_parts * self.node_rows, *values.shape[1:]), values.dtype)
        for part in range(order.num_parts):
            nodes, first = order.nodes_of(part), part * self.node_rows
            table[first : first + len(nodes)] = values[nodes]
        return table

    def _node_arrays(self) -> Arrays:
        graph, degrees = self.survey.graph, self.survey.degrees
        by_node: Mapping[str, np.ndarray] = {
            "node_ids": np.arange(graph.num_nodes, dtype=np.int32),
            "node_mask": np.ones(graph.num_nodes, bool),
            **degrees,
        }
        return {PREFIX + name: self._table_of_nodes(values) for name, values in by_node.items()}

    def _edge_arrays(self, holder: int) -> Arrays:
        """The consecutive chunks of a holder, cached for the next device that needs them."""
        if holder not in self._latest:
            self._latest.clear()
            chunks = [self._chunk(holder, chunk) for chunk in range(self.schedule.chunks)]
            self._latest[holder] = {
                name: _stacked([each[name] for each in chunks], *self.shapes[name], name)
                for name in chunks[0]
            }
        return self._latest[holder]

    def _chunk(self, holder: int, chunk: int) -> Arrays:
        edges = self.by_chunk[holder][chunk]
        by_receiver, by_sender = edges.by_receiver, edges.by_sender
        arrays = edge_tables(
            PREFIX.removesuffix("/"),
            Side(by_receiver, by_receiver.rows, edges.sender_rows),
            Side(by_sender, by_sender.rows, edges.receiver_rows),
            None,
        )
        in_slots = edge_arrays(self.survey.graph, by_receiver.in_row_order(edges.edges))
        return arrays | {PREFIX + name: in_slots[name] for name in EDGE_DATA if name in in_slots}


def _stacked(
    values: list[np.ndarray], shape: tuple[int, ...], dtype: np.dtype, name: str
) -> np.ndarray:
    stacked = np.full(shape, fill_value(name, len(shape)), dtype)
    for index, each in enumerate(values):
        stacked[(index, *(slice(0, size) for size in each.shape))] = each
    return stacked


def column_tables(
    survey: Survey, manifest: Manifest, request: ColumnRequest
) -> tuple[Manifest, ColumnTables]:
    """Chooses the number of slices of the features, and orders the edges of every chunk."""
    graph, parts = survey.graph, survey.num_parts
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
            "share slices with feature_budget=<bytes per device>"
        )
    candidates = [g for g in range(1, parts + 1) if parts % g == 0 and g <= features]
    if request.budget is None:
        candidates = [parts]
    least = 0
    for groups in candidates:
        of_slice = _bytes_of_nodes(survey, manifest, request, groups)
        is_too_large = request.budget is not None and of_slice > request.budget
        if is_too_large and groups != candidates[-1]:
            continue
        tables = _tables(survey, manifest, request, groups)
        found = _listing(manifest, tables.shapes, tables.schedule, tables.features)
        least = of_slice + _bytes_of_edges(found, request)
        if request.budget is None or least <= request.budget:
            return found, tables
    raise ValueError(
        f"feature_budget is {request.budget} bytes, but the smallest slice of the features, "
        f"1 of {candidates[-1]}, needs {least} with the edges that a device holds; raise the "
        f"budget, or take more devices{_or_push(request)}"
    )


def _or_push(request: ColumnRequest) -> str:
    return ", or topology='pushed'" if request.topology == "replicated" else ""


def _bytes_of_nodes(survey: Survey, manifest: Manifest, request: ColumnRequest, groups: int) -> int:
    """The bytes of a slice of dense features; sparse ones count as edges."""
    nodes = survey.graph.nodes
    if not isinstance(nodes, np.ndarray):
        return 0
    dtype = nodes.dtype if request.node_dtype is None else request.node_dtype
    width = -(-nodes.shape[1] // groups)
    return survey.num_parts * manifest.node_rows * width * dtype.itemsize


def _bytes_of_edges(manifest: Manifest, request: ColumnRequest) -> int:
    """The bytes of edges that a device holds for the first layer under every implementation."""
    if manifest.features is not None and request.node_dtype is not None:
        manifest = manifest.storing(VALUES, request.node_dtype)
    listed = manifest.array_shapes()
    placed = listed | rows.shapes(listed, manifest)
    return sum(
        math.prod(shape) * dtype.itemsize
        for name, (shape, dtype) in placed.items()
        if name.startswith((PREFIX, f"{FEATURES}/"))
    )


def _listing(
    manifest: Manifest,
    of_columns: Shapes,
    schedule: ColumnSchedule,
    features: FeatureSizes | None = None,
) -> Manifest:
    shapes = {name: (shape, dtype) for name, shape, dtype in manifest.shapes}
    shapes |= {name: (shape, dtype.str) for name, (shape, dtype) in of_columns.items()}
    listed = tuple((name, *shapes[name]) for name in sorted(shapes))
    return dataclasses.replace(manifest, shapes=listed, columns=schedule, features=features)


def _tables(
    survey: Survey, manifest: Manifest, request: ColumnRequest, groups: int
) -> ColumnTables:
    parts, chunks = survey.num_parts, int(request.chunks)
    step = groups if request.topology == "replicated" else 1
    by_chunk = tuple(
        _by_chunk(survey, manifest.node_rows, range(first, first + step), chunks)
        for first in range(0, parts, step)
    )
    flat = [edges for of_holder in by_chunk for edges in of_holder]
    lengths = EdgeLengths(
        count_lengths([edges.by_receiver for edges in flat]),
        count_lengths([edges.by_sender for edges in flat]),
    )
    schedule = ColumnSchedule(
        num_features=survey.graph.num_features,
        groups=groups,
        replicas=parts // groups,
        topology=request.topology,
        chunks=chunks,
        lengths=lengths,
    )
    slots = max(len(each.edges) for each in flat)
    shapes = _shapes(extents_of(survey), manifest.node_rows, schedule, slots)
    features, by_slice = None, _by_slice(survey, manifest.node_rows, schedule)
    if by_slice is not None:
        lengths, of_features = count_features(by_slice)
        features = FeatureSizes(schedule.width, (lengths,))
        for name, (shape, dtype) in of_features.items():
            shapes[name] = (with_slack(manifest, name, shape), dtype)
    return ColumnTables(survey, schedule, manifest.node_rows, by_chunk, shapes, features, by_slice)


def _by_slice(
    survey: Survey, node_rows: int, schedule: ColumnSchedule
) -> tuple[FeatureEdges, ...] | None:
    """The non-zeros of all nodes in each slice of sparse features, or None."""
    nodes, order = survey.graph.nodes, survey.order
    if not isinstance(nodes, sp.csr_array):
        return None
    rows = order.part[order.nodes].astype(np.int64) * node_rows + order.row[order.nodes]
    ordered = nodes[order.nodes]
    slices = map(schedule.slice_of, range(schedule.groups))
    return tuple(feature_edges(ordered[:, own], rows) for own in slices)


def _shapes(extents: Extents, node_rows: int, schedule: ColumnSchedule, slots: int) -> Shapes:
    """The shapes of the arrays of a device that a manifest lists, for chunks of so many edges."""
    kinds = {name: (rest, dtype) for name, rest, dtype in extents.node_data}
    rows = extents.num_parts * node_rows
    shapes: Shapes = {
        f"{PREFIX}offset": ((), np.dtype(np.int32)),
    }
    if "nodes" in kinds:
        shapes["nodes"] = ((rows, schedule.width), kinds["nodes"][1])
    for name in ("node_ids", "node_mask", *_DEGREES):
        if name in kinds:
            shapes[PREFIX + name] = ((rows,), kinds[name][1])
    lengths, integer = schedule.lengths, np.dtype(np.int32)
    for end, counts in {"receiver": lengths.by_receiver, "sender": lengths.by_sender}.items():
        for name, shape in orientation_extents(f"{PREFIX}by_{end}", counts, slots):
            first = shape[0] + name.endswith("/compressed_starts")
            shapes[name] = ((schedule.chunks, first, *shape[1:]), integer)
    # Named arrays are left out: first layers on columns read these alone.
    for name, rest, dtype in extents.edge_data:
        if name in EDGE_DATA:
            shapes[PREFIX + name] = ((schedule.chunks, slots, *rest), dtype)
    return shapes


def describe_columns(
    extents: Extents, manifest: Manifest, schedule: ColumnSchedule, slots: int
) -> Manifest:
    """The manifest of a counted graph with dense features, split by column."""
    check_sizes({"the rows of all parts": extents.num_parts * manifest.node_rows})
    return _listing(manifest, _shapes(extents, manifest.node_rows, schedule, slots), schedule)


def _by_chunk(survey: Survey, node_rows: int, parts: range, chunks: int) -> tuple[PartEdges, ...]:
    """The edges that end in each chunk of some parts; a chunk joins the rows of all these parts."""
    graph, order = survey.graph, survey.order
    run = node_rows // chunks
    edges = np.concatenate([order.edges[slice(*order.edge_ptr[part : part + 2])] for part in parts])
    chunk, row = np.divmod(order.row[graph.receivers[edges]], run)
    receivers = (order.part[graph.receivers[edges]].astype(np.int32) - parts.start) * run + row
    by_chunk = counting_argsort(chunk, chunks)
    bounds = np.searchsorted(chunk[by_chunk], np.arange(chunks + 1))
    senders = graph.senders[edges]
    senders = (order.part[senders].astype(np.int64) * node_rows + order.row[senders]).astype(
        np.int32
    )
    found = []
    for first, stop in itertools.pairwise(bounds):
        some = by_chunk[first:stop]
        some = some[counting_argsort(senders[some], order.num_parts * node_rows)]
        ends = np.asarray([0, len(some)])
        by_row = counting_argsort(receivers[some], len(parts) * run)
        found.append(
            PartEdges(
                edges[some],
                senders[some],
                receivers[some].astype(np.int32),
                None,
                compress(senders[some], None, ends),
                compress(receivers[some][by_row], by_row, ends),
            )
        )
    return tuple(found)
