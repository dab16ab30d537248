"""Features together with their aggregate in the first layer, which is computed once.

The features of a graph do not change in training. Where the first layer sums them over neighbours
without parameters, and nothing random comes before it, the sums do not change either.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax

from jaxgraph.parallel import ptags
from jaxgraph.parallel.feature_protocol import FeatureKind, Features, features_of
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


@pytree
class AggregatedFeatures(FeatureKind):
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

    features: Features
    aggregate: jax.Array
    aggregation: Aggregation = dataclasses.field(metadata={"static": True})

    is_masked = True

    @property
    def plain(self) -> Features:
        """x without its aggregate."""
        return self.features

    @property
    def values(self) -> FeatureKind:
        """x by its protocol."""
        return features_of(self.features)

    @property
    def is_joined_with_features(self) -> bool:
        """True where `aggregate` also holds x, for layers that map both by one product."""
        return self.aggregate.shape[-1] > self.values.columns

    def stores(self, aggregation: ptags.Aggregation, joined: bool | None = None) -> bool:
        """True for its own aggregation."""
        return self.aggregation == aggregation and joined in (None, self.is_joined_with_features)

    def aggregate_alone(self) -> jax.Array:
        """float [rows, features], the aggregation of x."""
        return self.aggregate[..., -self.values.columns :]

    def first_rows(self, count: int) -> AggregatedFeatures:
        """The first rows of both."""
        features = self.values.first_rows(count)
        return dataclasses.replace(self, features=features, aggregate=self.aggregate[:count])

    def astype(self, dtype: Any) -> AggregatedFeatures:
        """Features and aggregate in another type."""
        features = self.values.astype(dtype)
        return dataclasses.replace(self, features=features, aggregate=self.aggregate.astype(dtype))


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
      steps: how often it is applied, to features and then to its own result.
    """

    aggregation: Aggregation
    width: int
    in_training: bool = True
    is_followed_by_maps: bool = True
    is_joined_with_features: bool = False
    steps: int = 1
