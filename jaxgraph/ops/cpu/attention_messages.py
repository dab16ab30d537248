"""Attention by the CPU kernels: GAT, GATv2 and dot product, with their gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.attention import GAT, GATV2, Attention, AttentionStages, is_attention
from jaxgraph.ops.core.edges import EdgeGroup
from jaxgraph.ops.core.kernel_stages import KernelStages
from jaxgraph.ops.core.message_functions import GatV2Message
from jaxgraph.ops.core.messages import Inputs, Wanted
from jaxgraph.ops.core.precision import to_accumulation
from jaxgraph.ops.core.reducers import Softmax
from jaxgraph.ops.core.stages import Stages
from jaxgraph.ops.cpu.attention_passes import (
    MOST_HEADS,
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
    is_known = is_attention(message)
    if isinstance(message, GatV2Message):
        is_known = inputs.params.dtype in types
    return _AttentionStages(**vars(plain)) if is_known else None


class _AttentionStages(AttentionStages):
    """Messages of logits and values, reduced by a softmax.

    With g the gradient of the output, p the probabilities, d the dropout of attention and
    de_ij = p_ij (d_ij <g_i, v_j> - inner_i):

      GAT    dv_j = sum_i d_ij p_ij g_i,  dl_j = sum_i de_ij leaky',  dr_i = sum_j de_ij leaky'
      GATv2  ds_j = sum_i d_ij p_ij g_i + a de_ij leaky'(h_ij),  dr_i = a sum_j de_ij leaky'(h_ij),
             da = sum_ij de_ij leaky(h_ij),  with h_ij = s_j + r_i
      dot    dk_j = scale sum_i de_ij q_i,  dv_j = sum_i d_ij p_ij g_i,
             dq_i = scale sum_j de_ij k_j
    """

    def fold_over(self, over: EdgeGroup, inputs: Inputs, before: Pytree, num_rows: int) -> State:
        return attention_state(over, self.attention(inputs), before)

    def finish(self, state: State, inputs: Inputs) -> tuple[jax.Array, Pytree]:
        return finished(state, self.attention(inputs))

    def pull_over(
        self,
        over: EdgeGroup,
        inputs: Inputs,
        adjoint: Sequence[jax.Array],
        wanted: Wanted,
        before: Inputs,
    ) -> Inputs:
        attention = self.attention(inputs)
        of_senders = before.sender or [None] * len(jax.tree.leaves(inputs.sender))
        (receiver,) = before.receiver or [None]
        by_receiver = wanted.receiver or wanted.params
        two = len(of_senders) > 1 and wanted.sender
        # The kernel's order is values first. GATv2's rows are both: one gradient is the sum.
        ordered = self.values_first(of_senders)
        starts = (ordered[0], ordered[1] if two else None)
        flags = (wanted.sender, two, by_receiver)
        *sums, per_edge, per_self = sender_gradients(over, attention, adjoint, flags, starts)
        found = before
        if wanted.sender:
            sums = self.values_first(sums[: len(of_senders)])
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
