"""The partitioners by name, and the one function that calls them.

SAR (section 4.2) uses METIS, P3 (section 3.1) hashing, NeuGraph (section 3.1) and ROC (section 4.2)
contiguous ranges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

import numpy as np
from numpy.typing import ArrayLike

from jaxgraph.graph import Graph
from jaxgraph.kinds import check_graph
from jaxgraph.partition.assignment import Partition, checked_num_parts
from jaxgraph.partition.choices import checked_choice
from jaxgraph.partition.cost_ranges import cheapest_ranges
from jaxgraph.partition.hashing import hash_assignment, random_assignment
from jaxgraph.partition.locality import locality_rank, orders
from jaxgraph.partition.metis import BALANCES, OBJECTIVES, metis_assignment
from jaxgraph.partition.node_cost import NodeCost, checked_node_cost
from jaxgraph.partition.ranges import equal_edges_assignment, equal_vertices_assignment
from jaxgraph.partition.typed_sets import METHODS as TYPED_METHODS
from jaxgraph.partition.typed_sets import check_follow, cut_sets
from jaxgraph.seeds import checked_seed
from jaxgraph.typed_graph import TypedGraph

_COST = "cost"
_METHODS = ("hash", "random", "equal-vertices", "equal-edges", "metis", _COST)
_BALANCES = {"equal-edges": ("nodes", "edges"), "metis": BALANCES}
"""What each partitioner can balance; the others: nodes."""
_OBJECTIVES = {"metis": OBJECTIVES}
"""What each partitioner can minimise; the others: the cut."""


def methods() -> list[str]:
    """Returns the names that ``partition`` accepts as its method."""
    return list(_METHODS)


def costless_methods() -> list[str]:
    """Returns the names of the methods that need no ``node_cost``."""
    return [name for name in _METHODS if name != _COST]


@overload
def partition(
    graph: Graph,
    num_parts: int,
    method: str = ...,
    seed: int = ...,
    balance: str = ...,
    objective: str = ...,
    order: str | None = ...,
    *,
    node_cost: ArrayLike | NodeCost | None = ...,
) -> Partition: ...


@overload
def partition(
    graph: TypedGraph,
    num_parts: int,
    method: str = ...,
    seed: int = ...,
    *,
    order: str | None = ...,
    follow: Mapping[str, str] | None = ...,
) -> dict[str, Partition]: ...


def partition(
    graph: Graph | TypedGraph,
    num_parts: int,
    method: str = "metis",
    seed: int = 0,
    balance: str = "nodes",
    objective: str = "cut",
    order: str | None = None,
    *,
    node_cost: ArrayLike | NodeCost | None = None,
    follow: Mapping[str, str] | None = None,
) -> Partition | dict[str, Partition]:
    """Assigns every node of a graph to one of num_parts parts.

    A ``TypedGraph`` is cut as a whole, so that edges of all sets are inside of parts. METIS then
    balances every set: the largest part holds at most 1.1 times the mean of the nodes of each set,
    and 1.2 times that of the edges of each set, where nodes are small enough for that.

    Args:
        graph: the graph.
        num_parts: number of parts, at most the number of nodes.
        method: "metis"; "hash", by node id alone; "random", shuffled parts of equal size;
            "equal-vertices" or "equal-edges", contiguous ranges; "cost", ranges of `order` whose
            slowest part costs least. Only "hash" may leave a part empty, where parts have few
            nodes. A ``TypedGraph`` takes "metis", "hash" or "random".
        seed: from 0 to 2**32 - 1; the same arguments give the same partition.
        balance: what METIS balances: "nodes", "edges" (counted at the receiver's part) or "labels"
            (nodes of the training mask). The other methods are named after their balance.
        objective: what METIS minimises: "cut" (edges between parts) or "volume" (rows to send).
        order: order of the nodes of a part in memory, which affects only speed, even with one part:
            None, as in the graph; or "rcm", "degree" or "metis", see ``locality_rank``. Method
            "cost" cuts ranges of this order; None: of the graph's own order or of "metis",
            whichever is predicted to cost less.
        node_cost: for method "cost": float [num_nodes], the cost of each node with the edges that
            enter it; or a ``NodeCost``, which includes halo rows and padding, such as that of
            ``jaxgraph.planner.node_cost(model, graph)``.
        follow: of a ``TypedGraph``: for the name of a set, that of another. Each node of the first
            goes to the part in which it has most neighbours of the second, and is not balanced.

    Returns:
        The partition; of a ``TypedGraph`` one for each set of nodes, by name.

    Raises:
        ValueError: a name is unknown or not for this method or graph, the seed is out of range,
            there are more parts than nodes, balance is "labels" and the graph has no training mask,
            or node_cost is missing, no vector of numbers, negative, not finite, of another length
            or not for this method.
        RuntimeError: METIS crashed, failed, or did not end in time.

    References:
        SAR, section 4.2 (METIS); P3, section 3.1 (hash); ROC, section 4.2 (ranges, cost).
    """
    if isinstance(graph, TypedGraph):
        given = {"balance": balance != "nodes", "objective": objective != "cut"}
        given["node_cost"] = node_cost is not None
        _check_for_sets(graph, method, [name for name, is_given in given.items() if is_given])
        check_follow(graph, follow or {})
    else:
        check_graph(graph, "partition(graph, num_parts)")
        if follow is not None:
            raise ValueError("follow: not for a Graph, which has one set of nodes; leave it out.")
    check_names(method, balance, objective, order)
    seed = checked_seed("seed", seed)
    num_parts = checked_num_parts(num_parts)
    if num_parts > graph.num_nodes:
        raise ValueError(
            f"num_parts: got {num_parts} for a graph of {graph.num_nodes} nodes; expected at most "
            f"one part per node. Use num_parts={graph.num_nodes} or fewer."
        )
    if isinstance(graph, TypedGraph):
        return cut_sets(graph, num_parts, method, seed, order, follow or {})
    if method == _COST:
        cost = checked_node_cost(node_cost, graph.num_nodes)
        ranks = _ranks_to_cut(graph, order, seed, num_parts)
        assignment, rank = cheapest_ranges(graph, cost, ranks, num_parts)
        return Partition(assignment, num_parts, method, rank)
    if node_cost is not None:
        raise ValueError(f"node_cost: {method!r} takes no cost of nodes; use method='cost'.")
    rank = None if order is None else locality_rank(graph, order, seed)
    if method == "metis":
        assignment = metis_assignment(
            graph, num_parts, seed=seed, balance=balance, objective=objective
        )
    elif method == "equal-edges":
        assignment = equal_edges_assignment(graph.in_degrees(), num_parts)
    elif method == "equal-vertices":
        assignment = equal_vertices_assignment(graph.num_nodes, num_parts)
    else:
        by_id = {"hash": hash_assignment, "random": random_assignment}
        assignment = by_id[method](graph.num_nodes, num_parts, seed)
    return Partition(assignment, num_parts, method, rank)


def _check_for_sets(graph: TypedGraph, method: str, given: Sequence[str]) -> None:
    if given:
        raise ValueError(
            f"{', '.join(given)}: not for a TypedGraph, whose sets are balanced one by one; leave "
            "it out."
        )
    checked_choice("method", method, TYPED_METHODS)


def check_names(
    method: str, balance: str = "nodes", objective: str = "cut", order: str | None = None
) -> None:
    """Checks the names among the arguments of ``partition``, before there is a graph."""
    checked_choice("method", method, _METHODS)
    checked_choice("balance", balance, BALANCES)
    checked_choice("objective", objective, OBJECTIVES)
    if order is not None:
        checked_choice("order", order, orders())
    _check_offered("balance", balance, method, _BALANCES.get(method, ("nodes",)))
    _check_offered("objective", objective, method, _OBJECTIVES.get(method, ("cut",)))


def _ranks_to_cut(
    graph: Graph, order: str | None, seed: int, num_parts: int
) -> list[np.ndarray | None]:
    """The orders whose ranges a cost compares, as ranks; None: the graph's own."""
    rank = locality_rank(graph, order or "metis", seed, num_parts=num_parts)
    return [rank] if order else [None, rank]


def _check_offered(argument: str, name: str, method: str, offered: Sequence[str]) -> None:
    if name not in offered:
        raise ValueError(
            f"{argument}: {method!r} cannot aim at {name!r}, only at {', '.join(offered)}; "
            "use method='metis'."
        )
