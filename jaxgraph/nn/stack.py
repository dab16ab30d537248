"""What all models share: convolutions on top of each other, and what happens between two of them.

On several devices, of every layer is kept for the backward what its convolution put out, the
statistics of its norm, and what message passing names as worth keeping (`jaxgraph.parallel.KEPT`),
so that nothing is sent or aggregated again. Norm, activation, dropout and linear maps are computed
a second time, under SAR but for the products of a last layer of attention. To that end a block, the
unit of recomputation, starts with the norm and activation of the layer before, and ends with what
the convolution put out. A first layer that maps the features as they are keeps their products,
which would take the longest to compute again.

On one device no block of 32 bits is: XLA fuses cheap steps into the backward by itself, and the
copies that `jax.checkpoint` starts from would take as much memory as it saves. Layers of attention
alone, which need their inputs and their products twice in a backward, make both again from what the
layer before put out (`jaxgraph.layers.DerivedFeatures`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from jaxgraph import layers
from jaxgraph.layers import AggregatedFeatures, DerivedFeatures, Features, FirstAggregation
from jaxgraph.layers.normalization import STATISTICS
from jaxgraph.nn import parameters
from jaxgraph.nn.linear import Linear
from jaxgraph.nn.normalization import BatchNorm, LayerNorm
from jaxgraph.parallel import KEPT, FeatureColumns, Shard
from jaxgraph.parallel.neighborhood import check_neighborhood

__all__ = ["Layer", "Stack", "layer_widths"]

_NORMS = MappingProxyType({"batch": BatchNorm, "layer": LayerNorm})
"""What may follow a convolution, by the name that models take."""

Convolution = Callable[..., jax.Array]
Statistics = tuple[jax.Array, jax.Array]
_KEPT = (STATISTICS, *KEPT)


def layer_widths(
    in_features: int, hidden_features: int, out_features: int, num_layers: int
) -> list[int]:
    """Features of the input and of what each layer puts out, checked."""
    parameters.check_sizes(
        in_features=in_features,
        hidden_features=hidden_features,
        out_features=out_features,
        num_layers=num_layers,
    )
    return [in_features, *[hidden_features] * (num_layers - 1), out_features]


class Layer(nnx.Module):
    """A convolution with its residual connection, and the norm that follows.

    Args:
      convolution: called as `(shard, x, key=, train=)`.
      in_features, out_features: of the convolution.
      norm: "batch", "layer" or None.
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
        self.norm = None if norm is None else _NORMS[norm](out_features, **types)
        self.has_residual = residual
        self.residual = (
            Linear(in_features, out_features, use_bias=False, **types, rngs=rngs)
            if residual and in_features != out_features
            else None
        )

    def skip(self, shard: Shard, x: Features) -> jax.Array | None:
        """What the residual connection carries past the convolution, [rows, out_features]."""
        if not self.has_residual:
            return None
        if self.residual is not None:
            return self.residual(shard, layers.plain_features(x))
        # No wider than what the layer puts out: the one case in which columns are brought home.
        rows = shard.to_nodes(layers.plain_features(x))
        return shard.mask_rows(layers.require_rows(rows, "a residual connection"))


def _check_norm(norm: str | None) -> None:
    if norm is not None and norm not in _NORMS:
        raise ValueError(f"norm is {norm!r}; expected None or one of {', '.join(_NORMS)}")


class Stack(nnx.Module):
    """h = dropout(x_l);  x_{l+1} = activation(norm(conv_l(h) + residual_l(h)))

    The last layer is dropout and convolution alone.

    Args:
      convolutions: called as `(shard, x, key=, train=)`.
      widths: features of the input and of what each convolution puts out.
      dropout: probability of dropping a feature in training.
      norm: "batch", "layer" or None.
      residual: whether layers before the last have a residual connection.
      outer_residual: whether every layer, the last as well, has one that goes around its norm and
        activation: x_{l+1} = activation(norm(conv_l(h))) + residual_l(h).
      activation: elementwise function.
      dtype: type of activations and messages, such as jnp.bfloat16; outputs are then of 32 bits at
        least, for the loss. None: that of x.
      param_dtype: type of the parameters.
      rngs: source of the initial parameters.
    """

    def __init__(
        self,
        convolutions: Sequence[Convolution],
        widths: Sequence[int],
        *,
        dropout: float,
        norm: str | None,
        residual: bool = False,
        outer_residual: bool = False,
        activation: Callable[[jax.Array], jax.Array],
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        layers.check_rate(dropout)
        _check_norm(norm)
        last = len(convolutions) - 1
        self.layers = nnx.List(
            Layer(
                convolution,
                *pair,
                norm=norm if index < last else None,
                residual=outer_residual or (residual and index < last),
                dtype=dtype,
                param_dtype=param_dtype,
                rngs=rngs,
            )
            for index, (convolution, pair) in enumerate(
                zip(convolutions, pairwise(widths), strict=True)
            )
        )
        self.dtype = parameters.checked_dtype(dtype, param_dtype)
        self.param_dtype = jnp.dtype(param_dtype)
        self.dropout = dropout
        self.outer_residual = outer_residual
        self.activation = activation

    @property
    def first_aggregation(self) -> FirstAggregation | None:
        """What is aggregated of the features, if that has no parameter."""
        found = getattr(self.layers[0].convolution, "first_aggregation", None)
        if found is None or self.dropout == 0:
            return found
        # Evaluation alone takes the aggregate, which is no reason to hold features twice.
        return dataclasses.replace(found, in_training=False, is_behind_features=False)

    def __call__(
        self,
        shard: Shard,
        x: Features,
        *,
        key: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """The outputs of the last layer for the own nodes.

        Args:
          shard: the shard, under `spmd`.
          x: float [rows, in_features], such as `shard.nodes`, aggregated or not, or this device's
            columns of all nodes.
          key: scalar random key, the same on every device; needed in training with dropout.
          train: whether to drop, and to normalise by and update the statistics of this pass.

        Returns:
          float [rows, out_features].

        Raises:
          ValueError: x has other features than the model, or a key is needed and missing.
        """
        check_neighborhood(shard)
        y: Any = x
        skip, norm = None, None
        keys = _layer_keys(key, len(self.layers)) if train and key is not None else None
        for index, layer in enumerate(self.layers):
            layer_keys = None if keys is None else (keys[index, 0], keys[index, 1])
            block = partial(self._block, index=index, train=train)
            arguments = (shard, norm, layer, layer_keys, y, skip)
            # Products are computed again only where memory is what the shards are for.
            keep = _KEPT if shard.manifest.num_parts > 1 else (*_KEPT, layers.MAPPED)
            is_given = index == 0 and self._keeps_products(x, train)
            if is_given or self._keeps_everything(shard, x) or self._maps_alone(y, train):
                y, skip, statistics = block(*arguments)
            else:
                y, skip, statistics = layers.recompute(block, *arguments, keep=keep)
            if isinstance(norm, BatchNorm) and train:
                assert statistics is not None
                norm.update(*statistics)
            norm = layer.norm
        y = y if skip is None else y + skip
        return y if self.dtype is None else y.astype(jnp.promote_types(y.dtype, jnp.float32))

    def _keeps_everything(self, shard: Shard, x: Features) -> bool:
        """Whether no block is computed again: on one device, but for 16 bits."""
        return shard.manifest.num_parts == 1 and self._is_multiplied_as_such(x)

    def _is_multiplied_as_such(self, x: Features) -> bool:
        """Whether XLA multiplies what blocks compute with in its type.

        Of 16 bits its CPU compiler would keep what it multiplied, in 32.
        """
        if self.dtype is not None:
            return self.dtype.itemsize > 2
        leaves = jax.tree.leaves(layers.plain_features(x))
        types = [leaf.dtype for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
        return all(dtype.itemsize > 2 for dtype in types)

    def _keeps_products(self, x: Features, train: bool) -> bool:
        """Whether the first layer maps the features as they are, and not an aggregate of them."""
        found = self.first_aggregation
        return found is None and isinstance(x, jax.Array) and not (train and self.dropout)

    def _maps_alone(self, x: Features, train: bool) -> bool:
        """Whether the first layer takes products of features that are kept anyway and nothing else.

        To compute those again would save nothing, and copy the features.
        """
        found = self.first_aggregation
        if found is None or not isinstance(x, AggregatedFeatures) or (train and self.dropout):
            return False
        is_cast = self.dtype is not None and self.dtype != x.values.dtype
        return found.is_followed_by_maps and found.aggregation == x.aggregation and not is_cast

    def _kept_activation(
        self, index: int, shard: Shard, x: Features
    ) -> Callable[[jax.Array], jax.Array]:
        """The activation before a layer, which keeps its output where the layer keeps that too."""
        makes_again = getattr(self.layers[index].convolution, "mapped_features", None) is not None
        if self.dropout or makes_again or not self._keeps_everything(shard, x):
            return self.activation
        return layers.keeping_output(self.activation)

    def _kept_input(self, index: int, shard: Shard, x: jax.Array) -> jax.Array:
        """What the batch norm before a layer is given, which its backward reads again.

        XLA would keep what it is a sum of. What attention puts out that keeps itself.
        """
        is_kept = getattr(self.layers[index - 1].convolution, "mapped_features", None) is not None
        return x if is_kept or not self._keeps_everything(shard, x) else layers.kept(x)

    def _derived(
        self,
        index: int,
        shard: Shard,
        x: Features,
        ready: Callable[..., Features],
        arguments: tuple[Any, ...],
    ) -> Features | DerivedFeatures:
        """x = ready(shard, *arguments), as a convolution takes it that makes x again.

        Products are kept in the last layer, whose backward comes at once, and in the first where
        the features are wider.
        """
        mapped = getattr(self.layers[index].convolution, "mapped_features", None)
        makes_again = shard.manifest.num_parts == 1 or shard.manifest.mode == "sar"
        makes_again = makes_again and self._is_multiplied_as_such(x)
        if mapped is None or not makes_again or not isinstance(x, jax.Array):
            return x
        keeps = index == len(self.layers) - 1 or (index == 0 and mapped < x.shape[1])
        if x is arguments[0]:
            is_read = x is shard.nodes and not keeps and not shard.manifest.has_padding
            return DerivedFeatures(shard, (), _features, False) if is_read else x
        return DerivedFeatures(shard, arguments, ready, keeps)

    def _block(
        self,
        shard: Shard,
        norm: BatchNorm | LayerNorm | None,
        layer: Layer,
        keys: tuple[jax.Array, jax.Array] | None,
        x: Features,
        skip: jax.Array | None,
        *,
        index: int,
        train: bool,
    ) -> tuple[jax.Array, jax.Array | None, Statistics | None]:
        """What is left of the layer before, and a layer up to what its convolution puts out."""
        statistics = None
        if index == 0:
            x = parameters.in_dtype(x, self.dtype)
        else:
            # A convolution puts out rows.
            assert not isinstance(x, FeatureColumns | AggregatedFeatures)
            if isinstance(norm, BatchNorm) and train:
                x = self._kept_input(index, shard, x)
            x, statistics = _normalized(norm, shard, x, train)
        of_features, of_attention = (None, None) if keys is None else keys
        activation = self.activation if index else None
        # A norm keeps what it is given, of which its output and the activation's are made again.
        if activation is not None and norm is None and skip is None and train:
            activation = self._kept_activation(index, shard, x)
        ready = partial(_ready, activation, self.dropout if train else 0.0)
        arguments = (x, skip, of_features)
        x = ready(shard, *arguments)
        y = layer.convolution(
            shard, self._derived(index, shard, x, ready, arguments), key=of_attention, train=train
        )
        skip = layer.skip(shard, x)
        if skip is not None and not self.outer_residual:
            y, skip = y + skip, None
        return y, skip, statistics


def _features(shard: Shard) -> Features:
    assert shard.nodes is not None
    return shard.nodes


def _ready(
    activation: Callable[[jax.Array], jax.Array] | None,
    rate: float,
    shard: Shard,
    x: Features,
    skip: jax.Array | None,
    key: jax.Array | None,
) -> Features:
    """What a convolution is given, of what the norm before it puts out."""
    if activation is not None:
        assert isinstance(x, jax.Array)
        x = activation(x)
        x = x if skip is None else x + skip
    return layers.dropout(shard, x, key, rate=rate)


def _normalized(
    norm: BatchNorm | LayerNorm | None, shard: Shard, x: jax.Array, train: bool
) -> tuple[jax.Array, Statistics | None]:
    """x after the norm, and the statistics that were used if it is a batch norm."""
    if isinstance(norm, BatchNorm):
        return norm.normalize(shard, x, train)
    return x if norm is None else norm(shard, x), None


def _layer_keys(key: jax.Array, num_layers: int) -> jax.Array:
    """Keys [layers, 2] for the features and the attention of every layer.

    Made for all layers at once, and not again in the backward: each costs a loop in the program.
    """
    of_layers = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(num_layers))
    of_both = jax.vmap(jax.random.fold_in, (None, 0))
    return jax.vmap(of_both, (0, None))(of_layers, jnp.arange(2))
