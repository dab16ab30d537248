"""Shards of several tables and relations, built by hand from the functions of the layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxgraph.graph import Graph
from jaxgraph.layout.description import choose_halo_unit, describe
from jaxgraph.layout.extents import count_edges, kinds_of
from jaxgraph.layout.halo import pair_counts
from jaxgraph.layout.local_order import LocalOrder, SharedHalos, order_of_nodes
from jaxgraph.layout.manifest import Manifest
from jaxgraph.layout.node_tables import global_degrees, node_arrays
from jaxgraph.layout.part_edges import PartEdges, ordered_edges
from jaxgraph.layout.placed import placed_part, placed_shapes
from jaxgraph.layout.shard_tables import PartTables
from jaxgraph.layout.survey import Survey
from jaxgraph.ops.usable import usable_implementation
from jaxgraph.parallel import ShardedGraph, make_mesh
from jaxgraph.parallel.assembly import assemble
from jaxgraph.parallel.node_table import Degrees, NodeTable
from jaxgraph.parallel.shard import EDGES, NODES, Ends, Shard

Array = np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Edges:
    """Edges from the nodes of one table to those of another, or of the same."""

    senders: str
    receivers: str
    ends: Array


def typed_shards(
    nodes: Mapping[str, Array],
    edges: Mapping[str, Edges],
    mode: str,
    num_parts: int,
    implementation: str | None = None,
) -> ShardedGraph:
    """Tables of features [nodes, features], and relations between them, on a mesh."""
    mesh = make_mesh(num_parts)
    axis = mesh.axis_names[0]
    sharding = NamedSharding(mesh, PartitionSpec(axis))
    chosen = usable_implementation(implementation, mesh.devices.flat[0])
    parts = {name: np.arange(len(x)) * 7919 % num_parts for name, x in nodes.items()}
    orders = {name: _order(name, part, edges, parts) for name, part in parts.items()}

    def on_devices(arrays: Sequence[Array], shape: tuple[int, ...], dtype: Any) -> jax.Array:
        stacked = np.zeros((num_parts, *shape), dtype)
        for row, each in zip(stacked, arrays, strict=True):
            row[tuple(slice(0, size) for size in each.shape)] = each
        return jax.device_put(stacked, sharding)

    relations, exchanges, ends, manifests = {}, {}, [], {}
    for name, some in edges.items():
        pair = [each for each in edges.values() if _tables(each) == _tables(some)]
        source = _tabulated(some, pair, orders, mode, num_parts)
        manifest = dataclasses.replace(source.manifest, counts=None)
        manifests[some.receivers] = manifest
        shapes = placed_shapes(manifest, chosen)
        found = [placed_part(source, manifest, part, chosen) for part in range(num_parts)]
        arrays = {n: on_devices([x[n] for x in found], *shapes[n]) for n in shapes}
        made = assemble(arrays, manifest, axis, False, chosen)
        own = made.relations[EDGES]
        if some.senders != some.receivers:
            degrees = np.bincount(some.ends[0], minlength=len(nodes[some.senders]))
            rows = (manifest.own_senders.node_rows,)
            of_parts = map(orders[some.senders].nodes_of, range(num_parts))
            leaving = on_devices([degrees[own] for own in of_parts], rows, np.float32)
            loops = on_devices([np.zeros(0, bool)] * num_parts, rows, bool)
            at_senders = Degrees(leaving, loops, None)
            none = jax.tree.map(jax.numpy.zeros_like, own.at_receivers.missing_self_loop)
            own = dataclasses.replace(
                own,
                at_senders=at_senders,
                at_receivers=dataclasses.replace(own.at_receivers, missing_self_loop=none),
                receivers_first=False,
            )
        relations[name] = own
        between = " to ".join(_tables(some))
        exchanges.setdefault(between, made.exchanges[NODES])
        ends.append((name, Ends(some.senders, some.receivers, between)))
    tables = {}
    for name, x in nodes.items():
        own = [orders[name].nodes_of(part) for part in range(num_parts)]
        rows = (max(16, *map(len, own)),)
        tables[name] = NodeTable(
            on_devices(own, rows, np.int32),
            on_devices([np.ones(len(each), bool) for each in own], rows, bool),
            nodes=on_devices([x[each] for each in own], (*rows, x.shape[1]), x.dtype),
            axis=axis,
            implementation=chosen,
        )
    manifest = next(iter(manifests.values()))
    shards = Shard(tables, relations, exchanges, None, manifest, tuple(ends))
    return ShardedGraph(shards, mesh)


def _tables(edges: Edges) -> tuple[str, str]:
    return edges.senders, edges.receivers


def _order(
    name: str, part: Array, edges: Mapping[str, Edges], parts: Mapping[str, Array]
) -> LocalOrder:
    """The order of a table, whose boundary nodes are those of all relations."""
    on_boundary = np.zeros(len(part), bool)
    for each in edges.values():
        senders, receivers = each.ends
        cut = parts[each.senders][senders] != parts[each.receivers][receivers]
        for table, own in ((each.senders, senders), (each.receivers, receivers)):
            if table == name:
                on_boundary[own[cut]] = True
    counts = np.zeros(int(max(each.max() for each in parts.values())) + 1, np.int64)
    return order_of_nodes(part.astype(np.uint8), on_boundary, np.zeros(0, np.int32), counts)


def _tabulated(
    some: Edges, pair: Sequence[Edges], orders: Mapping[str, LocalOrder], mode: str, num_parts: int
) -> PartTables:
    """The parts of a relation, with halos of all relations between its tables."""
    of_senders, of_receivers = orders[some.senders], orders[some.receivers]
    whole = mode == "domain"

    def incoming(ends: Array) -> list[PartEdges]:
        found = []
        for part in range(num_parts):
            own = np.flatnonzero(of_receivers.part[ends[1]] == part)
            options = {"one_group_of_receivers": whole, "of_senders": of_senders}
            found.append(ordered_edges(of_receivers, part, own, *ends[:, own], **options))
        return found

    halos = [each.by_sender for each in incoming(np.concatenate([e.ends for e in pair], axis=1))]
    own = incoming(some.ends)
    size = max(len(of_senders.part), len(of_receivers.part))
    graph = Graph(some.ends[0].astype(np.int32), some.ends[1].astype(np.int32), size)
    by_part = of_receivers.part[some.ends[1]]
    edge_ptr = np.cumsum([0, *np.bincount(by_part, minlength=num_parts)])
    order = dataclasses.replace(
        of_receivers, edges=np.argsort(by_part, kind="stable"), edge_ptr=edge_ptr
    )
    nothing, degrees = np.zeros(0, np.int64), global_degrees(graph)
    facts: dict[str, Any] = {"num_classes": 0, "multilabel": False}
    extents = dataclasses.replace(
        count_edges(mode, order, own, data=kinds_of(node_arrays(graph, degrees, nothing)), **facts),
        halo=pair_counts([rows.pointers for rows in halos]),
        part_senders=np.diff(of_senders.part_ptr),
        boundary_of_senders=int(of_senders.boundary.max()),
    )
    shared = SharedHalos(of_senders, halos)
    survey = Survey(graph, order, tuple(own), degrees, extents, shared)
    manifest: Manifest = describe(extents, choose_halo_unit([extents]))
    return PartTables(manifest, survey)
