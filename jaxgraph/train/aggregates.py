"""Aggregates the features of sharded graphs once for a model's first layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxgraph.layers.aggregated import AggregatedFeatures, FirstAggregation
from jaxgraph.layers.edge_data import check_edge_data
from jaxgraph.parallel import Shard, ShardedGraph, spmd
from jaxgraph.parallel.feature_protocol import features_of, plain_of
from jaxgraph.parallel.streaming.function import StreamedFunction
from jaxgraph.parallel.streaming.graph import StreamedGraph
from jaxgraph.train.latest_programs import LatestPrograms

LEAST_WIDTH = 128
"""The least number of columns that are aggregated at once."""


def aggregate_once(model: nnx.Module, sharded: ShardedGraph) -> ShardedGraph:
    """Adds to a graph's features their aggregate in a model's first layer.

    Steps, evaluation and prediction on the result skip the first layer's aggregation, its
    communication and its gradient; their results are the same but for rounding. Training with
    dropout aggregates in every step, since each step drops other features. Another first layer
    reads the features alone. Features are dense, and the model has a first aggregation.

    Each device holds one more array [rows, features]. It holds two for GraphSAGE, which maps
    features and sums by one product, and for features that are not 0 in the rows of padding. For
    features split by column it holds the aggregate of its columns, for all nodes.
    """
    first = first_aggregation(model)
    assert first is not None
    check_edge_data(sharded.shards, type(model).__name__, first.aggregation.edge_data)
    if isinstance(sharded, StreamedGraph):
        return _streamed_aggregate(first, sharded).compute()
    x: Any = sharded.shards.nodes
    if features_of(x).is_split:
        is_abstract = isinstance(x.values, jax.ShapeDtypeStruct)
        of_columns = x.values if is_abstract else _aggregate_columns(first, sharded)
        nodes = AggregatedFeatures(x, of_columns, first.aggregation)
    elif isinstance(x, jax.ShapeDtypeStruct):
        nodes = _typed(x, first)
    else:
        aggregate, is_masked = _aggregate(first, sharded)
        # Placed features are 0 in the rows of padding, and need no copy.
        nodes = AggregatedFeatures(
            x if is_masked else _masked(sharded), aggregate, first.aggregation
        )
    return dataclasses.replace(sharded, shards=sharded.shards.with_table(nodes=nodes))


def with_aggregates(
    model: nnx.Module,
    graphs: tuple[ShardedGraph, ...],
    epochs: int,
    fits: Callable[[StreamedAggregate], bool] = lambda aggregate: True,
) -> tuple[ShardedGraph, ...]:
    """Aggregates graphs once for a model where that saves more than it costs."""
    first = first_aggregation(model)

    def aggregated(graph: ShardedGraph) -> ShardedGraph:
        if first is None or not _pays(first, graph, epochs):
            return graph
        if isinstance(graph, StreamedGraph):
            found = _streamed_aggregate(first, graph)
            return found.compute() if fits(found) else graph
        return aggregate_once(model, graph)

    return tuple(map(aggregated, graphs))


@dataclasses.dataclass(frozen=True, eq=False)
class StreamedAggregate:
    """A streamed graph whose parts hold the aggregate of their features, once it is computed.

    Attributes:
      graph: the graph with the aggregate.
      function: computes the aggregate from the graph without it.
      key: of the aggregate in the store of the parts.
    """

    graph: StreamedGraph
    function: StreamedFunction
    key: str

    def compute(self) -> StreamedGraph:
        """Computes the aggregate, unless the parts hold it already, and returns the graph."""
        store, parts = self.graph.parts.store, self.graph.parts.own
        if not all(store.has(self.key, part) for part in parts):
            self.function.write_rows(lambda part, rows: store.put(self.key, part, rows))
        return self.graph


def _streamed_aggregate(first: FirstAggregation, plain: StreamedGraph) -> StreamedAggregate:
    """Prepares the aggregate of a streamed graph with dense features alone, once."""
    aggregation, joined = first.aggregation, first.is_joined_with_features
    key: Any = f"aggregate {aggregation!r}, {joined}"

    def typed(table: Any) -> dict[str, Any]:
        return {"nodes": _typed(table.nodes, first)}

    def named(table: Any) -> dict[str, Any]:
        return {"nodes": AggregatedFeatures(table.nodes, key, aggregation)}

    def make() -> StreamedAggregate:
        function = StreamedFunction(partial(_of_shard, first), plain, (), outputs="rows")
        graph = plain.with_table(typed, named)
        return StreamedAggregate(graph, function, key)

    return plain.parts.cached((key, first.width), make)


def _of_shard(first: FirstAggregation, shard: Shard) -> jax.Array:
    """The aggregate of `AggregatedFeatures` in the rows of a shard with dense features."""
    x = _rows(shard)
    aggregate = _applied(first, shard, max(first.width, LEAST_WIDTH))
    if first.is_joined_with_features:
        aggregate = jnp.concatenate((shard.mask_rows(x), aggregate), axis=1)
    return aggregate


def _applied(first: FirstAggregation, shard: Shard, width: int) -> jax.Array:
    """The aggregate of a shard's features, where a device holds them, after all steps."""
    x: Any = features_of(shard.nodes)
    for _ in range(first.steps):
        x = dataclasses.replace(x, values=x.aggregated(shard, first.aggregation, width))
    return x.values


def _typed(x: Any, first: FirstAggregation) -> AggregatedFeatures:
    """The shapes of features and their aggregate."""
    columns = x.shape[-1] * (2 if first.is_joined_with_features else 1)
    return AggregatedFeatures(x, x.update(shape=(*x.shape[:-1], columns)), first.aggregation)


def first_aggregation(model: Any) -> FirstAggregation | None:
    """Returns the attribute `first_aggregation` of a model, or None."""
    return getattr(model, "first_aggregation", None)


def _pays(first: FirstAggregation, sharded: ShardedGraph, epochs: int) -> bool:
    """True if one aggregation moves no more numbers than one in every pass.

    Aggregating a column reads a number for every edge and node. Once, this covers all columns of
    the features. In each pass, it covers `width` columns, and copies the features without the rows
    of padding. An epoch has three passes that benefit: forward and backward of the step, unless
    dropout forbids it, and evaluation. The number of matrix products is the same.
    """
    nodes = sharded.shards.nodes
    if nodes is None or plain_of(nodes).is_sparse:
        return False
    counts = sharded.counts
    # Without counts: as for very many edges.
    of_column, of_copy = (
        (1, 0) if counts is None else (counts.num_edges + counts.num_nodes, 2 * counts.num_nodes)
    )
    features = plain_of(nodes).columns
    width, passes = min(first.width, features), epochs * (3 if first.in_training else 1)
    return features * of_column <= passes * (width * of_column + features * of_copy)


@partial(LatestPrograms, static_argnums=(0,))
def _aggregate(first: FirstAggregation, sharded: ShardedGraph) -> tuple[jax.Array, jax.Array]:
    """The aggregate of `AggregatedFeatures`, and whether x is 0 in the rows of padding."""

    def on_shard(shard: Shard) -> tuple[jax.Array, jax.Array]:
        others = jnp.sum(~shard.node_mask[:, None] & (_rows(shard) != 0), dtype=jnp.int32)
        return _of_shard(first, shard)[None], shard.sum(others) == 0

    return spmd(on_shard, outputs=("rows", "replicated"))(sharded)


@partial(LatestPrograms, static_argnums=(0,))
def _aggregate_columns(first: FirstAggregation, sharded: ShardedGraph) -> jax.Array:
    """The aggregate of the columns of every device, [parts, parts * rows, columns]."""

    def on_shard(shard: Shard) -> jax.Array:
        return _applied(first, shard, first.width)[None]

    return spmd(on_shard, outputs="rows")(sharded)


@LatestPrograms
def _masked(sharded: ShardedGraph) -> jax.Array:
    """The features [parts, rows, features] with zeros in the rows of padding."""
    return spmd(lambda shard: shard.mask_rows(_rows(shard))[None], outputs="rows")(sharded)


def _rows(shard: Shard) -> jax.Array:
    x: Any = shard.nodes
    return x
