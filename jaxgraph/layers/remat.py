"""Policies that name the tensors of a layer that its forward saves for its backward."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from jaxgraph.layers.activations import Activation, keeping_output
from jaxgraph.layers.aggregated import Features
from jaxgraph.layers.dense import MAPPED
from jaxgraph.layers.derived import DerivedFeatures
from jaxgraph.layers.recompute import recompute
from jaxgraph.ops.core.stored import stored
from jaxgraph.parallel import Shard
from jaxgraph.parallel.propagate import reads_own_rows

__all__ = ["ACTIVATED", "INPUT", "NORM_INPUT", "RematPolicy"]

NORM_INPUT = "norm_input"
"""Checkpoint name of the input of a layer's norm."""

ACTIVATED = "activated_features"
"""Checkpoint name of the output of a layer's activation."""

INPUT = "convolution_input"
"""Name of the input of a layer's convolution."""

_BY_CONVOLUTIONS = (INPUT, MAPPED)
_REST = ("save", "recompute")


@dataclasses.dataclass(frozen=True)
class RematPolicy:
    """The tensors that a layer saves for its backward; they change memory and time, no value.

    A layer starts with the norm and the activation that follow the convolution before, and ends
    with its own convolution. Its input, the output of the convolution before, is always saved.

    Attributes:
      save: names of tensors that are saved: those of `jax.ad_checkpoint.checkpoint_name`, such as
        `jaxgraph.parallel.KEPT`, `MAPPED`, `STATISTICS`, `NORM_INPUT` and `ACTIVATED`.
      offload: names of tensors that are saved in the host's memory (on CPU: saved).
      recompute: of `INPUT` and `MAPPED` those that the convolution recomputes where it reads them.
        They are saved all the same by a convolution that does not declare `mapped_features`, of
        columns of features, and in mode "domain" of several parts.
      rest: "save": of the other tensors those are saved that JAX's derivative reads; "recompute":
        they are recomputed from the layer's input when the gradient of its output has arrived.

    Raises:
      ValueError: a name is in two lists, or in one where it has no effect.

    References:
      Chen et al., "Training deep nets with sublinear memory cost", 2016.
    """

    save: tuple[str, ...] = ()
    offload: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    rest: str = "save"

    def __post_init__(self) -> None:
        if self.rest not in _REST:
            raise ValueError(f"rest is {self.rest!r}; expected one of {', '.join(_REST)}")
        for name in ("save", "offload", "recompute"):
            names = getattr(self, name)
            if not isinstance(names, tuple) or not all(isinstance(each, str) for each in names):
                raise ValueError(f"{name} is {names!r}; expected a tuple of names")
        listed = (*self.save, *self.offload, *self.recompute)
        if len(set(listed)) != len(listed):
            raise ValueError(
                f"save={self.save}, offload={self.offload} and recompute={self.recompute} name a "
                "tensor twice; name each once"
            )
        if not set(self.recompute) <= set(_BY_CONVOLUTIONS):
            raise ValueError(
                f"recompute is {self.recompute}; a convolution recomputes "
                f"{' and '.join(_BY_CONVOLUTIONS)} alone. Other tensors are recomputed with "
                "rest='recompute', unless `save` names them"
            )
        if self.offload and self.rest == "save":
            raise ValueError(
                f"offload is {self.offload} with rest='save', which saves every tensor on the "
                "device; pass rest='recompute' and name in `save` what stays there"
            )

    def run(self, layer: Callable[..., Any], *arguments: Any) -> Any:
        """`layer(*arguments)`, with the residuals of this policy.

        Args:
          layer: pure; closes over nothing but constants.
          arguments: pytrees of arrays.

        Returns:
          What the layer returns.
        """
        if self.rest == "save":
            return layer(*arguments)
        return recompute(layer, *arguments, keep=self.save, offload=self.offload)

    def named(self, x: jax.Array, name: str) -> jax.Array:
        """x [rows, features] under a name by which this policy may save it."""
        return checkpoint_name(stored(x) if self._materializes(name) else x, name)

    def activation(self, activation: Activation) -> Activation:
        """An elementwise function whose output is called `ACTIVATED`."""
        if self._materializes(ACTIVATED):
            activation = keeping_output(activation)
        return lambda x: checkpoint_name(activation(x), ACTIVATED)

    def input(
        self, shard: Shard, x: Features, make: Callable[..., Features], arguments: tuple[Any, ...]
    ) -> Features | DerivedFeatures:
        """x as the convolution takes it.

        Args:
          shard: the shard, under `spmd`.
          x: `make(shard, *arguments)`, the input of the convolution.
          make: elementwise steps on arguments that have a row per node; closes over constants.
          arguments: pytrees of arrays.

        Returns:
          x, or how the convolution recomputes it, or its products alone.
        """
        if not self.recompute or not isinstance(x, jax.Array) or not reads_own_rows(shard):
            return x
        keeps_products = MAPPED not in self.recompute
        if INPUT in self.recompute:
            return DerivedFeatures(shard, arguments, make, keeps_products)
        return DerivedFeatures(shard, (x,), _as_it_is, keeps_products, waits=False)

    def _materializes(self, name: str) -> bool:
        # XLA's CPU compiler would save what a cheap tensor is computed from in its place.
        return self.rest == "save" and name in self.save


def _as_it_is(shard: Shard, x: Features) -> Features:
    return x
