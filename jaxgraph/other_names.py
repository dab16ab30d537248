"""Names that users of other libraries try first, and ours.

Classes and modules call `no_attribute` in their `__getattr__`, which Python calls for a name that
they do not have.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import ParamSpec, TypeVar

__all__ = ["NAMES_OF_GRAPH", "NAMES_OF_PACKAGE", "no_attribute", "with_our_names"]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

NAMES_OF_GRAPH: Mapping[str, str] = MappingProxyType(
    {
        "x": "nodes",
        "y": "labels",
        "edge_index": "senders and receivers",
        "edge_attr": "edges",
        "num_node_features": "num_features",
        "ndata": "node_data",
        "edata": "edge_data",
    }
)
"""Names of PyG and DGL for the fields of `Graph`."""

_MODULES = {
    "datasets": "load from_networkx from_pandas from_scipy read_edge_list",
    "nn": "GAT GATConv GATv2 GATv2Conv GCN GCNConv GIN GINConv GraphSAGE SAGEConv Linear dropout",
    "parallel": "edge_messages emulate_devices make_mesh propagate shard spmd",
    "train": "evaluate fit predict",
    "transforms": "add_self_loops random_split to_undirected",
}
NAMES_OF_PACKAGE: Mapping[str, str] = MappingProxyType(
    {"Data": "jaxgraph.Graph"}
    | {name: f"jaxgraph.{m}.{name}" for m, names in _MODULES.items() for name in names.split()}
)
"""Where the names are that are looked for in `jaxgraph` itself."""


def no_attribute(owner: str, name: str, remedy: str | None) -> AttributeError:
    """Makes the error for a name that an object does not have.

    Args:
        owner: the object, such as "a Graph".
        name: the attribute.
        remedy: advice, or None.

    Returns:
        The error.
    """
    advice = "" if remedy is None else f": {remedy}"
    return AttributeError(f"{owner} has no attribute {name!r}{advice}", name=name)


def with_our_names(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Makes a function of a graph's fields refuse names of other libraries with ours.

    Args:
        function: takes fields of `Graph` by name.

    Returns:
        The function; it raises TypeError for an argument of `NAMES_OF_GRAPH`.
    """

    @functools.wraps(function)
    def call(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        for name in options:
            if name in NAMES_OF_GRAPH:
                raise TypeError(
                    f"{function.__name__} has no argument {name!r}; its name here is "
                    f"{NAMES_OF_GRAPH[name]}"
                )
        return function(*arguments, **options)

    return call
