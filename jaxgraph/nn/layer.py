"""One layer of a `Stack`: a convolution, its residual connection and the norm after it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxgraph import layers
from jaxgraph.kinds import kind_of
from jaxgraph.nn.linear import Linear
from jaxgraph.nn.normalization import BatchNorm, LayerNorm, RestrictedBatchNorm
from jaxgraph.nn.protocol import Convolution
from jaxgraph.parallel import Shard
from jaxgraph.parallel.feature_protocol import Features, features_of, plain_features

NORMS = MappingProxyType(
    {"batch": BatchNorm, "layer": LayerNorm, "restricted-batch": RestrictedBatchNorm}
)
"""The norms that may follow a convolution, by their name in models."""

BATCH_NORMS = tuple(name for name, kind in NORMS.items() if issubclass(kind, BatchNorm))
"""Those that cancel a bias before them."""
Norm = BatchNorm | LayerNorm
Elementwise = Callable[[Any], Any]


def check_norm(norm: str | None) -> None:
    """Raises ValueError for a name that is not one of `NORMS`."""
    if norm is not None and norm not in NORMS:
        raise ValueError(f"norm is {norm!r}; expected None or one of {', '.join(NORMS)}")


class Layer(nnx.Module):
    """A convolution with its residual connection, and the norm that follows.

    Args:
      convolution: see `jaxgraph.nn.protocol.Convolution`.
      in_features, out_features: sizes of the convolution.
      norm: "batch", "layer", "restricted-batch" or None.
      residual: whether the input is added to the output, through a linear map where their widths
        differ.
      dtype: type to compute in; None: that of x.
      param_dtype: type of the parameters.
      rngs: source of the initial parameters.
    """

    def __init__(
        self,
        convolution: Convolution,
        in_features: int,
        out_features: int,
        *,
        norm: str | None,
        residual: bool,
        dtype: DTypeLike | None,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        types: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype}
        self.convolution = convolution
        self.norm = None if norm is None else NORMS[norm](out_features, **types)
        self.has_residual = residual
        self.residual = (
            Linear(in_features, out_features, use_bias=False, **types, rngs=rngs)
            if residual and in_features != out_features
            else None
        )

    def skip(self, step: Any, x: Features) -> jax.Array | None:
        """The residual connection's term of the output, [rows, out_features], or None."""
        if not self.has_residual:
            return None
        if self.residual is not None:
            return self.residual(step.receivers, step.own_rows(plain_features(x)))
        # Columns are gathered into rows here alone: they are as narrow as the layer's output.
        own = features_of(step.own_rows(plain_features(x)))
        return step.receivers.mask_rows(own.gathered(step.receivers, "a residual connection"))


def layer_keys(key: jax.Array, num_layers: int) -> list[tuple[jax.Array, jax.Array]]:
    """Makes a key for the features and one for the attention of every layer.

    Keys are made for all layers at once, and not recomputed in the backward: each costs a loop.
    """
    if not isinstance(key, jax.Array):
        raise ValueError(f"key: got {kind_of(key)}; expected a random key, jax.random.key(seed)")
    of_layers = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(num_layers))
    of_both = jax.vmap(jax.random.fold_in, (None, 0))
    keys = jax.vmap(of_both, (0, None))(of_layers, jnp.arange(2))
    return [(keys[layer, 0], keys[layer, 1]) for layer in range(num_layers)]


def activated(before: Elementwise, y: Any, skip: jax.Array | None) -> Any:
    """x = before(y) + skip, the output of a layer."""
    y = before(y)
    return y if skip is None else y + skip


def dropped(
    rate: float,
    joins: str | None,
    before: Elementwise,
    shard: Shard,
    y: Any,
    skip: jax.Array | None,
    key: jax.Array | None,
    others: tuple[jax.Array, ...],
) -> Features:
    """h = dropout(join(others, before(y) + skip)), the input of a convolution."""
    x = activated(before, y, skip)
    if joins == "cat":
        x = jnp.concatenate((*others, x), 1)
    elif joins == "max":
        x = functools.reduce(jnp.maximum, others, x)
    return layers.dropout(shard, x, key, rate=rate)


def joined_width(jumping: str, widths: Sequence[int]) -> int:
    """Returns the number of features that `jumping` gives to the last layer."""
    if jumping not in ("cat", "max"):
        raise ValueError(f"jumping is {jumping!r}; expected 'cat', 'max' or None")
    if not widths:
        raise ValueError("jumping joins the layers before the last one; there is only one layer")
    if jumping == "max" and len(set(widths)) > 1:
        raise ValueError(
            f"jumping is 'max', and layers have {list(widths)} features; expected the same of all, "
            "or jumping='cat'"
        )
    return sum(widths) if jumping == "cat" else widths[0]
