"""Functions from a graph to a graph: direction, repeated edges, self-loops, features, splits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse import csgraph

from jaxgraph import graph_facts
from jaxgraph.graph import Graph
from jaxgraph.graph_arrays import NODE_FIELDS, checked_choice
from jaxgraph.kinds import check_graph, kind_of
from jaxgraph.label_columns import with_label_columns
from jaxgraph.links import link_split, with_links
from jaxgraph.other_names import refuse_names
from jaxgraph.splits import folds, random_split
from jaxgraph.typed_graph import TypedGraph

__all__ = [
    "add_self_loops",
    "degree_features",
    "folds",
    "in_largest_component",
    "largest_component",
    "link_split",
    "mean_log_degree",
    "normalize_features",
    "random_split",
    "remove_duplicate_edges",
    "remove_self_loops",
    "subgraph",
    "to_undirected",
    "with_edge_rank",
    "with_inverses",
    "with_label_columns",
    "with_links",
]

_EDGE_FIELDS = ("edges", "edge_weight", "edge_type")

# The largest n with n * n <= 2**63: sender * n + receiver then fits int64.
_MOST_NODES_OF_KEYS = math.isqrt(2**63)


def to_undirected(graph: Graph) -> Graph:
    """Adds the reverse of every edge, then removes repeated edges; a self-loop stays one edge.

    A reverse edge carries the attributes of its original. The result is sorted by sender, then by
    receiver.

    Args:
        graph: the graph.

    Returns:
        The graph with senders and receivers int [num_undirected_edges * 2 + num_self_loops].

    Raises:
        ValueError: equal edges, or an edge and its reverse, have different attributes.
    """
    check_graph(graph, "to_undirected(graph)")
    both_ways = _edges_mapped(graph, lambda values: np.concatenate([values, values]))
    doubled = graph.replace(
        senders=np.concatenate([graph.senders, graph.receivers]),
        receivers=np.concatenate([graph.receivers, graph.senders]),
        **both_ways,
    )
    return remove_duplicate_edges(doubled)


def remove_duplicate_edges(graph: Graph) -> Graph:
    """Keeps one edge of each sender and receiver, sorted by sender, then receiver.

    Args:
        graph: the graph.

    Returns:
        The graph without repeated edges.

    Raises:
        ValueError: equal edges have different attributes, so that no single one represents them.
    """
    check_graph(graph, "remove_duplicate_edges(graph)")
    attributed = {name: getattr(graph, name) for name in _EDGE_FIELDS}
    attributed = {name: values for name, values in attributed.items() if values is not None}
    attributed |= {f"edge_data[{name!r}]": values for name, values in graph.edge_data.items()}
    fits = graph.num_nodes <= _MOST_NODES_OF_KEYS
    if fits and not attributed:
        keys = _edge_keys(graph)
        keys.sort()
        return _with_edge_keys(graph, keys[_starts_of_runs(keys)])
    order = (
        np.argsort(_edge_keys(graph), kind="stable")
        if fits
        else np.lexsort((graph.receivers, graph.senders))
    )
    senders, receivers = graph.senders[order], graph.receivers[order]
    starts = _starts_of_runs(senders) | _starts_of_runs(receivers)
    first_of_run = order[np.flatnonzero(starts)]
    for name, values in attributed.items():
        given, expected = values[order], values[first_of_run][np.cumsum(starts) - 1]
        # NaN differs from itself: two NaN count as equal here.
        differs = (given != expected) & ((given == given) | (expected == expected))
        differs = differs.any(axis=tuple(range(1, differs.ndim)))
        if differs.any():
            first = int(np.argmax(differs))
            raise ValueError(
                f"{name}: the edges {senders[first]} -> {receivers[first]} have different values, "
                "so that one cannot stand for all. Give them one value first, or drop it with "
                f"{_dropping(name)}."
            )
    return graph.replace(
        senders=senders[starts],
        receivers=receivers[starts],
        **_edges_mapped(graph, lambda values: values[first_of_run]),
    )


def add_self_loops(graph: Graph) -> Graph:
    """Adds an edge i -> i to every node that has none, with weight 1 in a weighted graph.

    Args:
        graph: the graph, without edge features, edge types and named arrays of edges.

    Returns:
        The graph with the new edges after the others.

    Raises:
        ValueError: the graph has edge features, edge types or named arrays of edges, for which a
            new edge has no value.
    """
    check_graph(graph, "add_self_loops(graph)")
    unknown = [name for name in ("edges", "edge_type") if getattr(graph, name) is not None]
    for name in (*unknown, *(f"edge_data[{name!r}]" for name in graph.edge_data)):
        raise ValueError(
            f"{name}: a new self-loop has no value for it; drop it with {_dropping(name)}, or "
            "append the self-loops with values of your own."
        )
    missing = np.ones(graph.num_nodes, bool)
    missing[graph.senders[graph.senders == graph.receivers]] = False
    loops = np.flatnonzero(missing).astype(graph.senders.dtype)
    changes = {}
    if graph.edge_weight is not None:
        changes["edge_weight"] = np.concatenate(
            [graph.edge_weight, np.ones(loops.size, np.float32)]
        )
    return graph.replace(
        senders=np.concatenate([graph.senders, loops]),
        receivers=np.concatenate([graph.receivers, loops]),
        **changes,
    )


def remove_self_loops(graph: Graph) -> Graph:
    """Removes every edge i -> i; the others keep their order and attributes.

    Args:
        graph: the graph.

    Returns:
        The graph without self-loops.
    """
    check_graph(graph, "remove_self_loops(graph)")
    return _select_edges(graph, graph.senders != graph.receivers)


def normalize_features(graph: Graph) -> Graph:
    """Divides each node's features by their sum; a row whose sum is zero is left unchanged.

        x_i <- x_i / sum_f x_if

    Args:
        graph: a graph with features [num_nodes, num_features].

    Returns:
        The graph with features whose rows sum to 1.

    Raises:
        ValueError: the graph has no features.

    References:
        Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR
        2017, section 5.2.
    """
    check_graph(graph, "normalize_features(graph)")
    if graph.nodes is None:
        raise ValueError(f"nodes: the graph {graph.name!r} has no features to normalise.")
    nodes = graph.nodes
    sums = nodes.sum(axis=1, dtype=np.float64)
    sums[sums == 0] = 1
    sums = sums.astype(np.float32)
    if isinstance(nodes, np.ndarray):
        return graph.replace(nodes=nodes / sums[:, None])
    quotients = nodes.data / np.repeat(sums, np.diff(nodes.indptr))
    return graph.replace(nodes=sp.csr_array((quotients, nodes.indices, nodes.indptr), nodes.shape))


def degree_features(graph: Graph, max_degree: int | None = None) -> Graph:
    """Makes features from the in-degree d of each node: log(1 + d), or one-hot.

    Args:
        graph: the graph; its features are replaced.
        max_degree: None for one column log(1 + d); a number for the one-hot code of
            min(d, max_degree).

    Returns:
        The graph with features float32 [num_nodes, 1] or [num_nodes, max_degree + 1].

    Raises:
        ValueError: ``max_degree`` is negative.
    """
    check_graph(graph, "degree_features(graph, max_degree)")
    degrees = graph.in_degrees()
    if max_degree is None:
        return graph.replace(nodes=np.log1p(degrees, dtype=np.float32)[:, None])
    if max_degree < 0:
        raise ValueError(f"max_degree: got {max_degree}; expected 0 or more.")
    one_hot = np.zeros((graph.num_nodes, max_degree + 1), np.float32)
    one_hot[np.arange(graph.num_nodes), np.minimum(degrees, max_degree)] = 1
    return graph.replace(nodes=one_hot)


def mean_log_degree(graph: Graph) -> float:
    """Computes the mean of log(d + 1) over all nodes, d being the in-degree.

    Args:
        graph: the graph that a model is trained on.

    Returns:
        `delta` of `jaxgraph.nn.PNA`.

    Raises:
        ValueError: the graph has no edge.

    References:
        Corso et al., "Principal neighbourhood aggregation for graph nets", 2020, equation 5.
    """
    check_graph(graph, "mean_log_degree(graph)")
    if not graph.num_edges:
        raise ValueError("graph has no edge: the mean of log(d + 1) over its nodes is 0.")
    return graph_facts.mean_log_degree(graph)


def with_edge_rank(graph: Graph) -> Graph:
    """Numbers the edges that enter each node, 0, 1, ..., in the order of the graph's edges.

    It comes last: other transforms, which add or remove edges, number none anew.

    Args:
        graph: the graph.

    Returns:
        The graph with `edge_data["edge_rank"]`, int32 [num_edges], which
        `jaxgraph.saga.Concatenation` reads.
    """
    check_graph(graph, "with_edge_rank(graph)")
    order = np.argsort(graph.receivers, kind="stable")
    starts = np.zeros(graph.num_nodes + 1, np.int64)
    np.cumsum(np.bincount(graph.receivers, minlength=graph.num_nodes), out=starts[1:])
    rank = np.empty(graph.num_edges, np.int32)
    rank[order] = np.arange(graph.num_edges) - starts[graph.receivers[order]]
    return graph.with_edges(edge_rank=rank)


def with_inverses(graph: TypedGraph) -> TypedGraph:
    """Adds the inverse of each set of edges: "rev_writes" from papers to authors for "writes".

    Edges within one set of nodes, such as citations, get an inverse of their own, "rev_cites". They
    keep their direction, which a layer can tell apart. An inverse edge carries the attributes of
    its original.

    Args:
        graph: the graph.

    Returns:
        The graph with twice as many sets of edges, the inverses last.

    Raises:
        ValueError: the graph has a set of edges with the name of an inverse.
    """
    if not isinstance(graph, TypedGraph):
        raise ValueError(f"with_inverses(graph): got {kind_of(graph)}; expected a TypedGraph.")
    found = {**graph.edge_sets}
    for (sender, name, receiver), edges in graph.edge_sets.items():
        if name in graph.readout:
            continue
        ends = (receiver, f"rev_{name}", sender)
        if ends in found:
            raise ValueError(f"with_inverses(graph): there is an edge set {ends} already.")
        found[ends] = dataclasses.replace(edges, senders=edges.receivers, receivers=edges.senders)
    return dataclasses.replace(graph, edge_sets=found)


def subgraph(graph: Graph, node_ids: np.ndarray) -> Graph:
    """Returns the graph on some nodes and the edges among them; node ``node_ids[k]`` becomes k.

    A mask that selects none of the nodes becomes None.

    Args:
        graph: the graph.
        node_ids: int [num_kept], distinct ids.

    Returns:
        The induced subgraph, with all attributes.

    Raises:
        ValueError: ``node_ids`` is empty, or an id is out of range or repeated.
    """
    check_graph(graph, "subgraph(graph, node_ids)")
    ids = checked_choice("node_ids", node_ids, graph.num_nodes)
    new_ids = np.full(graph.num_nodes, -1, graph.senders.dtype)
    new_ids[ids] = np.arange(ids.size)
    inside = _select_edges(graph, (new_ids[graph.senders] >= 0) & (new_ids[graph.receivers] >= 0))
    changes = {
        name: value[ids]
        for name in (*NODE_FIELDS, "node_names")
        if (value := getattr(graph, name)) is not None
    }
    changes["node_data"] = {name: values[ids] for name, values in graph.node_data.items()}
    for name in ("train_mask", "val_mask", "test_mask"):
        if name in changes and not changes[name].any():
            changes[name] = None
    return inside.replace(
        senders=new_ids[inside.senders],
        receivers=new_ids[inside.receivers],
        num_nodes=ids.size,
        **changes,
    )


def largest_component(graph: Graph) -> Graph:
    """Returns the largest weakly connected component; nodes keep their order.

    Args:
        graph: the graph.

    Returns:
        The induced subgraph of the component; among equally large ones, that with the smallest id.
    """
    check_graph(graph, "largest_component(graph)")
    return subgraph(graph, np.flatnonzero(in_largest_component(graph)))


def in_largest_component(graph: Graph) -> np.ndarray:
    """Finds the nodes of the largest weakly connected component.

    Args:
        graph: the graph.

    Returns:
        bool [num_nodes]; among equally large components, that with the smallest id.
    """
    check_graph(graph, "in_largest_component(graph)")
    ones = np.ones(graph.num_edges, np.int8)
    shape = (graph.num_nodes, graph.num_nodes)
    adjacency = sp.coo_matrix((ones, (graph.senders, graph.receivers)), shape=shape)
    _, component = csgraph.connected_components(adjacency, directed=True, connection="weak")
    return component == np.argmax(np.bincount(component))


def _starts_of_runs(keys: np.ndarray) -> np.ndarray:
    starts = np.ones(keys.size, bool)
    np.not_equal(keys[1:], keys[:-1], out=starts[1:])
    return starts


def _edge_keys(graph: Graph) -> np.ndarray:
    return graph.senders.astype(np.int64) * graph.num_nodes + graph.receivers


def _with_edge_keys(graph: Graph, keys: np.ndarray) -> Graph:
    senders = (keys // graph.num_nodes).astype(graph.senders.dtype)
    receivers = (keys % graph.num_nodes).astype(graph.senders.dtype)
    return graph.replace(senders=senders, receivers=receivers)


def _select_edges(graph: Graph, kept: np.ndarray) -> Graph:
    changes = _edges_mapped(graph, lambda values: values[kept])
    return graph.replace(senders=graph.senders[kept], receivers=graph.receivers[kept], **changes)


def _edges_mapped(graph: Graph, function: Callable[[np.ndarray], np.ndarray]) -> dict[str, Any]:
    """The fields with an entry per edge, mapped by a function of arrays [num_edges, ...]."""
    fields = {name: getattr(graph, name) for name in _EDGE_FIELDS}
    mapped = {name: function(values) for name, values in fields.items() if values is not None}
    named = {name: function(values) for name, values in graph.edge_data.items()}
    return mapped | {"edge_data": named}


def _dropping(name: str) -> str:
    """The call that removes data of edges."""
    field, _, quoted = name.rstrip("]").partition("[")
    return f"graph.with_edges({quoted[1:-1]}=None)" if quoted else f"graph.replace({field}=None)"


def __dir__() -> list[str]:
    return sorted(__all__)


refuse_names(__name__)
