"""The features of sharded graphs, aggregated once for the first layer of a model."""

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

__all__ = ["aggregate_once", "first_aggregation", "with_aggregates"]

LEAST_WIDTH = 128
"""Columns that are aggregated at once, if a pass of the model does not take more anyway."""


def aggregate_once(model: nnx.Module, sharded: ShardedGraph) -> ShardedGraph:
    """A graph whose features carry what the first layer of a model aggregates of them.

    Steps, evaluation and prediction on it skip the aggregation of the first layer, its
    communication and its gradient; what they return is the same but for rounding. In training with
    dropout the features are aggregated anew, since others are dropped in every step. The result
    serves every model: one with another first layer takes the features alone. A step of one's own
    passes `shard.nodes` to the model as ever.

    Each device holds one more array [rows, features], or two: for GraphSAGE, which maps features
    and sums by one product, or if the features given are not 0 in the rows of padding. Of features
    that are split by column it holds the aggregate of its columns, for all nodes.

    Args:
      model: has `first_aggregation`, a `jaxgraph.layers.FirstAggregation`, as models of
        `jaxgraph.nn` without attention have.
      sharded: the graph; its leaves may be `jax.ShapeDtypeStruct`.

    Returns:
      The same graph, `nodes` of its shards `jaxgraph.layers.AggregatedFeatures`.

    Raises:
      ValueError: the model aggregates by parameters first, or the graph is no sharded one, has no
        features, or edge data that the model would ignore.
    """
    check_sharded(sharded, "aggregate_once(model, sharded)")
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
        first = dataclasses.replace(first, is_behind_features=False)
    if isinstance(sharded.shards.nodes, AggregatedFeatures):
        known = sharded.shards.nodes
        is_same = known.is_behind_features == first.is_behind_features
        if known.aggregation == first.aggregation and is_same:
            return sharded
        sharded = _with_nodes(sharded, x)
    if isinstance(x, FeatureColumns):
        is_abstract = isinstance(x.values, jax.ShapeDtypeStruct)
        of_columns = x.values if is_abstract else _aggregate_columns(first, sharded)
        return _with_nodes(sharded, AggregatedFeatures(x, of_columns, first.aggregation))
    if isinstance(x, jax.ShapeDtypeStruct):
        columns = x.shape[-1] * (2 if first.is_behind_features else 1)
        given: Any = x
        aggregate: Any = x.update(shape=(*x.shape[:-1], columns))
        return _with_nodes(sharded, AggregatedFeatures(given, aggregate, first.aggregation))
    aggregate, is_masked = _aggregate(first, sharded)
    # As a graph is placed, its features are 0 in the rows of padding, and need no copy.
    features = x if is_masked else _masked(sharded)
    return _with_nodes(sharded, AggregatedFeatures(features, aggregate, first.aggregation))


def with_aggregates(
    model: nnx.Module, graphs: tuple[ShardedGraph, ...], epochs: int
) -> tuple[ShardedGraph, ...]:
    """The graphs, aggregated once for the model where that saves more than it costs.

    Args:
      model: to be trained and evaluated.
      graphs: in the order of their steps.
      epochs: in which they are passed.

    Returns:
      Graphs in the same order.
    """
    return tuple(
        aggregate_once(model, graph) if _pays(model, graph, epochs) else graph for graph in graphs
    )


def first_aggregation(model: Any) -> FirstAggregation | None:
    """The attribute `first_aggregation` of a model, or None."""
    return getattr(model, "first_aggregation", None)


def _pays(model: nnx.Module, sharded: ShardedGraph, epochs: int) -> bool:
    """True where aggregating once moves no more numbers than doing so in every pass.

    To aggregate a column reads a number of every edge and node. Done once, it takes all columns of
    the features. Done in each pass, it takes `width` columns, and copies the features without the
    rows of padding. An epoch has three passes: forward and backward of the step, unless dropout
    forbids it, and evaluation. The number of matrix products is the same either way.
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
    """For a column that is aggregated, and for one that is copied."""
    counts = sharded.counts
    if counts is None:
        return 1, 0  # as if there were very many edges
    return counts.num_edges + counts.num_nodes, 2 * counts.num_nodes


@partial(jax.jit, static_argnames="first")
def _aggregate(first: FirstAggregation, sharded: ShardedGraph) -> tuple[jax.Array, jax.Array]:
    """The aggregate of `AggregatedFeatures`, and whether x is 0 in the rows of padding."""
    width = max(first.width, LEAST_WIDTH)

    def on_shard(shard: Shard) -> tuple[jax.Array, jax.Array]:
        x = _rows(shard)
        others = jnp.sum(~shard.node_mask[:, None] & (x != 0), dtype=jnp.int32)
        aggregate = aggregate_by_columns(shard, x, first.aggregation, width=width)
        if first.is_behind_features:
            aggregate = jnp.concatenate((shard.mask_rows(x), aggregate), axis=1)
        return aggregate[None], shard.sum(others) == 0

    return spmd(on_shard, outputs=("rows", "replicated"))(sharded)


@partial(jax.jit, static_argnames="first")
def _aggregate_columns(first: FirstAggregation, sharded: ShardedGraph) -> jax.Array:
    """The aggregate of the columns of every device, [parts, parts * rows, columns]."""

    def on_shard(shard: Shard) -> jax.Array:
        x = plain_features(shard.nodes)
        assert isinstance(x, FeatureColumns)
        return ptags.aggregate_columns(shard, x, first.aggregation)[None]

    return spmd(on_shard, outputs="rows")(sharded)


@jax.jit
def _masked(sharded: ShardedGraph) -> jax.Array:
    """The features [parts, rows, features] with zeros in the rows of padding."""
    return spmd(lambda shard: shard.mask_rows(_rows(shard))[None], outputs="rows")(sharded)


def _rows(shard: Shard) -> jax.Array:
    x = shard.nodes
    assert isinstance(x, jax.Array)
    return x


def _with_nodes(sharded: ShardedGraph, nodes: Any) -> ShardedGraph:
    return dataclasses.replace(sharded, shards=dataclasses.replace(sharded.shards, nodes=nodes))
