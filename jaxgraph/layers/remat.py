"""Policies that name the tensors that a layer's forward saves for its backward."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from jaxgraph.layers.activations import Activation, keeping_output
from jaxgraph.layers.dense import MAPPED
from jaxgraph.layers.derived import DerivedFeatures
from jaxgraph.layers.recompute import recompute
from jaxgraph.ops.core.stored import stored
from jaxgraph.parallel import Shard
from jaxgraph.parallel.feature_protocol import Features

LAYER_INPUT = "layer_input"
"""Checkpoint name of a layer's input, the previous convolution's output."""

ACTIVATED = "activated_features"
"""Checkpoint name of the output of a layer's activation."""

INPUT = "convolution_input"
"""Name of the input of a layer's convolution."""

_BY_CONVOLUTIONS = (INPUT, MAPPED)
_REST = ("save", "recompute")


@dataclasses.dataclass(frozen=True)
class RematPolicy:
    """The tensors that a layer saves for its backward; they change memory and time, no value.

    A layer starts with the norm and the activation after the previous convolution, and ends with
    its own convolution. Its input, the previous convolution's output, is always saved.

    Attributes:
      save: names of tensors that are saved: those of `jax.ad_checkpoint.checkpoint_name`, such as
        `jaxgraph.parallel.KEPT`, `MAPPED`, `STATISTICS`, `LAYER_INPUT` and `ACTIVATED`.
      offload: names of tensors that are saved in the host's memory (on CPU: saved).
      recompute: those of `INPUT` and `MAPPED` that the convolution recomputes where it reads them.
        They are saved nevertheless by a convolution that does not declare `mapped_features`, for
        columns of features, and in mode "domain" with several parts.
      rest: "save": the other tensors that JAX's derivative reads are saved; "recompute": they are
        recomputed from the layer's input after the gradient of its output has arrived.

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

    def in_words(self) -> str:
        """The names of the tensors kept, offloaded and recomputed, as a text."""
        words = {"keeps": self.save, "offloads": self.offload, "reads again": self.recompute}
        rest = "keeps" if self.rest == "save" else "recomputes"
        said = [f"{verb} {', '.join(names)}" for verb, names in words.items() if names]
        return "; ".join([*said, f"{rest} the rest"])

    def run(self, layer: Callable[..., Any], *arguments: Any) -> Any:
        """`layer(*arguments)`, with the residuals of this policy.

        Args:
          layer: pure; closes over nothing but constants.
          arguments: pytrees of arrays.

        Returns:
          The layer's result.
        """
        if self.rest == "save":
            return layer(*arguments)
        return recompute(layer, *arguments, keep=self.save, offload=self.offload)

    def named(self, x: jax.Array, name: str) -> jax.Array:
        """Names x [rows, features], so that this policy may save it."""
        return checkpoint_name(stored(x) if self._materializes(name) else x, name)

    def activation(self, activation: Activation) -> Activation:
        """Returns the elementwise function with its output named `ACTIVATED`."""
        if self._materializes(ACTIVATED):
            activation = keeping_output(activation)
        return lambda x: checkpoint_name(activation(x), ACTIVATED)

    def input(
        self, step: Any, x: Features, make: Callable[..., Features], arguments: tuple[Any, ...]
    ) -> Features | DerivedFeatures:
        """Returns x in the form that the convolution takes.

        Args:
          step: the neighbourhood of the convolution, under `spmd`.
          x: `make(step.senders, *arguments)`, the input of the convolution.
          make: elementwise steps on arguments that have a row per node; closes over constants.
          arguments: pytrees of arrays.

        Returns:
          x, or `DerivedFeatures` for a convolution that recomputes x or its products.
        """
        if not self.recompute or not isinstance(x, jax.Array) or not step.exchange.reads_own_rows:
            return x
        keeps_products = MAPPED not in self.recompute
        if INPUT in self.recompute:
            return DerivedFeatures(step.senders, arguments, make, keeps_products)
        return DerivedFeatures(step.senders, (x,), _as_it_is, keeps_products, waits=False)

    def _materializes(self, name: str) -> bool:
        # XLA's CPU compiler would save the operands of a cheap tensor in its place.
        return self.rest == "save" and name in self.save


def _as_it_is(shard: Shard, x: Features) -> Features:
    return x
