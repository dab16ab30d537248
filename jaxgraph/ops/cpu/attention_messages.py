"""The messages of attention that the CPU kernels support."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax

from jaxgraph.ops.core.edges import EdgeGroup
from jaxgraph.ops.core.kernel_stages import KernelStages
from jaxgraph.ops.core.message_functions import DotMessage, GatMessage, GatV2Message
from jaxgraph.ops.core.messages import Inputs, Wanted
from jaxgraph.ops.core.reducers import Softmax
from jaxgraph.ops.core.stages import Stages
from jaxgraph.ops.cpu.attention_calls import (
    attention_gradients,
    dot_attention,
    gat_attention,
    gatv2_attention,
)
from jaxgraph.ops.cpu.attention_passes import (
    MOST_HEADS,
    Attention,
    State,
    attention_state,
    finished,
)
from jaxgraph.ops.cpu.calls import KERNEL_TYPES

__all__ = ["attention_stages"]

Pytree = Any

_PARTS = ("sender", "receiver", "params")
"""The parts of `Inputs`, in the order of the arrays of attention."""


def attention_stages(plain: Stages, inputs: Inputs) -> KernelStages | None:
    """The CPU kernels for messages of attention.

    Args:
      plain: message, reducer and chunk.
      inputs: the inputs of the message; only types and structure are read.

    Returns:
      The stages, or None: there is no kernel for them.
    """
    types = {leaf.dtype for leaf in jax.tree.leaves((inputs.sender, inputs.receiver))}
    if len(types) != 1 or not types <= set(KERNEL_TYPES):
        return None
    message, reducer = plain.message, plain.reducer
    if not isinstance(reducer, Softmax) or reducer.heads > MOST_HEADS:
        return None
    make = partial(_AttentionStages, message, reducer, plain.chunk)
    if isinstance(message, GatMessage):
        return make(make=gat_attention, parameter=message.negative_slope)
    if isinstance(message, GatV2Message) and inputs.params.dtype in types:
        return make(make=gatv2_attention, parameter=message.negative_slope)
    if isinstance(message, DotMessage):
        return make(make=dot_attention, parameter=message.scale)
    return None


@dataclasses.dataclass(frozen=True)
class _AttentionStages(KernelStages):
    """Messages of logits and values, reduced by a softmax.

    Attributes:
      make: makes the `Attention` from arrays, the parameter and the reducer.
      parameter: the slope or scale of the logits.
    """

    reducer: Softmax
    make: Callable[..., Attention]
    parameter: float

    def fold_over(self, over: EdgeGroup, inputs: Inputs, before: Pytree, num_rows: int) -> State:
        return attention_state(over, self._attention(inputs), before)

    def finish(self, state: State, inputs: Inputs) -> tuple[jax.Array, Pytree]:
        return finished(state, self._attention(inputs))

    def adjoint(
        self, outputs: jax.Array, kept: Pytree, gradient: jax.Array
    ) -> tuple[jax.Array, ...]:
        return self.reducer.undivided_adjoint(outputs, kept, gradient)

    def pull_over(
        self,
        over: EdgeGroup,
        inputs: Inputs,
        adjoint: Sequence[jax.Array],
        wanted: Wanted,
        before: Inputs,
    ) -> Inputs:
        parts = [part for part in _PARTS for _ in jax.tree.leaves(getattr(inputs, part))]
        running = [
            previous
            for part in _PARTS
            for previous in getattr(before, part) or [None] * parts.count(part)
        ]
        gradients = attention_gradients(
            over,
            self._attention(inputs),
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

    def _attention(self, inputs: Inputs) -> Attention:
        arrays = jax.tree.leaves([getattr(inputs, part) for part in _PARTS])
        return self.make(*arrays, self.parameter, self.reducer)
