"""The parts of a graph of several sets of nodes and edges.

Each set of nodes is a table, whose order follows from the edges of all sets. Each set of edges is a
relation. The relations between a pair of tables share their halos.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.layout.description import FEWEST_ROWS, choose_halo_unit, describe
from jaxgraph.layout.extents import Extents, count_edges, kinds_of
from jaxgraph.layout.halo import pair_counts
from jaxgraph.layout.local_order import LocalOrder, SharedHalos, order_of_nodes
from jaxgraph.layout.manifest import SENDERS, Arrays, Counts, Manifest
from jaxgraph.layout.message_flow import FlowPlan
from jaxgraph.layout.node_tables import Degrees, edge_arrays, node_arrays
from jaxgraph.layout.part_edges import PartEdges, ordered_edges
from jaxgraph.layout.part_tables import part_arrays
from jaxgraph.layout.survey import Survey
from jaxgraph.layout.typed_manifest import Ends, TypedManifest
from jaxgraph.layout.typed_pairs import with_pairs
from jaxgraph.partition.assignment import Partition
from jaxgraph.partition.sorting import smallest_unsigned
from jaxgraph.typed_graph import EdgeSet, TypedGraph

_NOTHING = np.zeros(0, np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class TableParts:
    """The parts of a table.

    Attributes:
      manifest: counts and padded shapes.
      survey: its nodes, ordered.
    """

    manifest: Manifest
    survey: Survey

    def part(self, index: int) -> Arrays:
        """The arrays of one part by name, not padded."""
        return self.survey.node_data(index) | self.survey.feature_data(index)


@dataclasses.dataclass(frozen=True, eq=False)
class RelationParts:
    """The parts of a relation; see `jaxgraph.layout.survey.OrderedParts`.

    Attributes:
      manifest: counts and padded shapes.
      edges: the edges.
      order: the owners of the receivers, and of the edges.
      incoming: the edges that end in each part.
      degrees: arrays of the degrees by name, [receivers], or [senders] under `SENDERS`.
      shared: the halos of the exchange; None: those of these edges.
    """

    manifest: Manifest
    edges: EdgeSet
    order: LocalOrder
    incoming: tuple[PartEdges, ...]
    degrees: Mapping[str, np.ndarray]
    shared: SharedHalos | None

    def part(self, index: int) -> Arrays:
        """The arrays of one part by name, not padded."""
        return part_arrays(self, index, self.manifest, self.shared)

    def node_data(self, part: int) -> Arrays:
        """The degrees of a part's nodes, by name."""
        return _degrees_of(self.degrees, self.order.nodes_of(part), self._senders_of(part))

    def edge_data(self, part: int, edges: np.ndarray) -> Arrays:
        """The user's data of some edges, arrays [edges, ...] by name."""
        return edge_arrays(self.edges, edges)

    def feature_data(self, part: int) -> Arrays:
        """Nothing: features are those of a table."""
        return {}

    def _senders_of(self, part: int) -> np.ndarray:
        return _NOTHING if self.shared is None else self.shared.order.nodes_of(part)


@dataclasses.dataclass(frozen=True, eq=False)
class TypedTables:
    """The parts of a graph of several sets in memory, each made on demand.

    Attributes:
      manifest: a `TypedManifest`.
      members: the parts of tables and relations, by the prefix of the names of their arrays.
    """

    manifest: Any
    members: Mapping[str, TableParts | RelationParts]

    def part(self, index: int) -> Arrays:
        """The arrays of one part by name, not padded."""
        found: Arrays = {}
        for prefix, source in self.members.items():
            arrays = source.part(index)
            found |= {prefix + name: arrays[name] for name, *_ in source.manifest.shapes}
        return found


def tabulate_typed(
    graph: TypedGraph,
    partitions: Mapping[str, Partition],
    mode: str,
    plan: FlowPlan | None = None,
) -> TypedTables:
    """Orders the edges of every part and finds the shapes that all parts share.

    A graph with a plan of message flow has one set of nodes, and one of edges.
    """
    found = with_pairs(graph, partitions)
    names, graph, partitions = graph.relation_names(), found.graph, found.partitions
    parts = {name: each.assignment for name, each in partitions.items()}
    num_parts = next(iter(partitions.values())).num_parts
    on_boundary = {**_on_boundary(graph, parts), **found.on_boundary}
    orders = {
        name: order_of_nodes(
            parts[name].astype(smallest_unsigned(num_parts - 1)),
            on_boundary[name],
            np.zeros(0, np.int32),
            np.zeros(num_parts, np.int64),
            partitions[name].rank,
            None if plan is None else plan.hops,
        )
        for name in graph.node_sets
    }
    members: dict[str, TableParts | RelationParts] = {}
    blocks, bases = {}, {}
    for name, each in found.paired.items():
        sender, _, receiver = names[name]
        # What the backward sends has an exchange of its own.
        for paired, base in ((each, receiver), (each.back, f"{sender} back")):
            assert paired is not None
            blocks[paired.table], bases[paired.table] = paired.block, base
    tables = {
        name: _table(graph.node_sets[name], orders[name], mode, blocks.get(name, 1))
        for name in orders
    }
    ends = {
        name: Ends(sender, receiver, f"{sender} to {bases.get(receiver, receiver)}")
        for name, (sender, _, receiver) in graph.relation_names().items()
    }
    relations = _relations(graph, ends, orders, mode)
    if plan is not None:
        ((name, own),) = ends.items()
        edges = graph.edge_sets[names[name]]
        for layer, of_layer in enumerate(plan.flow.relations):
            ends[of_layer] = dataclasses.replace(own, exchange=of_layer)
            relations[of_layer] = _of_layer(plan, layer, edges, orders[own.senders], mode)
    members |= {f"tables/{name}/": each for name, each in tables.items()}
    members |= {f"relations/{name}/": each for name, each in relations.items()}
    manifest = TypedManifest(
        tuple((name, each.manifest) for name, each in tables.items()),
        tuple((name, each.manifest) for name, each in relations.items()),
        tuple(ends.items()),
        tuple(found.paired.items()),
        graph.target,
        None if plan is None else plan.flow,
    )
    return TypedTables(manifest, members)


def _of_layer(
    plan: FlowPlan, layer: int, edges: EdgeSet, order: LocalOrder, mode: str
) -> RelationParts:
    """The relation of a layer, from the first rows of a table to the first of these."""
    of_layer, most = plan.edges_of(layer, edges), plan.most_hops(layer)
    orders = {"senders": order.leading(plan.hops <= most + 1)}
    orders["receivers"] = order.leading(plan.hops <= most)
    ends = {"layer": Ends("senders", "receivers", "layer")}
    # The degrees are those of the whole graph, which the relation of all edges has.
    return _relations_of({"layer": of_layer}, ends, orders, mode, has_degrees=False)["layer"]


def _on_boundary(graph: TypedGraph, parts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """bool [nodes] by set: the nodes with an edge of any set to another part."""
    found = {name: np.zeros(len(each), bool) for name, each in parts.items()}
    for (sender, _, receiver), edges in graph.edge_sets.items():
        cut = parts[sender][edges.senders] != parts[receiver][edges.receivers]
        found[sender][edges.senders[cut]] = True
        found[receiver][edges.receivers[cut]] = True
    return found


def _table(graph: Graph, order: LocalOrder, mode: str, block: int) -> TableParts:
    zeros = np.zeros((order.num_parts, order.num_parts), np.int64)
    extents = Extents(
        mode=mode,
        counts=Counts(graph.num_nodes, 0, 0),
        num_classes=graph.num_classes,
        multilabel=graph.is_multilabel,
        part_nodes=np.diff(order.part_ptr),
        part_edges=zeros[0],
        boundary=int(order.boundary.max()),
        halo=zeros,
        reach=zeros,
        lengths=None,
        has_repetitions=False,
        data=kinds_of(node_arrays(graph, {}, _NOTHING)),
    )
    survey = Survey(graph, order, (), {}, extents)
    least, sizes = max(FEWEST_ROWS, block), survey.feature_sizes
    manifest = describe(extents, choose_halo_unit([extents]), 1, least, sizes)
    return TableParts(manifest, survey)


def _relations(
    graph: TypedGraph, ends: Mapping[str, Ends], orders: Mapping[str, LocalOrder], mode: str
) -> dict[str, RelationParts]:
    names, found = graph.relation_names(), {}
    by_exchange: dict[str, list[str]] = {}
    for name, each in ends.items():
        by_exchange.setdefault(each.exchange, []).append(name)
    for of_exchange in by_exchange.values():
        sets = {name: graph.edge_sets[names[name]] for name in of_exchange}
        found |= _relations_of(sets, ends, orders, mode)
    return {name: found[name] for name in names}


def _relations_of(
    sets: Mapping[str, EdgeSet],
    ends: Mapping[str, Ends],
    orders: Mapping[str, LocalOrder],
    mode: str,
    *,
    has_degrees: bool = True,
) -> dict[str, RelationParts]:
    """The relations of an exchange."""
    first = next(iter(sets))
    of_senders = orders[ends[first].senders]
    of_receivers = {
        name: _with_edges(orders[ends[name].receivers], edges.receivers)
        for name, edges in sets.items()
    }
    incoming = {
        name: _incoming(edges.senders, edges.receivers, of_receivers[name], of_senders, mode)
        for name, edges in sets.items()
    }
    shared = None
    if len(sets) > 1 or ends[first].senders != ends[first].receivers:
        # Edges into pairs have the senders of the edges whose types these are.
        table = ends[first].receivers
        between = [edges for name, edges in sets.items() if ends[name].receivers == table]
        senders = np.concatenate([edges.senders for edges in between])
        receivers = np.concatenate([edges.receivers for edges in between])
        of_all = _with_edges(orders[table], receivers)
        rows = _incoming(senders, receivers, of_all, of_senders, mode)
        shared = SharedHalos(of_senders, [edges.by_sender for edges in rows])
    found = {}
    for name, edges in sets.items():
        order, degrees = of_receivers[name], {}
        if has_degrees:
            degrees = _degrees(edges, order, order if shared is None else shared.order)
        of_edges = edges, order, incoming[name], degrees, shared
        found[name] = _relation(*of_edges, mode, is_first=name == first)
    return found


def _with_edges(order: LocalOrder, receivers: np.ndarray) -> LocalOrder:
    """The order of a table with that of the edges that end there."""
    by_part = order.part[receivers]
    counts = np.bincount(by_part, minlength=order.num_parts)
    return dataclasses.replace(
        order,
        edges=np.argsort(by_part, kind="stable"),
        edge_ptr=np.concatenate([[0], np.cumsum(counts)]),
    )


def _incoming(
    senders: np.ndarray, receivers: np.ndarray, order: LocalOrder, of_senders: LocalOrder, mode: str
) -> tuple[PartEdges, ...]:
    def of_part(part: int) -> PartEdges:
        own = order.edges[order.edge_ptr[part] : order.edge_ptr[part + 1]]
        return ordered_edges(
            order,
            part,
            own,
            senders[own],
            receivers[own],
            one_group_of_receivers=mode == "domain",
            of_senders=of_senders,
        )

    return tuple(map(of_part, range(order.num_parts)))


def _relation(
    edges: EdgeSet,
    order: LocalOrder,
    incoming: tuple[PartEdges, ...],
    degrees: Mapping[str, np.ndarray],
    shared: SharedHalos | None,
    mode: str,
    *,
    is_first: bool,
) -> RelationParts:
    data = _degrees_of(degrees, _NOTHING, _NOTHING) | edge_arrays(edges, _NOTHING)
    extents = count_edges(
        mode,
        order,
        incoming,
        num_classes=0,
        multilabel=False,
        data=kinds_of(data),
        num_edge_types=edges.num_edge_types,
    )
    if shared is not None:
        halo = pair_counts([rows.pointers for rows in shared.of_parts])
        extents = dataclasses.replace(
            extents,
            counts=dataclasses.replace(extents.counts, halo_rows_needed=int(halo.sum())),
            halo=halo,
            part_senders=np.diff(shared.order.part_ptr),
            boundary_of_senders=int(shared.order.boundary.max()),
        )
    manifest = describe(extents, choose_halo_unit([extents]))
    if not is_first:
        manifest = manifest.listing_only(lambda name: not name.startswith("send/"))
    return RelationParts(manifest, edges, order, incoming, degrees, shared)


def _degrees(edges: EdgeSet, of_receivers: LocalOrder, of_senders: LocalOrder) -> Arrays:
    """The degrees of the nodes at both ends; those of senders where they are another table."""
    weight, is_within = edges.edge_weight, of_senders.part is of_receivers.part
    found = Degrees(len(of_receivers.part), weighted=weight is not None)
    found.add(edges.senders if is_within else edges.receivers, edges.receivers, weight)
    if is_within:
        return found.arrays()
    leaving = np.bincount(edges.senders, weight, len(of_senders.part)).astype(np.float64)
    # Nodes of other tables lack no self-loop.
    return found.arrays() | {
        "missing_self_loop": np.zeros(len(of_receivers.part), bool),
        f"{SENDERS}/missing_self_loop": np.zeros(len(of_senders.part), bool),
        f"{SENDERS}/weighted_in_degree": leaving,
    }


def _degrees_of(
    degrees: Mapping[str, np.ndarray], receivers: np.ndarray, senders: np.ndarray
) -> Arrays:
    return {
        name: values[senders if name.startswith(f"{SENDERS}/") else receivers]
        for name, values in degrees.items()
    }
