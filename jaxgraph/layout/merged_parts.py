"""Consecutive parts of a source merged into fewer, for fewer devices than parts.

Parts are read one after the other, and their edges wait in temporary files: no process holds the
whole graph in memory.
"""

from __future__ import annotations

import dataclasses
import tempfile
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp

from jaxgraph.layout.description import choose_halo_unit, describe
from jaxgraph.layout.extents import count_edges
from jaxgraph.layout.feature_tables import FeatureEdges, count_features, feature_edges
from jaxgraph.layout.local_order import LocalOrder, order_of_nodes
from jaxgraph.layout.manifest import FEATURES, VALUES, Arrays, Manifest
from jaxgraph.layout.part_edges import PartEdges, ordered_edges
from jaxgraph.layout.part_tables import part_arrays
from jaxgraph.layout.schema import NODES, SLOTS
from jaxgraph.layout.shard_tables import PartSource
from jaxgraph.partition.assignment import Partition
from jaxgraph.partition.sorting import smallest_unsigned

T = TypeVar("T")


def merge_partition(partition: Partition, num_parts: int) -> Partition:
    """Merges consecutive parts of a partition into so many, a divisor of their number."""
    each = partition.num_parts // num_parts
    return Partition(partition.assignment // each, num_parts, partition.method, partition.rank)


@dataclasses.dataclass(frozen=True, eq=False)
class MergedParts:
    """A source of parts, each made of several consecutive ones of another source.

    Attributes:
      source: the other source.
      manifest: counts and padded shapes.
      order: the owners of nodes.
      incoming: the edges that end in each part, in files.
      features: the non-zeros of sparse features of each part, in files; or None.
    """

    source: PartSource
    manifest: Manifest
    order: LocalOrder
    incoming: tuple[PartEdges, ...]
    features: tuple[FeatureEdges, ...] | None

    def feature_data(self, part: int) -> Arrays:
        """The arrays of sparse features of a part's nodes, by name."""
        return {} if self.features is None else self.features[part].arrays()

    def node_data(self, part: int) -> Arrays:
        """The arrays of the table of a part's nodes, by name."""
        own = _own(self.source, len(self.incoming), part)
        places = _places(own, self.order.nodes_of(part))
        return {
            name: np.concatenate([_of_nodes(each, name) for each in own])[places]
            for name in _names(self.manifest, NODES)
        }

    def edge_data(self, part: int, edges: np.ndarray) -> Arrays:
        """The user's data of some edges that end in a part, by name."""
        own = _own(self.source, len(self.incoming), part)
        counts = [len(_ends(arrays)[0]) for arrays in own]
        return {
            name: np.concatenate([x[name][:n] for x, n in zip(own, counts, strict=True)])[edges]
            for name in _names(self.manifest, SLOTS)
        }

    def part(self, index: int) -> Arrays:
        """The arrays of one part by name, not padded."""
        return part_arrays(self, index, self.manifest)


def merge_parts(source: PartSource, num_parts: int) -> MergedParts:
    """Merges the parts of a source into fewer."""
    given = source.manifest
    order, whole = _order(source, num_parts), given.mode == "domain"
    incoming, features = [], []
    for part in range(num_parts):
        own = _own(source, num_parts, part)
        senders, receivers = map(np.concatenate, zip(*map(_ends, own), strict=True))
        numbers = np.arange(len(senders))
        ordered = ordered_edges(
            order, part, numbers, senders, receivers, one_group_of_receivers=whole
        )
        incoming.append(_in_files(ordered))
        if given.features is not None:
            matrices = [_matrix(each, given.features.num_columns) for each in own]
            rows: Any = sp.vstack(matrices, "csr")
            places = _places(own, order.nodes_of(part))
            found = feature_edges(rows[places], np.arange(len(places)))
            features.append(_in_files(found))
    names, shapes = _names(given, NODES) + _names(given, SLOTS), given.array_shapes()
    extents = count_edges(
        given.mode,
        order,
        incoming,
        num_classes=given.num_classes,
        multilabel=given.multilabel,
        data={name: (shapes[name][0][1:], shapes[name][1]) for name in names},
        num_edge_types=given.num_edge_types,
    )
    sizes = given.features and count_features(given.features.num_columns, features)
    manifest = describe(extents, choose_halo_unit([extents]), features=sizes)
    return MergedParts(source, manifest, order, tuple(incoming), tuple(features) or None)


def _names(manifest: Manifest, axis: str) -> list[str]:
    return [name for name, field in manifest.fields.items() if field.axis == axis]


def _own(source: PartSource, num_parts: int, part: int) -> list[Any]:
    """The arrays of the parts that a merged one is made of."""
    each = source.manifest.num_parts // num_parts
    return [source.part(index) for index in range(part * each, (part + 1) * each)]


def _order(source: PartSource, num_parts: int) -> LocalOrder:
    """The order of all nodes: in a part, that of its parts, those with a halo first."""
    manifest = source.manifest
    assert manifest.counts is not None
    nodes, first = manifest.counts.num_nodes, 0
    part = np.empty(nodes, smallest_unsigned(num_parts - 1))
    rank, on_boundary = np.empty(nodes, np.int64), np.zeros(nodes, bool)
    for index in range(manifest.num_parts):
        arrays = source.part(index)
        ids = _of_nodes(arrays, "node_ids")
        part[ids] = index * num_parts // manifest.num_parts
        rank[ids] = np.arange(first, first + len(ids))
        first += len(ids)
        for name in ("send", "reach"):
            if f"{name}/rows" in arrays:
                shared = arrays[f"{name}/rows"][: arrays[f"{name}/ptr"][-1]]
                on_boundary[ids[shared]] = True
    return order_of_nodes(
        part, on_boundary, np.zeros(0, np.int64), np.zeros(num_parts, np.int64), rank
    )


def _of_nodes(arrays: Any, name: str) -> np.ndarray:
    mask = arrays["node_mask"]
    return arrays[name][: len(mask)][mask]


def _places(own: list[Any], nodes: np.ndarray) -> np.ndarray:
    """The rows of nodes in the concatenated rows of some parts."""
    ids = np.concatenate([_of_nodes(arrays, "node_ids") for arrays in own])
    sorter = np.argsort(ids)
    return sorter[np.searchsorted(ids, nodes, sorter=sorter)]


def _rows(arrays: Any, prefix: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of an orientation: the edges that each group has, the row of each edge, and its neighbour."""
    pointers = arrays[f"{prefix}/compressed_ptr"]
    starts = arrays[f"{prefix}/compressed_starts"][: pointers[-1] + 1]
    rows = np.repeat(arrays[f"{prefix}/compressed_rows"][: pointers[-1]], np.diff(starts))
    return np.diff(starts[pointers]), rows, arrays[f"{prefix}/neighbors"][: starts[-1]]


def _ends(arrays: Any) -> tuple[np.ndarray, np.ndarray]:
    """Global ids of the sender and the receiver of each edge of a part, by slot."""
    counts, rows, neighbors = _rows(arrays, "incoming/by_receiver")
    places = neighbors + np.repeat(arrays["incoming/sender_ptr"], counts)
    return arrays["incoming/sender_ids"][places], arrays["node_ids"][rows]


def _matrix(arrays: Any, num_columns: int) -> Any:
    """The sparse features of a part."""
    _, rows, columns = _rows(arrays, f"{FEATURES}/by_receiver")
    shape = (int(arrays["node_mask"].sum()), num_columns)
    return sp.csr_array((arrays[VALUES][: len(rows)], (rows, columns)), shape=shape)


def _in_files(value: T) -> T:
    """Moves the arrays of a dataclass to temporary files, which are mapped into memory."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return dataclasses.replace(value, **{x: _in_files(getattr(value, x)) for x in names})
    if not isinstance(value, np.ndarray) or not value.size:
        return value
    with tempfile.TemporaryFile() as file:
        mapped: Any = np.memmap(file, value.dtype, "w+", shape=value.shape)
    mapped[...] = value
    return mapped
