"""Features that a layer recomputes in its backward, or maps again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxgraph.layers.aggregated import Features
from jaxgraph.parallel import Shard
from pallas_kernels.pytrees import pytree

__all__ = ["DerivedFeatures"]


@pytree
class DerivedFeatures:
    """x = function(shard, *arguments), rows, for layers of attention, under `spmd`.

    Not in mode "domain" of several parts, whose layers read rows of other parts as well.

    Attributes:
      shard: the shard; it is saved as it is.
      arguments: pytrees of arrays; they are saved.
      function: computes x by elementwise steps on arguments that have a row per node; closes over
        nothing but constants.
      keeps_products: whether the products of x are saved as well, and computed once.
      waits: whether x is recomputed when the gradient has arrived; False where x is one of the
        arguments.
    """

    shard: Shard
    arguments: tuple[Any, ...]
    function: Callable[..., Features] = dataclasses.field(metadata={"static": True})
    keeps_products: bool = dataclasses.field(metadata={"static": True})
    waits: bool = dataclasses.field(default=True, metadata={"static": True})
