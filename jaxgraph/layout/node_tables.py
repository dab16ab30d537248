"""The arrays of a part that hold one row per node or one slot per edge of the user's data."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import scipy.sparse as sp

from jaxgraph.graph import Graph
from jaxgraph.layout.schema import EDGE_DATA, EDGE_PREFIX, NODE_PREFIX, node_fields
from jaxgraph.typed_graph import EdgeSet

Arrays = dict[str, np.ndarray]

_EDGES_AT_A_TIME = 1 << 20


class Degrees:
    """The degrees of all nodes, and their missing self-loops, counted from edges in runs.

    Args:
      num_nodes: nodes of the whole graph.
      weighted: whether edges have weights.

    Attributes:
      in_degree: int32 [nodes], so far.
    """

    def __init__(self, num_nodes: int, *, weighted: bool) -> None:
        self.in_degree = np.zeros(num_nodes, np.int32)
        self._missing = np.ones(num_nodes, bool)
        self._weighted = np.zeros(num_nodes) if weighted else None

    def add(
        self, senders: np.ndarray, receivers: np.ndarray, weight: np.ndarray | None = None
    ) -> None:
        """Counts the next edges."""
        np.add.at(self.in_degree, receivers, 1)
        self._missing[senders[senders == receivers]] = False
        if self._weighted is not None and weight is not None:
            # float64: placement rounds it to the widest type of the devices.
            np.add.at(self._weighted, receivers, weight.astype(np.float64))

    def arrays(self) -> Arrays:
        """The arrays [nodes] of the table of nodes that follow from edges, by name."""
        found = {
            "in_degree": self.in_degree.astype(np.float32),
            "missing_self_loop": self._missing,
        }
        return found if self._weighted is None else found | {"weighted_in_degree": self._weighted}


def global_degrees(graph: Graph) -> Arrays:
    """In-degree, weighted in-degree and missing self-loop of each node of the whole graph."""
    weight = graph.edge_weight
    degrees = Degrees(graph.num_nodes, weighted=weight is not None)
    for start in range(0, graph.num_edges, _EDGES_AT_A_TIME):
        some = slice(start, start + _EDGES_AT_A_TIME)
        own = None if weight is None else weight[some]
        degrees.add(graph.senders[some], graph.receivers[some], own)
    return degrees.arrays()


def num_edge_types(graph: Graph) -> int:
    """The largest edge type plus one; 0 without types."""
    return 0 if graph.edge_type is None else int(graph.edge_type.max(initial=-1)) + 1


def counted_arrays(degrees: Mapping[str, np.ndarray], nodes: np.ndarray) -> Arrays:
    """The arrays of some nodes that are not the user's."""
    arrays: Arrays = {"node_ids": nodes.astype(np.int32), "node_mask": np.ones(len(nodes), bool)}
    return arrays | {name: values[nodes] for name, values in degrees.items()}


def node_arrays(graph: Graph, degrees: Mapping[str, np.ndarray], nodes: np.ndarray) -> Arrays:
    """The arrays of some nodes, without sparse features, which are edges."""
    arrays = counted_arrays(degrees, nodes)
    for name in (field.name for field in node_fields() if field.dtype is None):
        values = getattr(graph, name)
        if values is not None and not sp.issparse(values):
            arrays[name] = values[nodes]
    return arrays | {NODE_PREFIX + name: v[nodes] for name, v in graph.node_data.items()}


def edge_arrays(graph: Graph | EdgeSet, edges: np.ndarray) -> Arrays:
    """The user's data of some edges."""
    values = {name: getattr(graph, name) for name in EDGE_DATA}
    found = {name: array[edges] for name, array in values.items() if array is not None}
    return found | {EDGE_PREFIX + name: v[edges] for name, v in graph.edge_data.items()}
