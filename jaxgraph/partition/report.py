"""Quality of a partition: the load of each part, the rows it must fetch, and their balance.

An edge belongs to the part of its receiver. A part's halo is the set of nodes of other parts that
send to it: the rows it must fetch in each layer (SAR, section 3.2: the vertices of V_{p,q} for q !=
p). The replication factor is the number of nodes and halo rows, over the number of nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jaxgraph.graph import Graph
from jaxgraph.kinds import check_graph, kind_of
from jaxgraph.partition.assignment import Partition
from jaxgraph.partition.node_cost import NodeCost, checked_node_cost
from jaxgraph.typed_graph import TypedGraph


@dataclass(frozen=True, eq=False)
class PartitionReport:
    """The quality of a partition; see ``report``.

    Args:
        method: the name of the partitioner.
        num_parts: number of parts, P.
        nodes: int64 [P], the nodes of each part.
        edges: int64 [P], the edges that enter each part's nodes, from anywhere.
        labelled: int64 [P], the nodes of each part that are in the training mask.
        halo_rows: int64 [P], the nodes of other parts that send to each part.
        halo_pairs: int64 [P, P], the nodes of part q that send to part p, at [p, q]; 0 at [p, p].
        edge_cut: number of edges between different parts.
        edge_cut_share: edge_cut over the number of edges.
        halo_total: number of halo rows of all parts.
        replication: (num_nodes + halo_total) / num_nodes.
        node_balance: max / mean of nodes.
        edge_balance: max / mean of edges.
        label_balance: max / mean of labelled.
        halo_balance: max / mean of halo_rows.
        exchange_padding: rows sent if every pair of parts exchanges as many as the largest pair,
            over halo_total.
        predicted_cost: float64 [P], the cost of each part by the given node_cost, or None.
        cost_balance: max / mean of predicted_cost, or None.
        set_balance: of a ``TypedGraph``: max / mean of the nodes of each set, and of the edges of
            each set, by the name of the set or of its relation; else None.
    """

    method: str
    num_parts: int
    nodes: np.ndarray
    edges: np.ndarray
    labelled: np.ndarray
    halo_rows: np.ndarray
    halo_pairs: np.ndarray
    edge_cut: int
    edge_cut_share: float
    halo_total: int
    replication: float
    node_balance: float
    edge_balance: float
    label_balance: float
    halo_balance: float
    exchange_padding: float
    predicted_cost: np.ndarray | None = None
    cost_balance: float | None = None
    set_balance: Mapping[str, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields by name, arrays as lists: ready for JSON."""
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in vars(self).items()
        }


def report(
    graph: Graph | TypedGraph,
    partition: Partition | Mapping[str, Partition],
    node_cost: ArrayLike | NodeCost | None = None,
) -> PartitionReport:
    """Measures a partition of a graph.

    Args:
        graph: the graph; the nodes and edges of all sets of a ``TypedGraph`` are counted together.
        partition: a partition of its nodes; of a ``TypedGraph`` one for each set, by name.
        node_cost: a cost of nodes, as for ``jaxgraph.partition.partition``, or None; not for a
            ``TypedGraph``.

    Returns:
        The report. A ratio whose mean or total is zero is 1.

    Raises:
        ValueError: the partition or the cost has another number of nodes than the graph, or there
            is a cost for a ``TypedGraph``.
    """
    if isinstance(graph, TypedGraph):
        if node_cost is not None:
            raise ValueError("node_cost: not for a TypedGraph; leave it out.")
        return _report_of_sets(graph, partition)
    check_graph(graph, "report(graph, partition)")
    if not isinstance(partition, Partition):
        raise ValueError(
            f"report(graph, partition): got {kind_of(partition)} for the partition; expected the "
            "result of jaxgraph.partition.partition(graph, num_parts)."
        )
    if partition.num_nodes != graph.num_nodes:
        raise ValueError(
            f"partition: assigns {partition.num_nodes} nodes and the graph has {graph.num_nodes}; "
            "expected a partition of this graph."
        )
    cost = None if node_cost is None else checked_node_cost(node_cost, graph.num_nodes)
    num_parts, owner = partition.num_parts, partition.assignment
    edges = np.bincount(owner, graph.in_degrees(), num_parts).astype(np.int64)
    edge_cut = int(np.count_nonzero(owner[graph.senders] != owner[graph.receivers]))
    halo_pairs = count_halo_pairs(graph, partition)
    trained = owner[:0] if graph.train_mask is None else owner[graph.train_mask]
    labelled = np.bincount(trained, minlength=num_parts)
    costs = None if cost is None else cost.of_parts(owner, halo_pairs)
    return report_of_counts(
        partition.method, partition.counts(), edges, labelled, halo_pairs, edge_cut, costs
    )


def _report_of_sets(graph: TypedGraph, partitions: Any) -> PartitionReport:
    """Measures the partition of a graph of several sets, all of them together and one by one."""
    check_partitions(graph, partitions)
    parts = {name: partitions[name] for name in graph.node_sets}
    first = next(iter(parts.values()))
    assignment = np.concatenate([each.assignment for each in parts.values()])
    found = report(_with_labelled(graph), Partition(assignment, first.num_parts, first.method))
    balance = {name: _max_over_mean(each.counts()) for name, each in parts.items()}
    for name, ends in graph.relation_names().items():
        of_edges = parts[ends[2]].assignment[graph.edge_sets[ends].receivers]
        balance[name] = _max_over_mean(np.bincount(of_edges, minlength=found.num_parts))
    return replace(found, set_balance=balance)


def _with_labelled(graph: TypedGraph) -> Graph:
    """The nodes and edges of all sets in one graph, with its training nodes."""
    masks = [
        np.zeros(nodes.num_nodes, bool) if nodes.train_mask is None else nodes.train_mask
        for nodes in graph.node_sets.values()
    ]
    mask = np.concatenate(masks)
    return graph.as_one().replace(train_mask=mask if mask.any() else None)


def check_partitions(graph: TypedGraph, partition: Any) -> None:
    """Checks that there is a partition for each set of nodes, all into as many parts."""
    sets = list(graph.node_sets)
    if not isinstance(partition, Mapping) or set(partition) != set(sets):
        what = sorted(partition) if isinstance(partition, Mapping) else kind_of(partition)
        raise ValueError(
            f"partition: got {what}; expected a Partition for each set of nodes, by its name: "
            f"{', '.join(map(repr, sets))}"
        )
    for name, each in partition.items():
        nodes = graph.node_sets[name].num_nodes
        if not isinstance(each, Partition) or each.num_nodes != nodes:
            what = repr(each) if isinstance(each, Partition) else kind_of(each)
            raise ValueError(
                f"partition[{name!r}]: got {what}; expected a Partition of its {nodes} nodes"
            )
    counts = {each.num_parts for each in partition.values()}
    if len(counts) > 1:
        raise ValueError(
            f"partition: the sets are cut into {sorted(counts)} parts; expected as many for each"
        )


def report_of_counts(
    method: str,
    nodes: np.ndarray,
    edges: np.ndarray,
    labelled: np.ndarray,
    halo_pairs: np.ndarray,
    edge_cut: int,
    costs: np.ndarray | None = None,
) -> PartitionReport:
    """Makes the report of a partition that was counted elsewhere."""
    num_parts, num_nodes = len(nodes), int(nodes.sum())
    halo_rows = halo_pairs.sum(axis=1)
    halo_total = int(halo_rows.sum())
    slots = num_parts * (num_parts - 1) * int(halo_pairs.max())
    return PartitionReport(
        method=method,
        num_parts=num_parts,
        nodes=nodes,
        edges=edges,
        labelled=labelled,
        halo_rows=halo_rows,
        halo_pairs=halo_pairs,
        edge_cut=edge_cut,
        edge_cut_share=edge_cut / max(int(edges.sum()), 1),
        halo_total=halo_total,
        replication=(num_nodes + halo_total) / num_nodes,
        node_balance=_max_over_mean(nodes),
        edge_balance=_max_over_mean(edges),
        label_balance=_max_over_mean(labelled),
        halo_balance=_max_over_mean(halo_rows),
        exchange_padding=slots / halo_total if halo_total else 1.0,
        predicted_cost=costs,
        cost_balance=None if costs is None else _max_over_mean(costs),
    )


def count_halo_pairs(graph: Graph, partition: Partition) -> np.ndarray:
    """Counts the nodes of each part that send to each other part."""
    owner, num_parts = partition.assignment, partition.num_parts
    receiver_parts = owner[graph.receivers]
    crossing = owner[graph.senders] != receiver_parts
    rows = graph.senders[crossing].astype(np.int64) * num_parts + receiver_parts[crossing]
    # np.unique hashes, which takes ten times as long as a sort on millions of rows.
    rows.sort()
    rows = rows[np.diff(rows, prepend=-1) != 0]
    pairs = (rows % num_parts) * num_parts + owner[rows // num_parts]
    counts = np.bincount(pairs, minlength=num_parts * num_parts)
    return counts.reshape(num_parts, num_parts)


def _max_over_mean(values: np.ndarray) -> float:
    total = values.sum()
    return float(values.max() * values.size / total) if total else 1.0
