"""Attention by the CPU kernels: GAT, GATv2 and dot product, with their gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.edges import EdgeGroup
from jaxgraph.ops.core.kernel_stages import KernelStages
from jaxgraph.ops.core.message_functions import DotMessage, GatMessage, GatV2Message
from jaxgraph.ops.core.messages import Inputs, Wanted
from jaxgraph.ops.core.precision import accumulation_dtype, to_accumulation
from jaxgraph.ops.core.reducers import Softmax
from jaxgraph.ops.core.self_messages import check_start
from jaxgraph.ops.core.stages import Stages
from jaxgraph.ops.cpu.attention_passes import (
    DOT,
    GAT,
    GATV2,
    MOST_HEADS,
    Attention,
    State,
    attention_state,
    edge_sum,
    finished,
    hidden_gradient,
    sender_gradients,
)
from jaxgraph.ops.cpu.calls import KERNEL_TYPES, neighbor_sum

Pytree = Any


def attention_stages(plain: Stages, inputs: Inputs) -> KernelStages | None:
    """The CPU kernels for messages of attention."""
    types = {leaf.dtype for leaf in jax.tree.leaves((inputs.sender, inputs.receiver))}
    message, reducer = plain.message, plain.reducer
    if len(types) != 1 or not types <= set(KERNEL_TYPES):
        return None
    if not isinstance(reducer, Softmax) or reducer.heads > MOST_HEADS:
        return None
    is_known = isinstance(message, GatMessage | DotMessage) or (
        isinstance(message, GatV2Message) and inputs.params.dtype in types
    )
    return _AttentionStages(**vars(plain)) if is_known else None


@dataclasses.dataclass(frozen=True)
class _AttentionStages(KernelStages):
    """Messages of logits and values, reduced by a softmax.

    With g the gradient of the output, p the probabilities, d the dropout of attention and
    de_ij = p_ij (d_ij <g_i, v_j> - inner_i):

      GAT    dv_j = sum_i d_ij p_ij g_i,  dl_j = sum_i de_ij leaky',  dr_i = sum_j de_ij leaky'
      GATv2  ds_j = sum_i d_ij p_ij g_i + a de_ij leaky'(h_ij),  dr_i = a sum_j de_ij leaky'(h_ij),
             da = sum_ij de_ij leaky(h_ij),  with h_ij = s_j + r_i
      dot    dk_j = scale sum_i de_ij q_i,  dv_j = sum_i d_ij p_ij g_i,
             dq_i = scale sum_j de_ij k_j
    """

    reducer: Softmax

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
        check_start(over, *before.params, *before.sender, *before.receiver)
        attention = self._attention(inputs)
        of_senders = before.sender or [None] * len(jax.tree.leaves(inputs.sender))
        (receiver,) = before.receiver or [None]
        by_receiver = wanted.receiver or wanted.params
        two = len(of_senders) > 1 and wanted.sender
        # The kernel's order is values first. GATv2's rows are both: one gradient is the sum.
        ordered = of_senders[::-1] if attention.kind == DOT else of_senders
        starts = (ordered[0], ordered[1] if two else None)
        flags = (wanted.sender, two, by_receiver)
        *sums, per_edge, per_self = sender_gradients(over, attention, adjoint, flags, starts)
        found = before
        if wanted.sender:
            sums = sums[: len(of_senders)]
            sums = sums[::-1] if attention.kind == DOT else sums
            found = dataclasses.replace(found, sender=sums)
        if not by_receiver:
            return found
        if attention.kind == GATV2:
            (vector,) = before.params or [None]
            starts = (receiver, vector)
            of_receiver, of_vector = hidden_gradient(over, attention, per_edge, per_self, starts)
            if wanted.params:
                found = dataclasses.replace(found, params=[of_vector])
        elif attention.kind == GAT:
            start = receiver if over.missing is None else per_self
            of_receiver = edge_sum(over, per_edge, len(attention.receiver), start)
        else:
            of_receiver = _query_gradient(over, attention, per_edge, per_self, receiver)
        return dataclasses.replace(found, receiver=[of_receiver]) if wanted.receiver else found

    def _attention(self, inputs: Inputs) -> Attention:
        message, sender, receiver = self.message, inputs.sender, inputs.receiver
        if isinstance(message, GatV2Message):
            vector = inputs.params.astype(accumulation_dtype(sender.dtype))
            given = (sender, receiver, vector, sender)
            return Attention(GATV2, message.negative_slope, *given, self.reducer)
        if isinstance(message, GatMessage):
            values, logits = sender
            logits, receiver = to_accumulation(logits), to_accumulation(receiver)
            given = (logits, receiver, None, values)
            return Attention(GAT, message.negative_slope, *given, self.reducer)
        assert isinstance(message, DotMessage)
        keys, values = sender
        return Attention(DOT, message.scale, keys, receiver, None, values, self.reducer)


def _query_gradient(
    over: EdgeGroup,
    attention: Attention,
    per_edge: jax.Array,
    per_self: jax.Array,
    before: jax.Array | None,
) -> jax.Array:
    """dq_i, which starts with the weighted messages of rows to themselves."""
    keys, start, missing = attention.sender, before, over.missing
    if missing is not None:
        mine = to_accumulation(keys[: missing.shape[0]])
        start = jnp.where(missing[:, None, None], per_self[..., None] * mine, 0)
    edges, rows = dataclasses.replace(over, missing=None), len(attention.receiver)
    return neighbor_sum(edges, "receiver", keys, rows, weights=per_edge, before=start)
