"""Attention as kernels compute it: the operands of its scores, in one form for all of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from jaxgraph.ops.core.kernel_stages import KernelStages
from jaxgraph.ops.core.message_functions import DotMessage, GatMessage, GatV2Message
from jaxgraph.ops.core.messages import Inputs, MessageFn
from jaxgraph.ops.core.precision import accumulation_dtype, to_accumulation
from jaxgraph.ops.core.reducers import Softmax

Pytree = Any
GAT, GATV2, DOT = "gat", "gatv2", "dot"
"""Kinds of logits."""


@dataclasses.dataclass(frozen=True)
class Attention:
    """The inputs from which attention is computed.

    Attributes:
      kind: GAT, GATV2 or DOT.
      parameter: the slope or scale of the logits.
      sender, receiver: the inputs of the logits from both ends: for GAT [rows, heads] in the
        accumulation type, else [rows, heads, features] in the type of the values.
      vector: for GATv2 [heads, features] in the accumulation type, else None.
      values: [senders, heads, features].
      reducer: the softmax, with the seed and rate of its dropout.
    """

    kind: str
    parameter: float
    sender: jax.Array
    receiver: jax.Array
    vector: jax.Array | None
    values: jax.Array
    reducer: Softmax


def is_attention(message: MessageFn) -> bool:
    """True for messages whose scores the kernels know."""
    return isinstance(message, GatMessage | GatV2Message | DotMessage)


@dataclasses.dataclass(frozen=True)
class AttentionStages(KernelStages):
    """Base of the stages of messages of logits and values, reduced by a softmax."""

    reducer: Softmax

    def attention(self, inputs: Inputs) -> Attention:
        """The operands of the messages."""
        message, sender, receiver = self.message, inputs.sender, inputs.receiver
        if isinstance(message, GatV2Message):
            vector = inputs.params.astype(accumulation_dtype(sender.dtype))
            given = (sender, receiver, vector, sender)
            return Attention(GATV2, message.negative_slope, *given, self.reducer)
        if isinstance(message, GatMessage):
            values, logits = sender
            given = (to_accumulation(logits), to_accumulation(receiver), None, values)
            return Attention(GAT, message.negative_slope, *given, self.reducer)
        assert isinstance(message, DotMessage)
        keys, values = sender
        return Attention(DOT, message.scale, keys, receiver, None, values, self.reducer)

    def values_first(self, of_sender: list[Any]) -> list[Any]:
        """A list of parts of the sender, values first, and back; GATv2's one part is both."""
        return of_sender[::-1] if isinstance(self.message, DotMessage) else of_sender

    def adjoint(
        self, outputs: jax.Array, kept: Pytree, gradient: jax.Array
    ) -> tuple[jax.Array, ...]:
        return self.reducer.undivided_adjoint(outputs, kept, gradient)
