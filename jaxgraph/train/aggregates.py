"""Aggregates the features of sharded graphs once for a model's first layer."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxgraph.layers import (
    AggregatedFeatures,
    FirstAggregation,
    aggregate_by_columns,
    check_edge_data,
    plain_features,
)
from jaxgraph.parallel import FeatureColumns, Shard, ShardedGraph, SparseFeatures, ptags, spmd
from jaxgraph.parallel.placement import check_sharded
from jaxgraph.parallel.streaming.graph import StreamedGraph
from jaxgraph.train.latest_programs import LatestPrograms
from jaxgraph.train.streamed_aggregates import StreamedAggregate

__all__ = [
    "aggregate_once",
    "aggregate_that_pays",
    "first_aggregation",
    "streamed_aggregate",
    "with_aggregates",
]

LEAST_WIDTH = 128
"""The least number of columns that are aggregated at once."""


def aggregate_once(model: nnx.Module, sharded: ShardedGraph) -> ShardedGraph:
    """Adds to a graph's features their aggregate in a model's first layer.

    Steps, evaluation and prediction on the result skip the first layer's aggregation, its
    communication and its gradient; their results are the same but for rounding. Training with
    dropout aggregates in every step, since each step drops other features. The result serves every
    model: another first layer reads the features alone. Your own step passes `shard.nodes` to the
    model as before.

    Each device holds one more array [rows, features]. It holds two for GraphSAGE, which maps
    features and sums by one product, and for features that are not 0 in the rows of padding. For
    features split by column it holds the aggregate of its columns, for all nodes.

    Args:
      model: has `first_aggregation`, a `jaxgraph.layers.FirstAggregation`, as models of
        `jaxgraph.nn` without attention have.
      sharded: the graph; its leaves may be `jax.ShapeDtypeStruct`.

    Returns:
      The same graph; `nodes` of its shards are `jaxgraph.layers.AggregatedFeatures`.

    Raises:
      ValueError: the model's first aggregation has parameters, or the graph is not sharded, has no
        features, or has edge data that the model would ignore.
    """
    check_sharded(sharded, "aggregate_once(model, sharded)", may_stream=True)
    first = first_aggregation(model)
    if first is None:
        raise ValueError(
            f"the first layer of {type(model).__name__} aggregates nothing that stays the same "
            "from step to step; train on the graph as it is"
        )
    check_edge_data(sharded.shards, type(model).__name__, first.aggregation.edge_data)
    x: Any = plain_features(sharded.shards.nodes)
    if x is None:
        raise ValueError(
            "the graph has no features, so that nothing can be aggregated once; train on the graph "
            "as it is"
        )
    if _are_sparse(x):
        raise ValueError(
            "the graph has sparse features, whose aggregate would be dense; train on the graph as "
            "it is, or make them dense: graph.replace(nodes=graph.nodes.toarray())"
        )
    if isinstance(x, FeatureColumns):
        first = dataclasses.replace(first, is_joined_with_features=False)
    if isinstance(sharded.shards.nodes, AggregatedFeatures):
        if _holds(first, sharded.shards.nodes):
            return sharded
        sharded = _with_nodes(sharded, x)
    if isinstance(x, FeatureColumns):
        is_abstract = isinstance(x.values, jax.ShapeDtypeStruct)
        of_columns = x.values if is_abstract else _aggregate_columns(first, sharded)
        return _with_nodes(sharded, AggregatedFeatures(x, of_columns, first.aggregation))
    if isinstance(sharded, StreamedGraph):
        return streamed_aggregate(first, sharded).compute()
    if isinstance(x, jax.ShapeDtypeStruct):
        columns = x.shape[-1] * (2 if first.is_joined_with_features else 1)
        given: Any = x
        aggregate: Any = x.update(shape=(*x.shape[:-1], columns))
        return _with_nodes(sharded, AggregatedFeatures(given, aggregate, first.aggregation))
    aggregate, is_masked = _aggregate(first, sharded)
    # Placed features are 0 in the rows of padding, and need no copy.
    features = x if is_masked else _masked(sharded)
    return _with_nodes(sharded, AggregatedFeatures(features, aggregate, first.aggregation))


def with_aggregates(
    model: nnx.Module, graphs: tuple[ShardedGraph, ...], epochs: int
) -> tuple[ShardedGraph, ...]:
    """Aggregates graphs once for a model where that saves more than it costs.

    Args:
      model: the model to train and evaluate.
      graphs: in the order of their steps.
      epochs: number of epochs.

    Returns:
      Graphs in the same order.
    """
    return tuple(
        aggregate_once(model, graph) if _pays(model, graph, epochs) else graph for graph in graphs
    )


def aggregate_that_pays(
    model: nnx.Module, graph: StreamedGraph, epochs: int
) -> StreamedAggregate | None:
    """The aggregate of a streamed graph, not yet computed, where it saves more than it costs.

    Args:
      model: the model to train and evaluate.
      graph: the graph.
      epochs: number of epochs.
    """
    first, nodes = first_aggregation(model), graph.shards.nodes
    if first is None or not _pays(model, graph, epochs):
        return None
    plain: Any = graph
    if isinstance(nodes, AggregatedFeatures):
        if _holds(first, nodes):
            return None
        plain = _with_nodes(graph, plain_features(nodes))
    return streamed_aggregate(first, plain)


def streamed_aggregate(first: FirstAggregation, graph: StreamedGraph) -> StreamedAggregate:
    """Prepares the aggregate of a streamed graph with dense features alone, once.

    Args:
      first: the aggregation.
      graph: the graph.
    """
    width = max(first.width, LEAST_WIDTH)
    key = ("aggregate", first.aggregation, first.is_joined_with_features, width)
    return graph.parts.cached(key, lambda: StreamedAggregate.of(first, graph, width))


def _holds(first: FirstAggregation, nodes: AggregatedFeatures) -> bool:
    """True where the aggregate of features is that of an aggregation."""
    is_same = nodes.is_joined_with_features == first.is_joined_with_features
    return nodes.aggregation == first.aggregation and is_same


def first_aggregation(model: Any) -> FirstAggregation | None:
    """Returns the attribute `first_aggregation` of a model, or None."""
    return getattr(model, "first_aggregation", None)


def _pays(model: nnx.Module, sharded: ShardedGraph, epochs: int) -> bool:
    """True if one aggregation moves no more numbers than one in every pass.

    Aggregating a column reads a number for every edge and node. Once, this covers all columns of
    the features. In each pass, it covers `width` columns, and copies the features without the rows
    of padding. An epoch has three passes that benefit: forward and backward of the step, unless
    dropout forbids it, and evaluation. The number of matrix products is the same.
    """
    first, x = first_aggregation(model), plain_features(sharded.shards.nodes)
    if first is None or x is None or _are_sparse(x):
        return False
    of_column, of_copy = _numbers_moved(sharded)
    features = (x.values if isinstance(x, FeatureColumns) else x).shape[-1]
    width, passes = min(first.width, features), epochs * (3 if first.in_training else 1)
    return features * of_column <= passes * (width * of_column + features * of_copy)


def _are_sparse(x: Any) -> bool:
    """True for sparse features: their map reads fewer numbers than their aggregate would have."""
    return isinstance(x.values if isinstance(x, FeatureColumns) else x, SparseFeatures)


def _numbers_moved(sharded: ShardedGraph) -> tuple[int, int]:
    """Counts numbers moved by aggregating a column, and by copying one."""
    counts = sharded.counts
    if counts is None:
        return 1, 0  # as for very many edges
    return counts.num_edges + counts.num_nodes, 2 * counts.num_nodes


@partial(LatestPrograms, static_argnums=(0,))
def _aggregate(first: FirstAggregation, sharded: ShardedGraph) -> tuple[jax.Array, jax.Array]:
    """The aggregate of `AggregatedFeatures`, and whether x is 0 in the rows of padding."""
    width = max(first.width, LEAST_WIDTH)

    def on_shard(shard: Shard) -> tuple[jax.Array, jax.Array]:
        x = _rows(shard)
        others = jnp.sum(~shard.node_mask[:, None] & (x != 0), dtype=jnp.int32)
        aggregate = aggregate_by_columns(shard, x, first.aggregation, width=width)
        if first.is_joined_with_features:
            aggregate = jnp.concatenate((shard.mask_rows(x), aggregate), axis=1)
        return aggregate[None], shard.sum(others) == 0

    return spmd(on_shard, outputs=("rows", "replicated"))(sharded)


@partial(LatestPrograms, static_argnums=(0,))
def _aggregate_columns(first: FirstAggregation, sharded: ShardedGraph) -> jax.Array:
    """The aggregate of the columns of every device, [parts, parts * rows, columns]."""

    def on_shard(shard: Shard) -> jax.Array:
        x = plain_features(shard.nodes)
        assert isinstance(x, FeatureColumns)
        return ptags.aggregate_columns(shard, x, first.aggregation)[None]

    return spmd(on_shard, outputs="rows")(sharded)


@LatestPrograms
def _masked(sharded: ShardedGraph) -> jax.Array:
    """The features [parts, rows, features] with zeros in the rows of padding."""
    return spmd(lambda shard: shard.mask_rows(_rows(shard))[None], outputs="rows")(sharded)


def _rows(shard: Shard) -> jax.Array:
    x = shard.nodes
    assert isinstance(x, jax.Array)
    return x


def _with_nodes(sharded: ShardedGraph, nodes: Any) -> ShardedGraph:
    if isinstance(sharded, StreamedGraph):
        return sharded.with_nodes(plain_features, plain_features)
    return dataclasses.replace(sharded, shards=dataclasses.replace(sharded.shards, nodes=nodes))
