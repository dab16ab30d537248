"""The neighbourhood: the one object through which a layer reads a graph.

Two tables of nodes (senders and receivers), the edges between them and their data, and a way to
bring the senders' rows to the receivers: a `jaxgraph.parallel.relation.Relation`, or a shard, which
stands for its only one.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.kinds import kind_of, way_to_graph
from jaxgraph.ops import dispatch as ops_dispatch

Pytree = Any


class Nodes(Protocol):
    """The nodes in the rows of a table; a `Shard` is the table of its own nodes.

    Its members are those of `NodeTable`.
    """

    @property
    def node_ids(self) -> jax.Array: ...
    @property
    def node_mask(self) -> jax.Array: ...
    @property
    def in_degree(self) -> jax.Array: ...
    @property
    def missing_self_loop(self) -> jax.Array: ...
    @property
    def degree(self) -> jax.Array: ...
    @property
    def has_padding(self) -> bool: ...
    @property
    def implementation(self) -> str: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def set_number(self) -> int: ...
    def mask_rows(self, values: jax.Array) -> jax.Array: ...


class Neighborhood(ops_dispatch.Neighborhood, Protocol):
    """The rows and edges that a layer aggregates over; each implementation is a pytree class."""

    @property
    def senders(self) -> Nodes:
        """The nodes whose rows a layer is given, from which messages come."""
        ...

    @property
    def receivers(self) -> Nodes:
        """The nodes whose rows a layer returns."""
        ...

    @property
    def edges(self) -> jax.Array | None:
        """[slots, ...], features of the edges, or None."""
        ...

    @property
    def edge_weight(self) -> jax.Array | None:
        """[slots], weights of the edges, or None."""
        ...

    @property
    def edge_type(self) -> jax.Array | None:
        """[slots], types of the edges, or None."""
        ...

    @property
    def edge_chunk(self) -> int:
        """Number of edges in a call of a message function."""
        ...

    def own_rows(self, values: jax.Array) -> jax.Array:
        """The receivers' rows of `values` [senders, ...], where receivers are among the senders."""
        ...

    def sum(self, values: Pytree) -> Pytree:
        """Sums over the receivers' tables of all devices."""
        ...


def two_ends(x: Any) -> tuple[Any, Any]:
    """Splits a layer's input into the senders' rows and the receivers' rows."""
    if isinstance(x, list):
        raise ValueError(
            "x is a list; expected an array, or a tuple (senders' rows, receivers' rows)"
        )
    if not isinstance(x, tuple):
        return x, None
    if len(x) != 2:
        raise ValueError(
            f"x is a tuple of {len(x)}; expected an array, or a pair (rows of the senders, rows of "
            "the receivers)"
        )
    return x


def is_graph(value: Any) -> bool:
    """Returns True for a whole graph, for modules that import no graph."""
    return isinstance(value, Graph)


def check_neighborhood(neighborhood: Any) -> None:
    """Checks that a layer is called on a neighbourhood."""
    # A ShardedGraph: its module imports this one.
    if is_graph(neighborhood) or hasattr(neighborhood, "shards"):
        place = "Place the graph first, sharded = jaxgraph.parallel.shard(graph, None, "
        place += "jaxgraph.parallel.make_mesh(1)); then call"
        is_placed = hasattr(neighborhood, "shards")
        raise ValueError(
            "a layer runs on the shard of a device, and was given a "
            f"{type(neighborhood).__name__}. {'Call' if is_placed else place} "
            "jaxgraph.train.predict(model, sharded), or run it in a function of a shard, "
            "jaxgraph.parallel.spmd(lambda model, shard: model(shard, shard.nodes), "
            "outputs='rows')(model, sharded)"
        )
    if isinstance(neighborhood, jax.Array | np.ndarray):
        raise ValueError(
            "a layer was given an array where it expects the shard; the order is "
            "layer(shard, x), and propagate(shard, message_fn, ...)"
        )
    if not hasattr(neighborhood, "propagate") and not hasattr(neighborhood, "mask_rows"):
        way = way_to_graph(neighborhood)
        raise ValueError(
            f"a layer was given {kind_of(neighborhood)} where it expects a Graph, or the shard of "
            "a device in a function that jaxgraph.parallel.spmd runs, or another neighbourhood, "
            "such as jaxgraph.parallel.bipartite makes; the order is layer(graph, x), and "
            f"propagate(graph, message_fn, ...){way and '; ' + way}"
        )


def check_nodes(nodes: Any) -> None:
    """Checks that a function of rows alone is called on a table of nodes."""
    check_neighborhood(nodes)
    if not hasattr(nodes, "mask_rows"):
        raise ValueError(
            f"a function of rows was given a {type(nodes).__name__}, which has two tables of "
            "nodes; pass the one that the rows belong to, its .senders or its .receivers"
        )
