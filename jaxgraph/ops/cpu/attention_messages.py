"""The messages of attention that the CPU kernels know."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.cpu.attention_calls import (
    Gradients,
    dot_backward,
    dot_forward,
    gat_backward,
    gat_forward,
    gatv2_backward,
    gatv2_forward,
)
from jaxgraph.ops.cpu.attention_passes import MOST_HEADS, State
from jaxgraph.ops.cpu.calls import KERNEL_TYPES
from jaxgraph.ops.edges import EdgeGroup
from jaxgraph.ops.message_functions import DotMessage, GatMessage, GatV2Message
from jaxgraph.ops.messages import Inputs, MessageFn, Wanted
from jaxgraph.ops.precision import to_accumulation
from jaxgraph.ops.reducers import Softmax

__all__ = ["attention_kernel"]

Pytree = Any

_PARTS = ("sender", "receiver", "params")
"""The parts of `Inputs` in the order in which the calls take their leaves."""


def attention_kernel(message: MessageFn, reducer: Softmax, inputs: Inputs) -> Any:
    """The CPU kernel for messages of attention, or None where there is none.

    Args:
      message, reducer, inputs: as for `jaxgraph.ops.kernels.find_kernel`.

    Returns:
      A `jaxgraph.ops.kernels.Kernel`, or None.
    """
    types = {leaf.dtype for leaf in jax.tree.leaves((inputs.sender, inputs.receiver))}
    if len(types) != 1 or not types <= set(KERNEL_TYPES) or reducer.heads > MOST_HEADS:
        return None
    if isinstance(message, GatMessage):
        return _AttentionKernel(gat_forward, gat_backward, message.negative_slope, reducer)
    if isinstance(message, GatV2Message) and inputs.params.dtype in types:
        return _AttentionKernel(gatv2_forward, gatv2_backward, message.negative_slope, reducer)
    if isinstance(message, DotMessage):
        return _AttentionKernel(dot_forward, dot_backward, message.scale, reducer)
    return None


@dataclasses.dataclass(frozen=True)
class _AttentionKernel:
    """Messages of logits and values, reduced by a softmax.

    Attributes:
      forward, backward: the calls.
      parameter: the slope or scale of the logits.
      reducer: the softmax.
    """

    forward: Callable[..., State]
    backward: Callable[..., Gradients]
    parameter: float
    reducer: Softmax

    def fold(self, over: EdgeGroup, inputs: Inputs, before: Pytree, num_rows: int) -> State:
        return self.forward(over, *_arrays(inputs), self.parameter, self.reducer, before=before)

    def reduce(
        self, over: EdgeGroup, inputs: Inputs
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        peak, total, outputs = self.forward(
            over, *_arrays(inputs), self.parameter, self.reducer, finish=True
        )
        return outputs.astype(_arrays(inputs)[0].dtype), (peak, total)

    def adjoint(
        self, outputs: jax.Array, kept: tuple[jax.Array, jax.Array], gradient: jax.Array
    ) -> tuple[jax.Array, ...]:
        # Dividing the gradient by the total would be one more array of its size.
        peak, total = kept
        inner = jnp.sum(to_accumulation(gradient) * outputs, -1)
        return gradient, peak, inner, 1 / total

    def pull(
        self,
        over: EdgeGroup,
        inputs: Inputs,
        adjoint: Sequence[jax.Array],
        wanted: Wanted,
        before: Inputs,
    ) -> Inputs:
        arrays = _arrays(inputs)
        parts = [part for part in _PARTS for _ in jax.tree.leaves(getattr(inputs, part))]
        running = [
            previous
            for part in _PARTS
            for previous in getattr(before, part) or [None] * parts.count(part)
        ]
        gradients = self.backward(
            over,
            *arrays,
            self.parameter,
            self.reducer,
            adjoint,
            wanted=tuple(getattr(wanted, part) for part in parts),
            before=tuple(running),
        )
        by_part = list(zip(parts, gradients, strict=True))
        found = {
            part: [gradient for of, gradient in by_part if of == part]
            for part in parts
            if getattr(wanted, part)
        }
        return dataclasses.replace(before, **found)


def _arrays(inputs: Inputs) -> list[jax.Array]:
    return jax.tree.leaves([getattr(inputs, part) for part in _PARTS])
