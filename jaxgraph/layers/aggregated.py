"""Features that carry what the first layer's aggregation makes of them, computed once.

The features of a graph do not change in training. Where the first layer sums them over neighbours
without parameters, and nothing random comes before it, the sums do not change either.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol, overload

import jax
import jax.numpy as jnp
from jax import lax

from jaxgraph.ops.core.edges import match_variation
from jaxgraph.parallel import FeatureColumns, Shard, SparseFeatures, ptags
from jaxgraph.parallel.neighborhood import check_neighborhood
from pallas_kernels.pytrees import pytree

__all__ = [
    "AggregatedFeatures",
    "Aggregation",
    "Features",
    "FirstAggregation",
    "aggregate_by_columns",
    "plain_features",
]


class Aggregation(ptags.Aggregation, Protocol):
    """A parameter-free aggregation of the neighbours' features; hashable, without arrays."""

    @property
    def edge_data(self) -> tuple[str, ...]:
        """Names of the edge data that it uses, of "edges", "edge_weight" and "edge_type"."""
        ...

    @property
    def is_linear(self) -> bool:
        """True where the aggregation commutes with a linear map of the features."""
        ...

    def __call__(self, shard: Shard, x: jax.Array, /) -> jax.Array:
        """float [rows, features] of x [rows, features]; every column by itself."""
        ...


@pytree
class AggregatedFeatures:
    """Features and their aggregate; layers take it in place of features, under `spmd`.

    A layer whose aggregation is this one takes the aggregate; every other one, and dropout, take
    the features. So a layer's output does not depend on which of the two it is given.

    Attributes:
      features: float [rows, features], x; 0 in the rows of padding. Or this device's columns of all
        nodes.
      aggregate: float [rows, features], the aggregation of x, or [rows, 2 features], each row of x
        and then its aggregate; 0 in the rows of padding. P3: float [parts * rows, columns].
      aggregation: which one.
    """

    features: jax.Array | FeatureColumns
    aggregate: jax.Array
    aggregation: Aggregation = dataclasses.field(metadata={"static": True})

    @property
    def is_behind_features(self) -> bool:
        """True where `aggregate` also holds x, for layers that map both by one product."""
        return self.aggregate.shape[-1] > self.values.shape[-1]

    @property
    def values(self) -> jax.Array:
        """x, or this device's columns of it."""
        features = self.features
        return features.values if isinstance(features, FeatureColumns) else features

    def aggregate_alone(self) -> jax.Array:
        """float [rows, features], the aggregation of x."""
        return self.aggregate[..., -self.values.shape[-1] :]


Features = jax.Array | SparseFeatures | FeatureColumns | AggregatedFeatures
"""The input of layers: rows of the own nodes, dense or sparse, columns of all nodes, or dense ones
with aggregates."""


@dataclasses.dataclass(frozen=True)
class FirstAggregation:
    """The parameter-free aggregation that a model's first layer applies to the features.

    Attributes:
      aggregation: the aggregation itself.
      width: columns that a pass aggregates where the aggregate is not at hand.
      in_training: whether nothing random comes before it in training; in inference nothing does.
      is_followed_by_maps: whether the layer only maps features and aggregate linearly, so that its
        backward needs no residual but the layer's output.
      is_behind_features: whether the layer maps features and aggregate by a matrix each, which is
        one product where both are stored in the same rows.
    """

    aggregation: Aggregation
    width: int
    in_training: bool = True
    is_followed_by_maps: bool = True
    is_behind_features: bool = False


@overload
def plain_features(x: Features) -> jax.Array | SparseFeatures | FeatureColumns: ...
@overload
def plain_features(x: None) -> None: ...
def plain_features(
    x: Features | None,
) -> jax.Array | SparseFeatures | FeatureColumns | None:
    """x without its aggregate."""
    return x.features if isinstance(x, AggregatedFeatures) else x


def aggregate_by_columns(
    shard: Shard, x: jax.Array, aggregation: Aggregation, *, width: int
) -> jax.Array:
    """The aggregation of x, some columns after the others.

    So no more is fetched from other parts at once than in a layer of that width.

    Args:
      shard: the shard, under `spmd`.
      x: float [rows, features].
      aggregation: what is computed of it.
      width: columns that are aggregated at once.

    Returns:
      float [rows, features], 0 in the rows of padding.
    """
    check_neighborhood(shard)
    features = x.shape[1]

    def aggregated(columns: jax.Array) -> jax.Array:
        return shard.mask_rows(aggregation(shard, columns)).astype(x.dtype)

    if width >= features:
        return aggregated(x)

    def of_columns(index: jax.Array, aggregate: jax.Array) -> jax.Array:
        # The last columns begin where all of them fit, and repeat some.
        start = jnp.minimum(index * width, features - width)
        columns = aggregated(lax.dynamic_slice_in_dim(x, start, width, 1))
        return lax.dynamic_update_slice_in_dim(aggregate, columns, start, 1)

    empty = match_variation(jnp.zeros_like(x), x)
    return lax.fori_loop(0, math.ceil(features / width), of_columns, empty)
