"""The pytrees of a shard, assembled from arrays by name: arrays of data, or abstract ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxgraph.layout.derived import row_splits
from jaxgraph.layout.derived.chunks import PIECE
from jaxgraph.layout.derived.rows import edge_sizes
from jaxgraph.layout.manifest import (
    EDGE_DATA,
    EDGE_PREFIX,
    FEATURES,
    NODE_PREFIX,
    VALUES,
    Manifest,
)
from jaxgraph.ops.core.edges import EdgeGroups, Orientation, RowSplits
from jaxgraph.parallel.columns import ColumnEdges, ColumnTopology
from jaxgraph.parallel.exchange import Exchange, HaloTable
from jaxgraph.parallel.features import FeatureColumns
from jaxgraph.parallel.node_table import Degrees, NodeTable
from jaxgraph.parallel.relation import EdgeArrays
from jaxgraph.parallel.schedules.domain import Domain
from jaxgraph.parallel.schedules.sar import Ring
from jaxgraph.parallel.shard import EDGES, NODES, Shard
from jaxgraph.parallel.sparse_features import NonZeros, SparseFeatures
from pallas_kernels.schedule import is_spread

Arrays = Mapping[str, Any]
_OF_NODES = ("nodes", "labels", "train_mask", "val_mask", "test_mask", "graph_ids")


def assemble(
    arrays: Arrays,
    manifest: Manifest,
    axis: str | tuple[str, ...],
    prefetch: bool,
    implementation: str,
    hosts: int = 1,
) -> Shard:
    """Makes the `Shard` whose leaves are the arrays, whatever they are."""
    of_nodes: dict[str, Any] = {name: arrays.get(name) for name in _OF_NODES}
    of_edges: dict[str, Any] = {name: arrays.get(name) for name in EDGE_DATA}
    if manifest.features is not None:
        of_nodes["nodes"] = _sparse_features(arrays, manifest, implementation)
    columns = None
    if manifest.columns is not None:
        columns = _column_topology(arrays, manifest, axis, implementation)
        schedule, offset = manifest.columns, arrays["columns/offset"]
        of_nodes["nodes"] = FeatureColumns(
            of_nodes["nodes"], offset, schedule.num_features, schedule.groups
        )
    table = NodeTable(
        arrays["node_ids"],
        arrays["node_mask"],
        **of_nodes,
        node_data=_named(arrays, NODE_PREFIX),
        axis=axis,
        has_padding=manifest.has_padding,
        implementation=implementation,
    )
    edges = EdgeArrays(
        _incoming(arrays, manifest, implementation),
        _outgoing(arrays, manifest, implementation) if manifest.has_outgoing else None,
        _degrees(arrays),
        **of_edges,
        edge_data=_named(arrays, EDGE_PREFIX),
        reach=_halo_table(arrays, "reach"),
        reach_units=manifest.reach_units,
    )
    exchange = _exchange(arrays, manifest, axis, prefetch, hosts)
    return Shard({NODES: table}, {EDGES: edges}, {NODES: exchange}, columns, manifest)


def _exchange(
    arrays: Arrays, manifest: Manifest, axis: str | tuple[str, ...], prefetch: bool, hosts: int
) -> Exchange:
    kind = Exchange
    if manifest.num_parts > 1:
        kind = Domain if manifest.mode == "domain" else Ring
    return kind(
        send=_halo_table(arrays, "send"),
        axis=axis,
        num_parts=manifest.num_parts,
        hosts=hosts,
        prefetch=prefetch,
        halo_unit=manifest.halo_unit,
        halo_units=manifest.halo_units,
    )


def _degrees(arrays: Arrays, prefix: str = "") -> Degrees:
    return Degrees(
        arrays[f"{prefix}in_degree"],
        arrays[f"{prefix}missing_self_loop"],
        arrays.get(f"{prefix}weighted_in_degree"),
    )


def _named(arrays: Arrays, prefix: str) -> dict[str, Any]:
    starting = {name: values for name, values in arrays.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): values for name, values in starting.items()}


def _incoming(arrays: Arrays, manifest: Manifest, implementation: str) -> EdgeGroups:
    return EdgeGroups(
        sender_ids=arrays["incoming/sender_ids"],
        sender_ptr=arrays["incoming/sender_ptr"],
        receiver_ids=arrays["node_ids"],
        receiver_ptr=None,
        receivers=arrays["incoming/receivers"],
        **_edges(arrays, manifest, "incoming", implementation),
    )


def _outgoing(arrays: Arrays, manifest: Manifest, implementation: str) -> EdgeGroups:
    return EdgeGroups(
        sender_ids=arrays["node_ids"],
        sender_ptr=None,
        receiver_ids=arrays["outgoing/receiver_ids"],
        receiver_ptr=arrays["outgoing/receiver_ptr"],
        receivers=None,
        **_edges(arrays, manifest, "outgoing", implementation),
    )


def _sparse_features(arrays: Arrays, manifest: Manifest, implementation: str) -> SparseFeatures:
    sizes = edge_sizes(manifest)[FEATURES]

    def non_zeros(end: str, values: str) -> NonZeros:
        prefix = f"{FEATURES}/by_{end}"
        edges = _orientation(arrays, manifest, prefix)
        return NonZeros(arrays[values], arrays[f"{prefix}/ends"], edges, sizes.of(prefix).capacity)

    return SparseFeatures(
        by_row=non_zeros("receiver", VALUES),
        by_column=non_zeros("sender", f"{FEATURES}/by_sender/values"),
        node_ids=arrays["node_ids" if manifest.columns is None else "columns/node_ids"],
        chunk=sizes.chunk,
        implementation=implementation,
    )


def _edges(arrays: Arrays, manifest: Manifest, edges: str, implementation: str) -> dict[str, Any]:
    """The fields of `EdgeGroups` that incoming and outgoing edges read alike."""
    sizes = edge_sizes(manifest)[edges]
    return {
        "by_receiver": _orientation(arrays, manifest, f"{edges}/by_receiver"),
        "by_sender": _orientation(arrays, manifest, f"{edges}/by_sender"),
        "repetition": arrays.get(f"{edges}/repetition"),
        "chunk": sizes.chunk,
        "piece": PIECE,
        "receiver_capacity": sizes.by_receiver.capacity,
        "sender_capacity": sizes.by_sender.capacity,
        "implementation": implementation,
        "halo_position": arrays.get("halo/position") if edges == "incoming" else None,
    }


def _orientation(arrays: Arrays, manifest: Manifest, prefix: str) -> Orientation:
    optional = {"edge_ids", "cut"}
    names = {field.name for field in dataclasses.fields(Orientation)} - optional
    tables = {name: arrays[f"{prefix}/{name}"] for name in names}
    return Orientation(
        **tables,
        edge_ids=arrays.get(f"{prefix}/edge_ids"),
        cut=_cut_rows(arrays, manifest, prefix),
    )


def _cut_rows(arrays: Arrays, manifest: Manifest, prefix: str) -> RowSplits | None:
    """The row splits of an orientation for GPU kernels, or None where none were derived."""
    if f"{prefix}/cut/counts" not in arrays:
        return None
    found = {field: arrays[f"{prefix}/cut/{field}"] for field in row_splits.FIELDS}
    slots = arrays[f"{prefix}/neighbors"].shape[-1]
    spread = is_spread(slots, row_splits.longest_row(manifest, prefix))
    return RowSplits(**found, partials=found["split_rows"].shape[-1], spread=spread)


def _column_topology(
    arrays: Arrays, manifest: Manifest, axis: str | tuple[str, ...], implementation: str
) -> ColumnTopology:
    assert manifest.columns is not None
    data = {name: arrays[f"columns/{name}"] for name in EDGE_DATA if f"columns/{name}" in arrays}
    return ColumnTopology(
        nodes=NodeTable(
            node_ids=arrays["columns/node_ids"],
            node_mask=arrays["columns/node_mask"],
            degrees=_degrees(arrays, "columns/"),
            implementation=implementation,
        ),
        edges=ColumnEdges(
            _orientation(arrays, manifest, "columns/by_receiver"),
            _orientation(arrays, manifest, "columns/by_sender"),
            arrays.get("columns/receivers"),
            data,
        ),
        schedule=manifest.columns,
        sizes=edge_sizes(manifest)["columns"],
        axes=(axis,) if isinstance(axis, str) else axis,
        implementation=implementation,
    )


def _halo_table(arrays: Arrays, name: str) -> HaloTable | None:
    if f"{name}/rows" not in arrays:
        return None
    return HaloTable(arrays[f"{name}/rows"], arrays[f"{name}/ptr"], arrays[f"{name}/position"])
