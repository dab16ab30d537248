"""The protocol of a `Stack`'s convolutions, and their optional attributes."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax

from jaxgraph.layers.aggregated import FirstAggregation


class Convolution(Protocol):
    """A layer that owns its parameters and aggregates over a neighbourhood.

    Any callable with these arguments is one. It may also have the attributes of `Declaration`. The
    first two save time or memory, and change no result.
    """

    def __call__(
        self, neighborhood: Any, x: Any, /, *, key: jax.Array | None, train: bool
    ) -> jax.Array:
        """Returns float [rows, out_features] of x [rows, in_features]."""
        ...


@dataclasses.dataclass(frozen=True)
class Declaration:
    """The optional attributes of a convolution, with the defaults for one that lacks them.

    Attributes:
      first_aggregation: the aggregation of its input before it uses a parameter. For a first layer
        `jaxgraph.train.fit` aggregates the features once; the layer then also takes
        `jaxgraph.layers.aggregated.AggregatedFeatures`.
      mapped_features: number of columns of its mapped input before it reads edges, if its backward
        can recompute input and products. It then also takes
        `jaxgraph.layers.derived.DerivedFeatures`.
      takes_initial: whether it reads the first layer's output, as the argument `initial`.
    """

    first_aggregation: FirstAggregation | None = None
    mapped_features: int | None = None
    takes_initial: bool = False


def declaration(convolution: Any) -> Declaration:
    """The attributes of a convolution, with the defaults for those that it lacks."""
    names = [field.name for field in dataclasses.fields(Declaration)]
    return Declaration(**{n: getattr(convolution, n) for n in names if hasattr(convolution, n)})
