"""One partition of all sets of a graph of several sets, with many edges inside of parts.

METIS cuts the graph of the nodes and edges of all sets by one weight. Then nodes move until the
parts have alike numbers of nodes of each set, and of edges of each set (Karypis and Kumar,
"Multilevel Algorithms for Multi-Constraint Graph Partitioning", 1998).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy import sparse

from jaxgraph.partition.adjacency import Adjacency, undirected_adjacency
from jaxgraph.partition.assignment import Partition
from jaxgraph.partition.hashing import hash_assignment, random_assignment
from jaxgraph.partition.locality import locality_rank
from jaxgraph.partition.metis import limit_of_part, metis_assignment
from jaxgraph.partition.rebalancing import rebalance
from jaxgraph.typed_graph import TypedGraph

_BY_ID = {"hash": hash_assignment, "random": random_assignment}
METHODS = ("metis", *_BY_ID)
"""Partitioners of several sets."""
_TOLERANCES = ((1.6, 1.6), (1.4, 1.4), (1.3, 1.3), (1.2, 1.2), (1.1, 1.2))
"""Of nodes and of edges, the largest part over the mean; in steps, since parts that fill up early
block later moves."""


def check_follow(graph: TypedGraph, follow: Mapping[str, str]) -> None:
    """Checks that sets follow sets that are balanced, and have edges with these."""
    between = {frozenset((sender, receiver)) for sender, _, receiver in graph.edge_sets}
    for name, leader in follow.items():
        if name == leader or leader in follow or frozenset((name, leader)) not in between:
            raise ValueError(
                f"follow: got {dict(follow)}; expected for the name of a set of nodes that of "
                f"another that follows none, with edges between {name!r} and {leader!r}."
            )


def cut_sets(
    graph: TypedGraph,
    num_parts: int,
    method: str,
    seed: int,
    order: str | None,
    follow: Mapping[str, str],
) -> dict[str, Partition]:
    """Cuts all sets of nodes into parts."""
    union, sets = graph.as_one(), graph.node_sets
    ends = np.cumsum([nodes.num_nodes for nodes in sets.values()])[:-1]
    if method == "metis":
        adjacency = undirected_adjacency(union.senders, union.receivers, union.num_nodes)
        found = metis_assignment(union, num_parts, seed=seed, adjacency=adjacency)
        found = np.split(_balanced(found, adjacency, graph, num_parts, follow), ends)
    else:
        found = [_BY_ID[method](nodes.num_nodes, num_parts, seed) for nodes in sets.values()]
    parts = dict(zip(sets, found, strict=True))
    for name, leader in follow.items():
        parts[name] = _following(name, leader, graph, parts, num_parts)
    ranks: list[np.ndarray | None] = [None] * len(sets)
    if order is not None:
        of_all = np.split(locality_rank(union, order, seed), ends)
        ranks = [np.argsort(np.argsort(rank)) for rank in of_all]
    return {
        name: Partition(part, num_parts, method, rank)
        for (name, part), rank in zip(parts.items(), ranks, strict=True)
    }


def _balanced(
    assignment: np.ndarray,
    adjacency: Adjacency,
    graph: TypedGraph,
    num_parts: int,
    follow: Mapping[str, str],
) -> np.ndarray:
    """Moves nodes until parts have alike shares of each set; those that follow do not count."""
    led = [name for name in graph.node_sets if name not in follow]
    first = np.cumsum([0, *(nodes.num_nodes for nodes in graph.node_sets.values())])
    rows = {name: slice(*first[i : i + 2]) for i, name in enumerate(graph.node_sets)}
    entered = [ends for ends in graph.edge_sets if ends[2] in led]
    weights = np.zeros((len(led) + len(entered), adjacency.num_nodes), np.int64)
    for weight, name in zip(weights[: len(led)], led, strict=True):
        weight[rows[name]] = 1
    for weight, ends in zip(weights[len(led) :], entered, strict=True):
        count = graph.node_sets[ends[2]].num_nodes
        weight[rows[ends[2]]] = np.bincount(graph.edge_sets[ends].receivers, minlength=count)
    for of_nodes, of_edges in _TOLERANCES:
        wanted = [of_nodes] * len(led) + [of_edges] * len(entered)
        limits = [
            limit_of_part(x, num_parts, most) for x, most in zip(weights, wanted, strict=True)
        ]
        assignment = rebalance(assignment, num_parts, adjacency, weights, np.array(limits))
    return assignment


def _following(
    name: str, leader: str, graph: TypedGraph, parts: Mapping[str, np.ndarray], num_parts: int
) -> np.ndarray:
    """The part in which each node has the most neighbours of another set; its own without any."""
    shape = (len(parts[name]), num_parts)
    counts = sparse.coo_array((np.ones(shape[0]) / 2, (np.arange(shape[0]), parts[name])), shape)
    for (sender, _, receiver), edges in graph.edge_sets.items():
        ends = {sender: edges.senders, receiver: edges.receivers}
        if ends.keys() == {name, leader}:
            to = (np.ones(edges.num_edges), (ends[name], parts[leader][ends[leader]]))
            counts = counts + sparse.coo_array(to, shape)
    return np.asarray(counts.tocsr().argmax(axis=1)).reshape(-1).astype(np.int32)
