"""Names that users of other libraries try first, and ours.

Classes and modules call `no_attribute` in their `__getattr__`, which Python calls for a name that
they do not have.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import ParamSpec, TypeVar

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
_INSTEAD = {
    "FastRGCNConv RelGraphConv": "jaxgraph.nn.RGCNConv has a matrix for each edge type",
    "NeighborLoader NeighborSampler": "jaxgraph.sampling.Loader makes mini-batches",
    "Batch DataLoader": "jaxgraph.Graph.batch makes one graph of many",
    "global_add_pool global_max_pool global_mean_pool": "jaxgraph.nn.GraphReadout reduces by graph",
    "RandomLinkSplit": "jaxgraph.transforms.link_split holds edges out",
    "LinkNeighborLoader negative_sampling": "jaxgraph.sampling.Links is an argument of Loader",
    "GAE InnerProductDecoder": "jaxgraph.nn.LinkReadout scores links, by InnerProduct",
    "HeteroData from_pyg": "jaxgraph.datasets.from_hetero makes a TypedGraph of it",
    "MessagePassing": "jaxgraph.parallel.propagate takes a message function",
    "Planetoid TUDataset": "jaxgraph.datasets.load takes the name of a data set",
}
ADVICE_ON_NAMES: Mapping[str, str] = MappingProxyType(
    {"Data": "it is jaxgraph.Graph"}
    | {
        name: f"it is jaxgraph.{m}.{name}"
        for m, names in _MODULES.items()
        for name in names.split()
    }
    | {name: advice for names, advice in _INSTEAD.items() for name in names.split()}
)
"""Advice on names that are looked for in `jaxgraph` or its modules and are not there."""


def refuse_names(module: str) -> None:
    """Makes a module refuse names that it does not have with advice.

    Type checkers must not see its `__getattr__`: they would take any name for an attribute.
    """

    def refuse(name: str) -> None:
        raise no_attribute(f"module {module!r}", name, ADVICE_ON_NAMES.get(name))

    setattr(sys.modules[module], "__getattr__", refuse)  # noqa: B010


def no_attribute(owner: str, name: str, remedy: str | None) -> AttributeError:
    """Makes the error for a name that an object does not have."""
    advice = "" if remedy is None else f": {remedy}"
    return AttributeError(f"{owner} has no attribute {name!r}{advice}", name=name)


def with_our_names(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Makes a function of a graph's fields refuse names of other libraries with ours."""

    @functools.wraps(function)
    def call(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        for name in options:
            if name in NAMES_OF_GRAPH:
                raise TypeError(
                    f"{function.__qualname__.removesuffix('.__init__')} has no argument {name!r}; "
                    "its name here is "
                    f"{NAMES_OF_GRAPH[name]}"
                )
        return function(*arguments, **options)

    return call
