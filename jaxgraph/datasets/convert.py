"""Graphs from and to scipy, and from networkx."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from jaxgraph.graph import Graph

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["from_networkx", "from_scipy", "to_scipy"]


def from_scipy(adjacency: sp.spmatrix | sp.sparray, **fields: Any) -> Graph:
    """Makes a graph from a sparse adjacency matrix; the entry [i, j] is the edge i -> j.

    Args:
        adjacency: [num_nodes, num_nodes], of any sparse format; its values become the weights of
            the edges, unless all are 1. A zero is no edge, stored or not.
        **fields: further arguments of ``Graph.from_edges``, as ``nodes`` and ``labels``.

    Returns:
        The graph.

    Raises:
        ValueError: the matrix is not sparse or not square, or as ``Graph``.
    """
    if not sp.issparse(adjacency):
        raise ValueError(
            f"adjacency: got a {type(adjacency).__name__}; expected a scipy sparse matrix. "
            "scipy.sparse.coo_array makes one from a dense array."
        )
    entries = sp.coo_array(adjacency)
    shape = entries.shape
    if shape is None or len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"adjacency: got shape {shape}; expected [num_nodes, num_nodes].")
    stored = entries.data != 0
    senders, receivers, weights = (x[stored] for x in (entries.row, entries.col, entries.data))
    if not (weights == 1).all():
        fields = {"edge_weight": weights} | fields
    fields = {"num_nodes": shape[0]} | fields
    return Graph.from_edges(senders, receivers, **fields)


def to_scipy(graph: Graph) -> sp.csr_array:
    """Makes the sparse adjacency matrix of a graph; the edge i -> j is the entry [i, j].

    Args:
        graph: the graph.

    Returns:
        float32 [num_nodes, num_nodes] in CSR format, of weights, or of ones; repeated edges add up.
    """
    weights = graph.edge_weight
    if weights is None:
        weights = np.ones(graph.num_edges, np.float32)
    shape = (graph.num_nodes, graph.num_nodes)
    return sp.csr_array((weights, (graph.senders, graph.receivers)), shape=shape)


def from_networkx(
    graph: nx.Graph,
    *,
    weight: str | None = None,
    node_order: list[Any] | None = None,
    **fields: Any,
) -> Graph:
    """Makes a graph from a networkx graph; an undirected edge becomes two, a self-loop one.

    Args:
        graph: any graph of networkx; of a multigraph, each parallel edge is kept.
        weight: the edge attribute that holds weights, or None.
        node_order: the nodes in the order of their ids; None takes that of ``graph.nodes``.
        **fields: further arguments of ``Graph.from_edges``, as ``nodes`` and ``labels``, in the
            same order.

    Returns:
        The graph.

    Raises:
        ValueError: an edge lacks the weight, the order is not one of the graph's nodes, or as
            ``Graph``.
    """
    order = list(graph.nodes) if node_order is None else node_order
    ids = {node: number for number, node in enumerate(order)}
    if len(ids) != len(order) or ids.keys() != set(graph.nodes):
        raise ValueError(
            f"node_order: got {len(order)} nodes, which are not the graph's {len(graph)} in some "
            "order; expected each once."
        )
    edges = list(graph.edges(data=True))
    pairs = np.array([(ids[u], ids[v]) for u, v, _ in edges], np.int64).reshape(-1, 2)
    mirrored = (
        np.zeros(0, np.int64) if graph.is_directed() else np.flatnonzero(pairs[:, 0] != pairs[:, 1])
    )
    if weight is not None:
        lacking = [(u, v) for u, v, data in edges if weight not in data]
        if lacking:
            raise ValueError(f"weight: the edge {lacking[0]} has no attribute {weight!r}.")
        values = np.array([data[weight] for _, _, data in edges], np.float32)
        fields = {"edge_weight": np.concatenate([values, values[mirrored]])} | fields
    return Graph.from_edges(
        np.concatenate([pairs[:, 0], pairs[mirrored, 1]]),
        np.concatenate([pairs[:, 1], pairs[mirrored, 0]]),
        num_nodes=len(order),
        **fields,
    )
