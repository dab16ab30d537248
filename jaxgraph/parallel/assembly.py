"""The pytrees of a shard, assembled from arrays by name: arrays of data, or abstract ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxgraph.layout.derived import row_splits
from jaxgraph.layout.derived.chunks import PIECE
from jaxgraph.layout.derived.rows import sizes_of
from jaxgraph.layout.manifest import COLUMNS, FEATURES, SENDERS, VALUES, Manifest
from jaxgraph.layout.schema import (
    EDGE_DATA,
    EDGE_PREFIX,
    NODE_PREFIX,
    SIDES,
    EdgeSet,
    node_fields,
)
from jaxgraph.layout.typed_manifest import TypedManifest
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
Axis = str | tuple[str, ...]


def assemble(
    arrays: Arrays,
    manifest: Any,
    axis: Axis,
    prefetch: bool,
    implementation: str,
    hosts: int = 1,
) -> Shard:
    """Makes the `Shard` whose leaves are the arrays, whatever they are."""
    if isinstance(manifest, TypedManifest):
        return _typed(arrays, manifest, axis, prefetch, implementation, hosts)
    columns = None
    if manifest.columns is not None:
        columns = _column_topology(arrays, manifest, axis, implementation)
    return Shard(
        {NODES: _table(arrays, manifest, axis, implementation)},
        {EDGES: _edges(arrays, manifest, implementation, arrays["node_ids"])},
        {NODES: _exchange(arrays, manifest, axis, prefetch, hosts)},
        columns,
        manifest,
    )


def _typed(
    arrays: Arrays,
    manifest: Any,
    axis: Axis,
    prefetch: bool,
    implementation: str,
    hosts: int,
) -> Shard:
    """The shard of a graph of several tables and relations."""

    def own(prefix: str) -> Arrays:
        return _named(arrays, prefix)

    tables = {}
    for number, (name, member) in enumerate(manifest.tables):
        table = _table(own(f"tables/{name}/"), member, axis, implementation)
        tables[name] = dataclasses.replace(table, set_number=number)
    edge_arrays, exchanges = {}, {}
    for number, (name, member) in enumerate(manifest.relations):
        ends = dict(manifest.ends)[name]
        found = own(f"relations/{name}/")
        if ends.exchange not in exchanges:
            made = _exchange(found, member, axis, prefetch, hosts)
            # Edges of pairs end on the device of the pairs.
            exchanges[ends.exchange] = made if member.halo_rows else Exchange(axis=axis)
        found = {**found, "node_ids": tables[ends.receivers].node_ids}
        edges = _edges(found, member, implementation, tables[ends.senders].node_ids)
        if ends.senders != ends.receivers:
            at_senders = _degrees(found, f"{SENDERS}/")
            edges = dataclasses.replace(edges, at_senders=at_senders, receivers_first=False)
        edge_arrays[name] = dataclasses.replace(edges, set_number=number)
    return Shard(tables, edge_arrays, exchanges, None, manifest, manifest.ends)


def _table(arrays: Arrays, manifest: Manifest, axis: Axis, implementation: str) -> NodeTable:
    held = {field.name for field in dataclasses.fields(NodeTable)}
    names = [field.name for field in node_fields() if field.name in held]
    of_nodes: dict[str, Any] = {name: arrays.get(name) for name in names}
    if manifest.features is not None:
        of_nodes["nodes"] = _sparse_features(arrays, manifest, implementation)
    if manifest.columns is not None:
        schedule, offset = manifest.columns, arrays["columns/offset"]
        of_nodes["nodes"] = FeatureColumns(
            of_nodes["nodes"], offset, schedule.num_features, schedule.groups
        )
    return NodeTable(
        **of_nodes,
        node_data=_named(arrays, NODE_PREFIX),
        axis=axis,
        has_padding=manifest.has_padding,
        implementation=implementation,
    )


def _edges(arrays: Arrays, manifest: Manifest, implementation: str, sender_ids: Any) -> EdgeArrays:
    of_edges: dict[str, Any] = {name: arrays.get(name) for name in EDGE_DATA}
    groups = {
        name: _edge_groups(arrays, edges, implementation, sender_ids)
        for name, edges in manifest.edge_sets.items()
        if edges.other_end is not None
    }
    return EdgeArrays(
        groups["incoming"],
        groups.get("outgoing"),
        _degrees(arrays),
        **of_edges,
        edge_data=_named(arrays, EDGE_PREFIX),
        reach=_halo_table(arrays, "reach"),
        reach_units=manifest.reach_units,
    )


def _exchange(
    arrays: Arrays, manifest: Manifest, axis: Axis, prefetch: bool, hosts: int
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
    names = [field.name for field in dataclasses.fields(Degrees)]
    found: dict[str, Any] = {name: arrays.get(prefix + name) for name in names}
    return Degrees(**found)


def _named(arrays: Arrays, prefix: str) -> dict[str, Any]:
    starting = {name: values for name, values in arrays.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): values for name, values in starting.items()}


def _edge_groups(
    arrays: Arrays, edges: EdgeSet, implementation: str, sender_ids: Any
) -> EdgeGroups:
    """Edges between the own nodes and those of other parts, at the end that lists their ids."""
    sizes = sizes_of(edges)
    by_receiver, by_sender = (_orientation(arrays, edges, side) for side in SIDES)
    ends = {"sender_ids": sender_ids, "receiver_ids": arrays["node_ids"]}
    ends |= dict.fromkeys(("sender_ptr", "receiver_ptr"))
    other = [f"{edges.other_end}_{each}" for each in ("ids", "ptr")]
    ends |= {name: arrays[f"{edges.name}/{name}"] for name in other}
    return EdgeGroups(
        **ends,
        by_receiver=by_receiver,
        by_sender=by_sender,
        receivers=arrays.get(f"{edges.name}/receivers"),
        halo_position=arrays.get(f"{edges.name}/halo_position"),
        repetition=arrays.get(f"{edges.name}/repetition"),
        chunk=sizes.chunk,
        piece=PIECE,
        receiver_capacity=sizes.by_receiver.capacity,
        sender_capacity=sizes.by_sender.capacity,
        implementation=implementation,
    )


def _sparse_features(arrays: Arrays, manifest: Manifest, implementation: str) -> SparseFeatures:
    edges = manifest.edge_sets[FEATURES]
    sizes = sizes_of(edges)

    def non_zeros(side: str, values: str) -> NonZeros:
        end, capacity = edges.prefixes[side], getattr(sizes, side).capacity
        table = _orientation(arrays, edges, side)
        return NonZeros(arrays[values], arrays[f"{end}/ends"], table, capacity)

    return SparseFeatures(
        by_row=non_zeros("by_receiver", VALUES),
        by_column=non_zeros("by_sender", f"{FEATURES}/by_sender/values"),
        node_ids=arrays["node_ids" if manifest.columns is None else "columns/node_ids"],
        chunk=sizes.chunk,
        implementation=implementation,
    )


def _orientation(arrays: Arrays, edges: EdgeSet, side: str) -> Orientation:
    optional, prefix = {"edge_ids", "cut"}, edges.prefixes[side]
    names = {field.name for field in dataclasses.fields(Orientation)} - optional
    tables = {name: arrays[f"{prefix}/{name}"] for name in names}
    return Orientation(
        **tables,
        edge_ids=arrays.get(f"{prefix}/edge_ids"),
        cut=_cut_rows(arrays, edges, side),
    )


def _cut_rows(arrays: Arrays, edges: EdgeSet, side: str) -> RowSplits | None:
    """The row splits of an orientation for GPU kernels, or None where none were derived."""
    prefix = edges.prefixes[side]
    if f"{prefix}/cut/counts" not in arrays:
        return None
    found = {field: arrays[f"{prefix}/cut/{field}"] for field in row_splits.FIELDS}
    slots = arrays[f"{prefix}/neighbors"].shape[-1]
    spread = is_spread(slots, row_splits.longest_row(edges, side))
    return RowSplits(**found, partials=found["split_rows"].shape[-1], spread=spread)


def _column_topology(
    arrays: Arrays, manifest: Manifest, axis: Axis, implementation: str
) -> ColumnTopology:
    assert manifest.columns is not None
    edges = manifest.edge_sets[COLUMNS]
    data = {name: arrays[f"columns/{name}"] for name in EDGE_DATA if f"columns/{name}" in arrays}
    return ColumnTopology(
        nodes=NodeTable(
            node_ids=arrays["columns/node_ids"],
            node_mask=arrays["columns/node_mask"],
            degrees=_degrees(arrays, "columns/"),
            implementation=implementation,
        ),
        edges=ColumnEdges(
            _orientation(arrays, edges, "by_receiver"),
            _orientation(arrays, edges, "by_sender"),
            arrays.get("columns/receivers"),
            data,
        ),
        schedule=manifest.columns,
        sizes=sizes_of(edges),
        axes=(axis,) if isinstance(axis, str) else axis,
        implementation=implementation,
    )


def _halo_table(arrays: Arrays, name: str) -> HaloTable | None:
    if f"{name}/rows" not in arrays:
        return None
    return HaloTable(arrays[f"{name}/rows"], arrays[f"{name}/ptr"], arrays[f"{name}/position"])
