"""The convolutions that a `Stack` takes, and what they may declare."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax

from jaxgraph.layers import FirstAggregation

__all__ = ["Convolution", "Declaration", "declaration"]


class Convolution(Protocol):
    """A layer that owns its parameters and aggregates over a neighbourhood.

    Any callable of these arguments is one. Beside that it may have the attributes of `Declaration`.
    The first two save time or memory, and change no result.
    """

    def __call__(
        self, neighborhood: Any, x: Any, /, *, key: jax.Array | None, train: bool
    ) -> jax.Array:
        """float [rows, out_features] of x [rows, in_features].

        Args:
          neighborhood: what it aggregates over, such as a `jaxgraph.parallel.Shard`.
          x: the features, such as `shard.nodes`.
          key: scalar random key of this layer, or None.
          train: whether this is a pass of training.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Declaration:
    """The optional attributes of a convolution, with the defaults for one that lacks them.

    Attributes:
      first_aggregation: what it aggregates of its input before it uses a parameter. Where it is the
        first layer, `jaxgraph.train.fit` aggregates the features once. It then takes
        `jaxgraph.layers.AggregatedFeatures` as well.
      mapped_features: columns that it maps its input to before it reads edges, if its backward can
        recompute input and products. It then takes `jaxgraph.layers.DerivedFeatures` as well.
    """

    first_aggregation: FirstAggregation | None = None
    mapped_features: int | None = None
    takes_initial: bool = False


def declaration(convolution: Any) -> Declaration:
    """The attributes of a convolution, with the defaults for those that it lacks."""
    names = [field.name for field in dataclasses.fields(Declaration)]
    return Declaration(**{n: getattr(convolution, n) for n in names if hasattr(convolution, n)})
