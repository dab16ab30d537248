"""Errors for an object of the wrong kind: the expected kind, and the conversion to it."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from types import MappingProxyType
from typing import Any

from jaxgraph.graph import Graph

_EDGE_INDEX = (
    "jaxgraph.Graph.from_edges(*edge_index, num_nodes=...) makes a graph of two rows of ids"
)
_BY_PACKAGE: Mapping[str, str] = MappingProxyType(
    {
        "torch_geometric": "jaxgraph.Graph.from_edges(*data.edge_index.numpy(), "
        "num_nodes=data.num_nodes, nodes=data.x.numpy(), labels=data.y.numpy(), "
        "train_mask=data.train_mask.numpy(), ...) makes a graph of it, and "
        "jaxgraph.datasets.from_hetero one of a HeteroData",
        "dgl": "jaxgraph.Graph.from_edges(*(ids.numpy() for ids in g.edges()), "
        "num_nodes=g.num_nodes(), nodes=g.ndata['feat'].numpy(), ...) makes a graph of it",
        "jraph": "jaxgraph.Graph.from_edges(g.senders, g.receivers, "
        "num_nodes=int(g.n_node.sum()), nodes=g.nodes, edges=g.edges) makes a graph of it",
        "networkx": "jaxgraph.datasets.from_networkx makes a graph of it",
        "pandas": "jaxgraph.datasets.from_pandas makes a graph of a frame with a row per edge",
        "scipy": "jaxgraph.datasets.from_scipy makes a graph of an adjacency matrix",
    }
)
_OF_ARRAYS = frozenset(("numpy", "torch", "jax", "jaxlib"))
_NAMES = MappingProxyType({"ArrayImpl": "a jax.Array", "ndarray": "a NumPy array"})


def kind_of(value: Any) -> str:
    """Names the kind of an object with its article, for a message."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return _NAMES.get(name, f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}")


def check_positive(name: str, value: Any, meaning: str = "") -> None:
    """Checks that an argument is a positive integer."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        text = meaning and f": {meaning}"
        raise ValueError(f"{name} is {value!r}; expected a positive integer{text}")


def way_to_graph(value: Any) -> str:
    """Returns advice for making a graph from another object; "" where there is none."""
    if isinstance(value, Graph):
        return ""
    if isinstance(value, str):
        return "jaxgraph.datasets.load(name) loads a data set, read_edge_list(path) a file"
    if hasattr(value, "shards") or hasattr(value, "node_mask"):
        return "it is placed on devices: pass the Graph that it was made of"
    package = type(value).__module__.partition(".")[0]
    if package in _OF_ARRAYS and not hasattr(value, "dtype"):
        return ""
    return _BY_PACKAGE.get(package, _EDGE_INDEX if package in _OF_ARRAYS else "")


def check_graph(value: Any, function: str) -> None:
    """Checks that the first argument of a function is a graph."""
    if not isinstance(value, Graph):
        way = way_to_graph(value)
        raise ValueError(
            f"{function}: got {kind_of(value)} for the graph; expected a jaxgraph.Graph"
            + (f": {way}." if way else ".")
        )
