"""The bases of all modules here: whether a pass trains is an argument of every call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxgraph.layers.aggregated import Features
from jaxgraph.layers.derived import DerivedFeatures
from jaxgraph.nn import parameters
from jaxgraph.parallel import Shard
from jaxgraph.parallel.whole_graph import on_device

if TYPE_CHECKING:
    from jaxgraph.graph import Graph

Params = Mapping[str, jax.Array]


class Module(nnx.Module):
    """A module of Flax NNX without a training mode of its own."""

    def train(self, **attributes: Any) -> None:
        """Refuses to set a mode that no layer would read."""
        raise ValueError(
            f"{type(self).__name__}.train() would have no effect; expected train=True and a random "
            "key in the call: model(graph, x, key=key, train=True)"
        )


@dataclass(eq=False, repr=False)
class SizedModule(Module):
    """The base of modules that map rows of one width to rows of another.

    A module is a dataclass: each argument of its constructor is a field, inherited or its own. It
    adds `_make`, which makes its parameters, and `_compute`, which is given their values.
    """

    in_features: int
    out_features: int
    _: KW_ONLY
    use_bias: bool = True
    dtype: DTypeLike | None = None
    param_dtype: DTypeLike = jnp.float32
    rngs: InitVar[nnx.Rngs]

    def __post_init__(self, rngs: nnx.Rngs) -> None:
        parameters.check_sizes(in_features=self.in_features, out_features=self.out_features)
        self.dtype = parameters.checked_dtype(self.dtype, self.param_dtype)
        self._make(rngs)

    def _make(self, rngs: nnx.Rngs) -> None:
        raise NotImplementedError

    def _compute(
        self, params: Params, shard: Shard, x: Any, key: jax.Array | None, train: bool
    ) -> jax.Array:
        raise NotImplementedError

    def _kernel(self, rngs: nnx.Rngs, rows: int, columns: int) -> nnx.Param:
        return parameters.kernel(rngs, rows, columns, self.param_dtype)

    def _zeros(self, features: int) -> nnx.Param:
        return parameters.zeros(features, self.param_dtype)

    def __call__(
        self,
        shard: Graph | Shard,
        x: Features | DerivedFeatures,
        *,
        key: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """Returns y of x [rows, in_features], or of this device's columns of x.

        y is [rows, out_features], with concatenated heads [rows, heads * out_features].
        """
        shard, x = on_device(shard, x)
        x = parameters.in_dtype(x, self.dtype)
        return self._compute(parameters.values(self), shard, x, key, train)
