"""Features that a layer recomputes, or maps again, in its backward."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxgraph.parallel import Shard
from jaxgraph.parallel.feature_protocol import FeatureKind, Features, in_dtype
from pallas_kernels.pytrees import pytree


@pytree
class DerivedFeatures(FeatureKind):
    """x = function(shard, *arguments), the rows that an attention layer reads, under `spmd`.

    Not for mode "domain" with several parts: its layers also read rows of other parts.

    Attributes:
      shard: the shard; it is saved.
      arguments: pytrees of arrays; they are saved.
      function: computes x by elementwise steps on arguments that have a row per node; closes over
        nothing but constants.
      keeps_products: whether the products of x are also saved instead of recomputed.
      waits: whether x is recomputed after the gradient has arrived; False where x is one of the
        arguments.
    """

    shard: Shard
    arguments: tuple[Any, ...]
    function: Callable[..., Features] = dataclasses.field(metadata={"static": True})
    keeps_products: bool = dataclasses.field(metadata={"static": True})
    waits: bool = dataclasses.field(default=True, metadata={"static": True})

    @property
    def plain(self) -> Features:
        """x, computed now."""
        return self.function(self.shard, *self.arguments)

    @property
    def derivation(self) -> DerivedFeatures:
        """x itself."""
        return self

    def in_dtype(self, dtype: Any) -> DerivedFeatures:
        """The features with the result of the function in another type."""
        made = self.function
        return dataclasses.replace(self, function=lambda *given: in_dtype(made(*given), dtype))
