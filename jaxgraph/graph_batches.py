"""Many graphs as one typed graph, with a set of nodes that are the graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from jaxgraph.graph import Graph
from jaxgraph.graph_arrays import checked_categories
from jaxgraph.kinds import kind_of
from jaxgraph.typed_graph import TypedGraph

NODE, EDGE, GRAPH, MEMBER = "node", "edge", "graph", "member"
"""The sets of `Graph.batch`: a member is an edge from a node to its graph."""
_NODE_ARRAYS = ("nodes", "labels", "node_data")
_EDGE_ARRAYS = ("edges", "edge_weight", "edge_type", "edge_data")


def batch_of(graphs: Any, **of_graphs: Any) -> TypedGraph:
    """The graph of many graphs; see `Graph.batch`."""
    found = list(graphs) if isinstance(graphs, Sequence) else []
    wrong = [kind_of(each) for each in found if not isinstance(each, Graph)]
    if not found or wrong:
        what = wrong[0] if wrong else "none" if isinstance(graphs, Sequence) else kind_of(graphs)
        raise ValueError(f"Graph.batch(graphs): got {what}; expected a list of at least one Graph.")
    counts = np.array([each.num_nodes for each in found])
    first = np.cumsum(counts) - counts
    arrays: dict[str, Any] = {
        end: np.concatenate(
            [
                getattr(each, end).astype(np.int64) + start
                for each, start in zip(found, first, strict=True)
            ]
        )
        for end in ("senders", "receivers")
    }
    for name in (*_NODE_ARRAYS, *_EDGE_ARRAYS):
        arrays[name] = _joined(name, [getattr(each, name) for each in found])
    union = Graph.from_edges(num_nodes=int(counts.sum()), **arrays)
    return grouped(union, np.repeat(np.arange(len(found)), counts), **of_graphs)


def grouped(union: Graph, graph_ids: Any, **of_graphs: Any) -> TypedGraph:
    """The graph of a union of graphs, given the graph of each node."""
    ids = checked_categories("graph_ids", graph_ids, union.num_nodes, "node")
    assert ids is not None
    count = int(ids.max()) + 1
    missing = np.setdiff1d(np.arange(count), ids)
    if missing.size:
        raise ValueError(
            f"graph {missing[0]} of {count} has no nodes, and no rows to read; leave it out."
        )
    crossing = np.flatnonzero(ids[union.senders] != ids[union.receivers])
    if crossing.size:
        edge = crossing[0]
        raise ValueError(
            f"edge {edge} goes from graph {ids[union.senders[edge]]} to graph "
            f"{ids[union.receivers[edge]]}; expected edges inside of graphs."
        )
    data = {name: getattr(union, name) for name in ("senders", "receivers", *_EDGE_ARRAYS)}
    nothing = dict.fromkeys(_EDGE_ARRAYS[:-1]) | {"edge_data": {}}
    nodes = union.replace(senders=[], receivers=[], **nothing)
    members = {"senders": np.arange(union.num_nodes), "receivers": ids}
    return TypedGraph(
        {NODE: nodes, GRAPH: {**of_graphs, "num_nodes": count}},
        {(NODE, EDGE, NODE): data, (NODE, MEMBER, GRAPH): members},
        name=union.name,
        target=GRAPH,
        readout=(MEMBER,),
    )


def _joined(name: str, values: list[Any]) -> Any:
    """The arrays of all graphs, one after the other."""
    if name.endswith("_data"):
        every = sorted({key for each in values for key in each})
        return {key: _joined(f"{name}[{key!r}]", [x.get(key) for x in values]) for key in every}
    shapes = [None if each is None else each.shape[1:] for each in values]
    for number, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise ValueError(
                f"Graph.batch(graphs): {name} of graph 0 {_has(shapes[0])}, and that of graph "
                f"{number} {_has(shape)}; expected the same of all graphs."
            )
    if shapes[0] is None:
        return None
    is_sparse = any(map(sp.issparse, values))
    stack: Callable[[list[Any]], Any] = sp.vstack if is_sparse else np.concatenate
    return stack(values)


def _has(shape: tuple[int, ...] | None) -> str:
    if shape is None:
        return "is missing"
    return f"has {shape[0]} columns" if len(shape) == 1 else f"has entries of shape {list(shape)}"
