"""The bases of all modules here: whether a pass trains is an argument of every call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxgraph.kinds import kind_of
from jaxgraph.nn import parameters
from jaxgraph.parallel import Shard
from jaxgraph.parallel.feature_protocol import Features
from jaxgraph.parallel.whole_graph import on_device

if TYPE_CHECKING:
    from jaxgraph.graph import Graph


class Module(nnx.Module):
    """A module of Flax NNX without a training mode of its own."""

    def train(self, **attributes: Any) -> None:
        """Refuses to set a mode that no layer would read."""
        raise ValueError(
            f"{type(self).__name__}.train() would have no effect; expected train=True and a random "
            "key in the call: model(graph, x, key=key, train=True)"
        )


def check_callable(name: str, part: Any, call: str, *args: Any, **options: Any) -> None:
    """Refuses a part of a model, by its name, that cannot be called as it will be."""
    if isinstance(part, type):
        raise ValueError(
            f"{name} is the class {part.__name__}; expected an instance, {part.__name__}(...)"
        )
    try:
        inspect.signature(part).bind(*args, **options)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} is {kind_of(part)}, which cannot be called as {name}({call}): {error}"
        ) from error


@dataclass(eq=False, repr=False)
class SizedModule(Module):
    """The base of modules that map rows of one width to rows of another.

    A module is a dataclass: each argument of its constructor is a field, inherited or its own. It
    adds `_make`, which makes its parameters, and `_layer`, the function of them that it computes:
    `(params, shard, x, ...) -> y`. `_options` are the fields that the function takes by name; with
    "dropout" it takes a key, too.
    """

    _layer: ClassVar[Callable[..., jax.Array]]
    _options: ClassVar[tuple[str, ...]] = ()

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

    def _kernel(self, rngs: nnx.Rngs, rows: int, columns: int) -> nnx.Param:
        return parameters.kernel(rngs, rows, columns, self.param_dtype)

    def _zeros(self, features: int) -> nnx.Param:
        return parameters.zeros(features, self.param_dtype)

    def __call__(
        self,
        shard: Graph | Shard,
        x: Features,
        *,
        key: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """Returns y of x [rows, in_features], or of this device's columns of x.

        y is [rows, out_features], with concatenated heads [rows, heads * out_features].
        """
        shard, x = on_device(shard, x)
        options = {name: getattr(self, name) for name in self._options}
        if "dropout" in options:
            options |= {"dropout": options["dropout"] if train else 0.0, "key": key}
        params, x = parameters.values(self), parameters.in_dtype(x, self.dtype)
        return type(self)._layer(params, shard, x, **options)
