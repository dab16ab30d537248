"""P-TAGS: partition, scatter, gather, transform, sync, apply (P3, section 3.5, table 2).

A layer written with these functions runs on rows of nodes and on columns of features:

    messages = scatter(shard, x, lambda sender, edge, receiver: sender)
    neighbors = gather(messages, "mean")
    shares = transform(x, neighbors, kernels, lambda kernels, x, a: x @ kernels[0] + a @ kernels[1])
    y = apply(jax.nn.relu, sync(shares))

`scatter`, `gather` and `transform` describe; `sync` computes. On rows it has nothing to add up. On
columns, under `mode="p3"`, every device computes its share of all nodes, chunk by chunk, and the
shares are added (`jaxgraph.parallel.schedules.p3`). The convolutions of `jaxgraph.layers` that
aggregate before any non-linearity are written with the same `Shares`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxgraph.graph import Graph
from jaxgraph.kinds import check_graph
from jaxgraph.ops.core.message_functions import sum_message
from jaxgraph.ops.core.messages import Inputs, chunk_examples
from jaxgraph.ops.core.reductions import check_reduction
from jaxgraph.parallel.checks.message_check import check_each_column, check_each_edge
from jaxgraph.parallel.feature_protocol import Aggregation, Pytree, Shares, TransformFn, features_of
from jaxgraph.parallel.features import FeatureColumns
from jaxgraph.parallel.mesh import check_mesh
from jaxgraph.parallel.neighborhood import Neighborhood, Nodes, check_neighborhood
from jaxgraph.parallel.placement import shard as shard_graph
from jaxgraph.parallel.propagate import reduce_messages
from jaxgraph.parallel.shard import Shard
from jaxgraph.parallel.sharded_graph import ShardedGraph
from jaxgraph.partition.assignment import Partition

__all__ = [
    "Aggregation",
    "Messages",
    "Neighbors",
    "Shares",
    "aggregate_columns",
    "apply",
    "gather",
    "partition",
    "scatter",
    "sync",
    "transform",
]

MessageFn = Callable[[Any, Any, Any], Any]
EDGE_DATA = ("edges", "edge_weight", "edge_type")


@dataclasses.dataclass(frozen=True)
class Messages:
    """The result of `scatter`: messages along all edges, not computed yet."""

    shard: Shard
    x: jax.Array | FeatureColumns
    message: MessageFn | None
    edge: str | None


@dataclasses.dataclass(frozen=True)
class Neighbors:
    """The result of `gather`: messages and their reduction, not computed yet."""

    messages: Messages
    aggregation: Aggregation


@dataclasses.dataclass(frozen=True)
class _Message:
    """A user's message function, with its arguments in the order of `propagate_by`."""

    function: MessageFn

    def __call__(self, params: Pytree, sender: Pytree, receiver: Pytree, edge: Pytree) -> Pytree:
        return self.function(sender, edge, receiver)


@dataclasses.dataclass(frozen=True)
class _Reduction:
    """y_i = reduce_{e: j -> i} message(x_j, x_e, x_i)"""

    reduction: str
    message: MessageFn | None
    edge: str | None

    def send(self, nodes: Nodes, x: jax.Array, /) -> jax.Array:
        """x as it is."""
        return x

    def receive(self, neighborhood: Neighborhood, sent: jax.Array, own: jax.Array, /) -> jax.Array:
        """float [receivers, features]."""
        edge = None if self.edge is None else getattr(neighborhood, self.edge)
        message, inputs = sum_message, Inputs((), sent, (), ())
        if self.message is not None and not _is_sender(self.message, sent, edge):
            message = _Message(self.message)
            inputs = Inputs((), sent, own, edge)
        return reduce_messages(neighborhood, message, inputs, self.reduction, 1)


def aggregate_columns(shard: Shard, x: FeatureColumns, aggregation: Aggregation) -> jax.Array:
    """Aggregates this device's columns for the nodes that its row of devices owns.

    Args:
      shard: the shard, under `spmd`.
      x: this device's columns of all nodes.
      aggregation: the aggregation to apply.

    Returns:
      float [parts * rows, columns]; 0 in padding and for all other nodes.

    Raises:
      ValueError: the graph is not in mode "p3".
    """
    check_neighborhood(shard)
    return x.aggregated(shard, aggregation, x.columns)


def _is_sender(message: MessageFn, sent: jax.Array, edge: jax.Array | None) -> bool:
    """True where a message is the sender's row itself, for which there are kernels."""
    some = sent[:1]
    jaxpr = jax.make_jaxpr(message)(some, None if edge is None else edge[:1], some).jaxpr
    return not jaxpr.eqns and list(jaxpr.outvars) == jaxpr.invars[:1]


def partition(
    graph: Graph,
    mesh: Mesh,
    topology_partitioner: Callable[[Graph, int], Partition],
    **options: Any,
) -> ShardedGraph:
    """Partitions topology and features independently: nodes by a partitioner, features by column.

    Args:
      graph: the graph.
      mesh: a mesh, as for `jaxgraph.parallel.shard`.
      topology_partitioner: `(graph, num_parts) -> Partition`, such as
        `jaxgraph.partition.partition` with `method="hash"`.
      options: of `jaxgraph.parallel.shard`, such as `rest`, `topology` and `feature_budget`.

    Returns:
      The graph in mode "p3".

    Raises:
      ValueError: as `jaxgraph.parallel.shard`.
    """
    check_graph(graph, "partition(graph, mesh, topology_partitioner)")
    check_mesh(mesh)
    parts = topology_partitioner(graph, mesh.size)
    return shard_graph(graph, parts, mesh, "p3", **options)


def scatter(
    shard: Shard,
    x: jax.Array | FeatureColumns,
    message: MessageFn | None = None,
    *,
    edge: str | None = None,
) -> Messages:
    """Describes messages along all edges.

    m_e = message(x_j, x_e, x_i) for every edge e: j -> i

    Args:
      shard: the shard, under `spmd`.
      x: float [rows, features], or this device's columns of all nodes.
      message: `(sender, edge, receiver) -> [edges, ...]`, called with a bounded chunk of edges and
        with some columns of x; must treat every edge and, where features are split by column, every
        column by itself, and close over no array that needs a gradient. None: the sender's
        features.
      edge: the edge data that it gets: "edges", "edge_weight" or "edge_type"; None: none.

    Returns:
      The messages, for `gather`.

    Raises:
      TypeError: x is sparse.
      ValueError: the graph has no such edge data, x is None, or the message function combines edges
        or columns.
    """
    check_neighborhood(shard)
    features_of(x).check_dense("scatter")
    if edge is not None and (edge not in EDGE_DATA or getattr(shard, edge) is None):
        raise ValueError(
            f"edge is {edge!r}; expected None, or the name of data that the graph's edges have: "
            f"{', '.join(EDGE_DATA)}"
        )
    if message is None and edge is not None:
        raise ValueError("only a message function reads edge data: pass message=...")
    if message is not None:
        _check_message(shard, x, message, edge)
    return Messages(shard, x, message, edge)


def _check_message(
    shard: Shard, x: jax.Array | FeatureColumns, message: MessageFn, edge: str | None
) -> None:
    features: Any = features_of(x)
    rows = features.values
    data = None if edge is None else getattr(shard, edge)
    given = chunk_examples(Inputs((), rows, rows, data), 1)
    examples = given.sender, given.edge, given.receiver
    check_each_edge(message, *examples)
    if features.is_split:
        check_each_column(message, examples, (True, False, True))


def gather(messages: Messages, reduce: str = "sum") -> Neighbors:
    """Describes the reduction of each node's messages, 0 without any.

    Args:
      messages: from `scatter`.
      reduce: "sum", "mean", "max" or "min".

    Returns:
      The aggregated neighbourhoods, for `transform`.

    Raises:
      ValueError: the reduction is unknown.
    """
    check_reduction(reduce)
    return Neighbors(messages, _Reduction(reduce, messages.message, messages.edge))


def transform(
    x: jax.Array | FeatureColumns, neighbors: Neighbors, kernels: Pytree, function: TransformFn
) -> Shares:
    """This device's share of a layer's output, before any non-linearity.

    t_i = function(kernels, x_i, a_i)

    Args:
      x: the features that `scatter` was given.
      neighbors: from `gather`.
      kernels: pytree of parameters. Arrays have one row per feature of x; on columns the function
        gets the rows of the device's columns. Scalars are passed as they are.
      function: `(kernels, x, a) -> [rows, out_features]`; a sum over features of a term of each:
        element-wise steps, then one product with kernels. It closes over no array.

    Returns:
      The share, for `sync`.

    Raises:
      ValueError: an array among the kernels has another number of rows, or `scatter` got another x.
    """
    if x is not neighbors.messages.x:
        raise ValueError("x is not the array whose messages were gathered; pass the same one")
    shard = neighbors.messages.shard
    return Shares(shard, x, _checked(kernels, x), neighbors.aggregation, function)


def _checked(kernels: Pytree, x: jax.Array | FeatureColumns) -> Pytree:
    width = features_of(x).width
    for kernel in jax.tree.leaves(kernels):
        if jnp.ndim(kernel) and kernel.shape[0] != width:
            raise ValueError(
                f"x has {width} features, but a kernel has shape {kernel.shape}; expected one row "
                "per feature"
            )
    return kernels


def sync(shares: Shares) -> jax.Array:
    """Sums all devices' shares of the own rows; on rows there is one share, and no sum.

    Args:
      shares: from `transform`.

    Returns:
      float [rows, out_features].

    Raises:
      ValueError: x is split by column, but the graph is not in mode "p3".
    """
    return features_of(shares.x).sync(shares)


def apply(function: Callable[..., Pytree], *rows: jax.Array) -> Pytree:
    """Applies a function to complete rows of the own nodes.

    Args:
      function: any, such as an activation.
      rows: float [rows, ...] each, such as the result of `sync`.

    Returns:
      The result of the function.

    Raises:
      ValueError: a share that was not synchronised, or features that are split by column.
    """
    for each in rows:
        if isinstance(each, Shares | FeatureColumns):
            raise ValueError(
                f"apply takes complete rows, but was given {type(each).__name__}; pass the "
                "result of sync(...)"
            )
    return function(*rows)


def __dir__() -> list[str]:
    return sorted(__all__)
