"""Features that a layer may make again for its backward, and need not keep."""

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

    Not in mode "domain" of several parts, whose layers take in rows of other parts as well.

    Attributes:
      shard: the shard, kept as it is.
      arguments: pytrees of arrays, kept.
      function: makes x by elementwise steps on arguments that hold a row per node; closes over
        nothing but constants.
      keeps_products: whether what the layer maps x to is kept as well, so that it is computed once.
    """

    shard: Shard
    arguments: tuple[Any, ...]
    function: Callable[..., Features] = dataclasses.field(metadata={"static": True})
    keeps_products: bool = dataclasses.field(metadata={"static": True})
