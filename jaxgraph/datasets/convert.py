"""Graphs from and to SciPy, and from networkx."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from jaxgraph.graph import Graph
from jaxgraph.graph_arrays import NODE_FIELDS
from jaxgraph.kinds import check_graph, kind_of

if TYPE_CHECKING:
    import networkx as nx

_EDGE_FIELDS = ("edges", "edge_type")
_MATRIX_FIELDS = ("nodes", "edges")
_CATEGORY_FIELDS = ("labels", "edge_type")


def from_scipy(adjacency: sp.spmatrix | sp.sparray, **fields: Any) -> Graph:
    """Makes a graph from a sparse adjacency matrix; the entry [i, j] is the edge i -> j.

    Args:
        adjacency: [num_nodes, num_nodes], of any sparse format; its values become the weights of
            the edges, unless all are 1. A stored zero is no edge.
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
    if entries.data.dtype.kind not in "biuf":
        raise ValueError(f"adjacency: got values of {entries.data.dtype}; expected real numbers.")
    kept = entries.data != 0
    values = entries.data[kept]
    if not (values == 1).all():
        fields = {"edge_weight": values} | fields
    fields = {"num_nodes": shape[0]} | fields
    return Graph.from_edges(entries.row[kept], entries.col[kept], **fields)


def to_scipy(graph: Graph) -> sp.csr_array:
    """Makes the sparse adjacency matrix of a graph; the edge i -> j is the entry [i, j].

    Args:
        graph: the graph.

    Returns:
        float32 [num_nodes, num_nodes] in CSR format, of weights or ones; repeated edges are summed.
    """
    check_graph(graph, "to_scipy(graph)")
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

    A field of ``Graph`` that is given as a name, or as a list of names, is read from the attributes
    of these names: ``nodes=["age", "height"]``, ``labels="club"``, ``edges=["length"]``,
    ``edge_type="kind"``, ``train_mask="is_train"``. Texts of labels, types and graphs become
    numbers, in alphabetic order. Nodes that are not the numbers of their rows are stored in
    ``node_names``, as numbers or as texts.

    Args:
        graph: any graph of networkx; a multigraph keeps its parallel edges.
        weight: the edge attribute that holds weights, or None.
        node_order: the nodes in the order of their rows; None: the order of ``graph.nodes``.
        **fields: further arguments of ``Graph.from_edges``, as ``nodes`` and ``labels``; arrays of
            nodes in the same order.

    Returns:
        The graph.

    Raises:
        ValueError: an edge or a node lacks an attribute, the order is not one of the graph's nodes,
            different nodes have equal texts, or as ``Graph``.
    """
    if not hasattr(graph, "adj"):
        raise ValueError(
            f"from_networkx(graph): got {kind_of(graph)}; expected a graph of networkx."
        )
    order = list(graph.nodes) if node_order is None else node_order
    rows = {node: row for row, node in enumerate(order)}
    if len(rows) != len(order) or rows.keys() != set(graph.nodes):
        raise ValueError(
            f"node_order: got {len(order)} nodes, which are not the graph's {len(graph)} in some "
            "order; expected each once."
        )
    edges = list(graph.edges(data=True))
    pairs = np.array([(rows[u], rows[v]) for u, v, _ in edges], np.int64).reshape(-1, 2)
    mirrored = (
        np.zeros(0, np.int64) if graph.is_directed() else np.flatnonzero(pairs[:, 0] != pairs[:, 1])
    )
    of_nodes = [(f"node {node!r}", graph.nodes[node]) for node in order]
    of_edges = [(f"edge ({u!r}, {v!r})", data) for u, v, data in edges]
    named = {name: value for name, value in fields.items() if _is_named(value)}
    read = {x: _attribute_array(x, named[x], of_nodes) for x in NODE_FIELDS if x in named}
    on_edges = {x: _attribute_array(x, named[x], of_edges) for x in _EDGE_FIELDS if x in named}
    if weight is not None:
        on_edges["edge_weight"] = _attribute_array("weight", weight, of_edges)
    read |= {name: np.concatenate([value, value[mirrored]]) for name, value in on_edges.items()}
    names = {} if "node_names" in fields else {"node_names": _names_of(order)}
    given: dict[str, Any] = {"num_nodes": len(order)} | names | fields | read
    return Graph.from_edges(
        np.concatenate([pairs[:, 0], pairs[mirrored, 1]]),
        np.concatenate([pairs[:, 1], pairs[mirrored, 0]]),
        **given,
    )


def _is_named(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list | tuple)
        and len(value) > 0
        and all(isinstance(name, str) for name in value)
    )


def _attribute_array(
    field: str, names: str | Sequence[str], items: Sequence[tuple[str, Mapping[str, Any]]]
) -> np.ndarray:
    """Returns one or several attributes of all nodes or edges; several become columns."""
    several = [names] if isinstance(names, str) else list(names)
    for name in several:
        lacking = next((item for item, data in items if data.get(name) is None), None)
        if lacking is not None:
            raise ValueError(f"{field}: the {lacking} has no attribute {name!r}.")
    columns = [np.array([data[name] for _, data in items]) for name in several]
    for name, column in zip(several, columns, strict=True):
        is_text = column.dtype.kind == "U" and field in _CATEGORY_FIELDS
        if column.dtype.kind not in "biuf" and not is_text:
            raise ValueError(
                f"{field}: the attribute {name!r} holds {column.tolist()[0]!r}; expected numbers."
            )
    if field in _MATRIX_FIELDS:
        return np.concatenate(
            [column.reshape(len(items), -1 if items else 1) for column in columns], axis=1
        )
    values = columns[0] if isinstance(names, str) else np.stack(columns, axis=1)
    return np.unique(values, return_inverse=True)[1] if values.dtype.kind == "U" else values


def _names_of(order: Sequence[Hashable]) -> np.ndarray | None:
    if all(isinstance(node, int | np.integer) and not isinstance(node, bool) for node in order):
        if list(order) == list(range(len(order))):
            return None
        return np.array(order)
    texts = [str(node) for node in order]
    if len(set(texts)) != len(texts):
        repeated = next(text for text in texts if texts.count(text) > 1)
        raise ValueError(
            f"graph: several nodes have the text {repeated!r}; expected nodes with different ones. "
            "networkx.convert_node_labels_to_integers gives them numbers."
        )
    return np.array(texts)
