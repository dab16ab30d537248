"""Features together with their aggregate in the first layer, which is computed once.

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
from jaxgraph.parallel import Shard, SparseFeatures, ptags
from jaxgraph.parallel.features import FeatureColumns
from jaxgraph.parallel.neighborhood import check_neighborhood
from pallas_kernels.pytrees import pytree


class Aggregation(ptags.Aggregation, Protocol):
    """A parameter-free aggregation of the neighbours' features; hashable, without arrays."""

    @property
    def edge_data(self) -> tuple[str, ...]:
        """Names of the edge data that it uses, among "edges", "edge_weight" and "edge_type"."""
        ...

    @property
    def is_linear(self) -> bool:
        """True where the aggregation commutes with a linear map of the features."""
        ...

    def __call__(self, shard: Shard, x: jax.Array, /) -> jax.Array:
        """Aggregates x, float [rows, features], each column independently."""
        ...


@pytree
class AggregatedFeatures:
    """Features and their aggregate, which layers accept in place of features under `spmd`.

    A layer with this aggregation reads the aggregate; other layers and dropout read the features.
    So a layer has the same output for features with and without their aggregate.

    Attributes:
      features: float [rows, features], x; 0 in the rows of padding; or this device's columns of all
        nodes.
      aggregate: float [rows, features], the aggregation of x, or [rows, 2 features], x and its
        aggregate side by side; 0 in the rows of padding. P3: float [parts * rows, columns].
      aggregation: the aggregation that was applied.
    """

    features: jax.Array | FeatureColumns
    aggregate: jax.Array
    aggregation: Aggregation = dataclasses.field(metadata={"static": True})

    @property
    def is_joined_with_features(self) -> bool:
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
"""The input of layers: rows of the own nodes, dense or sparse, columns of all nodes, or either with
its aggregate."""


@dataclasses.dataclass(frozen=True)
class FirstAggregation:
    """The parameter-free aggregation that a model's first layer applies to the features.

    Attributes:
      aggregation: the aggregation itself.
      width: number of columns that a pass aggregates where the aggregate is not stored.
      in_training: whether its input has no randomness in training; in inference it never has.
      is_followed_by_maps: whether the layer only maps features and aggregate linearly, so that its
        backward needs no residual other than the layer's output.
      is_joined_with_features: whether the layer multiplies features and aggregate by a matrix each;
        stored side by side, they take one product.
    """

    aggregation: Aggregation
    width: int
    in_training: bool = True
    is_followed_by_maps: bool = True
    is_joined_with_features: bool = False


@overload
def plain_features(x: Features) -> jax.Array | SparseFeatures | FeatureColumns: ...
@overload
def plain_features(x: None) -> None: ...
def plain_features(
    x: Features | None,
) -> jax.Array | SparseFeatures | FeatureColumns | None:
    """Returns x without its aggregate."""
    return x.features if isinstance(x, AggregatedFeatures) else x


def aggregate_by_columns(
    shard: Shard, x: jax.Array, aggregation: Aggregation, *, width: int
) -> jax.Array:
    """Aggregates x, `width` columns at a time.

    A halo is then no larger than in a layer of that width.
    """
    check_neighborhood(shard)
    features = x.shape[1]

    def aggregated(columns: jax.Array) -> jax.Array:
        return shard.mask_rows(aggregation(shard, columns)).astype(x.dtype)

    if width >= features:
        return aggregated(x)

    def of_columns(index: jax.Array, aggregate: jax.Array) -> jax.Array:
        # The last slice starts where it fits, and recomputes some columns.
        start = jnp.minimum(index * width, features - width)
        columns = aggregated(lax.dynamic_slice_in_dim(x, start, width, 1))
        return lax.dynamic_update_slice_in_dim(aggregate, columns, start, 1)

    empty = match_variation(jnp.zeros_like(x), x)
    return lax.fori_loop(0, math.ceil(features / width), of_columns, empty)
