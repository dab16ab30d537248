"""The neighbourhood: the one object through which a layer reads a graph.

Two tables of rows (senders and receivers), the edges between them, data of nodes and edges, and a
way to bring the senders' rows to the receivers. `jaxgraph.parallel.shard.Shard` is the
neighbourhood of a device's part, `ColumnChunk` that of a chunk of rows on P3's columns, `Bipartite`
one of plain arrays, `PartAlone` one part with its halo given.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax
import numpy as np

from jaxgraph.graph import Graph
from jaxgraph.kinds import kind_of, way_to_graph
from jaxgraph.ops import dispatch as ops_dispatch
from jaxgraph.ops.core.blocks import Block
from jaxgraph.ops.core.messages import Inputs, MessageFn, Wanted
from jaxgraph.ops.core.reducers import Reducer
from jaxgraph.parallel.feature_protocol import features_of
from jaxgraph.parallel.kept_edges import has_edge
from pallas_kernels.pytrees import pytree

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
    def mask_rows(self, values: jax.Array) -> jax.Array: ...


@pytree
class NodeTable:
    """The nodes in the rows of a table: ids, mask and degrees.

    Attributes:
      node_ids: int32 [rows], ids in the whole graph.
      node_mask: bool [rows], False for padding.
      entering: float32 [rows], `in_degree`, or None: not known, of the senders of a `Bipartite`.
      missing_self_loop: bool [rows], which nodes have no edge to themselves.
      other_degree: float [rows], `degree` where it is not `in_degree`, or None.
      has_padding: whether there may be rows of padding.
      implementation: the implementation that works on the rows: "xla", "cpu" or "mosaic_gpu".
    """

    node_ids: jax.Array
    node_mask: jax.Array
    entering: jax.Array | None
    missing_self_loop: jax.Array
    other_degree: jax.Array | None
    has_padding: bool = dataclasses.field(metadata={"static": True})
    implementation: str = dataclasses.field(metadata={"static": True})

    @property
    def num_rows(self) -> int:
        """Rows, padding included."""
        return self.node_ids.shape[0]

    @property
    def in_degree(self) -> jax.Array:
        """float32 [rows], edges that enter a node, in the whole graph."""
        if self.entering is None:
            raise ValueError(
                "the senders of a block have no in_degree: the block holds the edges that leave "
                "them. Use .degree: their number, or the sender_degree given to bipartite"
            )
        return self.entering

    @property
    def degree(self) -> jax.Array:
        """float [rows], d_i of `gcn_conv`, without the self-loops that it adds.

        `in_degree`, or the sum of the weights of these edges. For the senders of a `Bipartite`:
        that of the edges that leave, or the degree given to `bipartite`.
        """
        return self.in_degree if self.other_degree is None else self.other_degree

    def mask_rows(self, values: jax.Array) -> jax.Array:
        """`values` [rows, ...] with zeros in the rows of padding."""
        return features_of(values).masked(self)


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


class OfOneBlock:
    """A neighbourhood with one block of edges, and the rows of all their senders."""

    def block(self) -> Block:
        """The edges; its receivers may lack self-loops only where they are the first senders."""
        raise NotImplementedError

    @property
    def sender_rows(self) -> int:
        """Rows of the table of senders, padding included."""
        return self.block().sender_rows

    @property
    def receiver_rows(self) -> int:
        """Rows of the table of receivers, padding included."""
        return self.block().receiver_rows

    @property
    def edge_slots(self) -> int:
        """Slots of an array with one row per edge, padding included."""
        return self.block().edge_slots

    @property
    def edge_mask(self) -> jax.Array:
        """bool [slots], False for padding."""
        return has_edge(self.block().edges)

    def has_edges(self, side: str) -> jax.Array:
        """bool [rows], the rows that an edge reads at its "sender" or "receiver"."""
        return self.block().edges.orientation(side).position >= 0

    @property
    def implementation(self) -> str:
        """The implementation that reduces over the edges: "xla", "cpu" or "mosaic_gpu"."""
        return self.block().implementation

    @property
    def edge_chunk(self) -> int:
        """Number of edges in a call of a message function."""
        return self.block().edges.chunk

    def propagate(
        self, message: MessageFn, reducer: Reducer, inputs: Inputs, *, self_loops: bool = False
    ) -> Pytree:
        """See `jaxgraph.ops.dispatch.Neighborhood`; nodes of other tables lack no self-loop."""
        block = self.block()
        loops = self_loops and block.missing_self_loop is not None
        return block.propagate(message, reducer, inputs, self_loops=loops)

    def pull_sum(
        self, message: MessageFn, reducer: Reducer, inputs: Inputs, gradient: Pytree, wanted: Wanted
    ) -> Inputs:
        """See `jaxgraph.ops.dispatch.Neighborhood`."""
        return self.block().pull_sum(message, reducer, inputs, gradient, wanted)


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
    way = way_to_graph(neighborhood)
    if not hasattr(neighborhood, "propagate") and not hasattr(neighborhood, "mask_rows"):
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
