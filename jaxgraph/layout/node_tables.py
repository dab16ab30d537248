"""The arrays of a part that hold one row per node or one slot per edge of the user's data."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import scipy.sparse as sp

from jaxgraph.graph import Graph
from jaxgraph.layout.manifest import EDGE_DATA, EDGE_PREFIX, NODE_PREFIX

Arrays = dict[str, np.ndarray]

_EDGES_AT_A_TIME = 1 << 20
_NODE_DATA = ("nodes", "labels", "train_mask", "val_mask", "test_mask", "graph_ids")


def global_degrees(graph: Graph) -> Arrays:
    """In-degree, weighted in-degree and missing self-loop of each node of the whole graph."""
    in_degree = _in_degrees(graph)
    missing = np.ones(graph.num_nodes, bool)
    missing[graph.senders[graph.senders == graph.receivers]] = False
    arrays = {"in_degree": in_degree, "missing_self_loop": missing}
    if graph.edge_weight is not None:
        # float64: placement rounds it to the widest type of the devices.
        weighted = np.bincount(graph.receivers, graph.edge_weight, minlength=graph.num_nodes)
        arrays["weighted_in_degree"] = weighted
    return arrays


def num_edge_types(graph: Graph) -> int:
    """The largest edge type plus one; 0 without types."""
    return 0 if graph.edge_type is None else int(graph.edge_type.max(initial=-1)) + 1


def _in_degrees(graph: Graph) -> np.ndarray:
    """float32 [nodes]; counted in chunks, since `bincount` copies its argument to int64."""
    counts = np.zeros(graph.num_nodes, np.int64)
    step = max(_EDGES_AT_A_TIME, graph.num_nodes)
    for start in range(0, graph.num_edges, step):
        counts += np.bincount(graph.receivers[start : start + step], minlength=graph.num_nodes)
    return counts.astype(np.float32)


def node_arrays(graph: Graph, degrees: Mapping[str, np.ndarray], nodes: np.ndarray) -> Arrays:
    """The user's data of some nodes, without sparse features, which are edges."""
    arrays: Arrays = {"node_ids": nodes.astype(np.int32), "node_mask": np.ones(len(nodes), bool)}
    for name, values in degrees.items():
        arrays[name] = values[nodes]
    for name in _NODE_DATA:
        values = getattr(graph, name)
        if values is not None and not sp.issparse(values):
            arrays[name] = values[nodes]
    return arrays | {NODE_PREFIX + name: v[nodes] for name, v in graph.node_data.items()}


def edge_arrays(graph: Graph, edges: np.ndarray) -> Arrays:
    """The user's data of some edges."""
    values = {name: getattr(graph, name) for name in EDGE_DATA}
    found = {name: array[edges] for name, array in values.items() if array is not None}
    return found | {EDGE_PREFIX + name: v[edges] for name, v in graph.edge_data.items()}
