"""Quality of a partition: the load of each part, the rows it must fetch, and their balance.

An edge belongs to the part of its receiver. A part's halo is the set of nodes of other parts that
send to it: the rows it must fetch in each layer (SAR, section 3.2: the vertices of V_{p,q} for q !=
p). The replication factor is the number of nodes and halo rows, over the number of nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jaxgraph.graph import Graph
from jaxgraph.kinds import check_graph, kind_of
from jaxgraph.partition.assignment import Partition
from jaxgraph.partition.node_cost import NodeCost, checked_node_cost


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

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields by name, arrays as lists: ready for JSON."""
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in vars(self).items()
        }


def report(
    graph: Graph, partition: Partition, node_cost: ArrayLike | NodeCost | None = None
) -> PartitionReport:
    """Measures a partition of a graph.

    Args:
        graph: the graph.
        partition: a partition of its nodes.
        node_cost: a cost of nodes, as for ``jaxgraph.partition.partition``, or None.

    Returns:
        The report. A ratio whose mean or total is zero is 1.

    Raises:
        ValueError: the partition or the cost has another number of nodes than the graph.
    """
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
