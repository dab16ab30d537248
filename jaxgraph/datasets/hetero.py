"""Typed graphs of nested dicts of arrays, in the shapes of PyG and of TF-GNN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxgraph.graph_arrays import NODE_FIELDS
from jaxgraph.kinds import kind_of
from jaxgraph.typed_graph import TypedGraph

_NODES = {name: name for name in (*NODE_FIELDS, "num_nodes", "node_names")}
# As an array of its own, `sizes` of TF-GNN would count the nodes.
_NODES |= {"x": "nodes", "hidden_state": "nodes", "y": "labels", "sizes": "num_nodes"}
_EDGES = {name: name for name in ("edges", "edge_weight", "edge_type")}
_EDGES |= {"edge_attr": "edges", "hidden_state": "edges"}


def from_hetero(data: Any, *, name: str = "graph", target: str | None = None) -> TypedGraph:
    """Makes a typed graph of PyG's ``HeteroData``, or of a nested dict in its shape or TF-GNN's.

    PyG's shape is that of ``HeteroData.to_dict()``, with edges by their ends:

        {
            "paper": {"x": x, "y": y, "train_mask": mask},
            "author": {"num_nodes": 1134},
            ("author", "writes", "paper"): {"edge_index": ids, "edge_attr": e, "edge_weight": w},
        }

    TF-GNN's has features by name, and ends as ``tfgnn.Adjacency.from_indices`` takes them:

        {
            "node_sets": {"paper": {"hidden_state": x}, "author": {"num_nodes": 1134}},
            "edge_sets": {
                "writes": {"source": ("author", ids), "target": ("paper", ids), "hidden_state": e},
            },
        }

    The other fields of a set have their names here, as ``labels``, ``val_mask`` and ``edge_type``.
    Every entry of another name has a row for each node or edge, and is in ``node_data`` or
    ``edge_data``. ``_global_store`` and ``context``, which are about the whole graph, are left out.

    Args:
        data: the object or the dict, of arrays or of tensors in the memory of the host.
        name: a name for reports.
        target: the set of nodes that a task is about, as for ``TypedGraph``.

    Returns:
        The graph.

    Raises:
        ValueError: a set is not in either shape, an entry is no array with a row for each node or
            edge, or as for ``TypedGraph``.
    """
    sets = data.to_dict() if hasattr(data, "to_dict") else data
    if isinstance(sets, Mapping) and "node_sets" in sets:
        sets = {**sets["node_sets"], **_by_ends(sets.get("edge_sets", {}))}
    if not isinstance(sets, Mapping) or not all(isinstance(x, Mapping) for x in sets.values()):
        raise ValueError(
            f"from_hetero(data): got {kind_of(data)}; expected a HeteroData of PyG, or a dict with "
            "a dict of arrays for each set. jaxgraph.Graph.from_edges takes the arrays of a Data."
        )
    nodes, edges = {}, {}
    for key, entries in sets.items():
        if isinstance(key, tuple):
            found = _fields(entries, _EDGES, "edge_data")
            index = found["edge_data"].pop("edge_index", ())
            if len(index) != 2:
                raise ValueError(
                    f"edge set {key!r}: edge_index has {len(index)} rows; expected [2, num_edges]."
                )
            edges[key] = {**found, "senders": index[0], "receivers": index[1]}
        elif key != "_global_store":
            nodes[key] = _fields(entries, _NODES, "node_data")
    return TypedGraph(nodes, edges, name, target)


def _by_ends(edge_sets: Mapping[str, Any]) -> dict[Any, Any]:
    """The edges of TF-GNN in the shape of PyG."""
    found = {}
    for name, piece in edge_sets.items():
        entries = {**piece}
        ends = [entries.pop(end, ()) for end in ("source", "target")]
        if any(len(end) != 2 for end in ends):
            raise ValueError(
                f"edge set {name!r}: expected source and target, each (set of nodes, ids)."
            )
        (sender, senders), (receiver, receivers) = ends
        found[sender, name, receiver] = {**entries, "edge_index": (senders, receivers)}
    return found


def _fields(entries: Mapping[str, Any], names: Mapping[str, str], data: str) -> dict[str, Any]:
    """The entries of a set by our names, and the others as named arrays."""
    known = {names[entry]: value for entry, value in entries.items() if entry in names}
    return {**known, data: {k: value for k, value in entries.items() if k not in names}}
