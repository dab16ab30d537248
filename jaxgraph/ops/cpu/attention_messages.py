"""The messages of attention that the CPU kernels know."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from jaxgraph.ops.cpu.attention_calls import (
    MOST_HEADS,
    AttentionEdges,
    dot_backward,
    dot_forward,
    gat_backward,
    gat_forward,
    gatv2_backward,
    gatv2_forward,
)
from jaxgraph.ops.cpu.calls import KERNEL_TYPES
from jaxgraph.ops.edges import EdgeGroups
from jaxgraph.ops.message_functions import DotMessage, GatMessage, GatV2Message
from jaxgraph.ops.messages import Inputs, MessageFn, Wanted
from jaxgraph.ops.reducers import Softmax

__all__ = ["attention_kernel"]

Pytree = Any
Group = jax.Array | int
State = tuple[jax.Array, jax.Array, jax.Array]


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
        return _GatKernel(message.negative_slope, reducer)
    if isinstance(message, GatV2Message) and inputs.params.dtype in types:
        return _GatV2Kernel(message.negative_slope, reducer)
    if isinstance(message, DotMessage):
        return _DotKernel(message.scale, reducer)
    return None


def _running(before: list[jax.Array], count: int) -> list[jax.Array | None]:
    return list(before) if before else [None] * count


def _given(*gradients: jax.Array | None) -> list[jax.Array]:
    return [gradient for gradient in gradients if gradient is not None]


@dataclasses.dataclass(frozen=True)
class _GatKernel:
    """Messages (leaky_relu(l_j + r_i), v_j)."""

    negative_slope: float
    reducer: Softmax

    def fold(
        self,
        edges: EdgeGroups,
        group: Group,
        inputs: Inputs,
        before: Pytree,
        num_rows: int,
        missing: jax.Array | None,
    ) -> State:
        over = AttentionEdges(edges, group, self.reducer, missing)
        values, logits = inputs.sender
        slope = self.negative_slope
        return gat_forward(over, values, logits, inputs.receiver, slope, before=before)

    def pull(
        self,
        edges: EdgeGroups,
        group: Group,
        inputs: Inputs,
        adjoint: State,
        wanted: Wanted,
        before: Inputs,
        missing: jax.Array | None,
    ) -> Inputs:
        values, logits = inputs.sender
        before_values, before_logits = _running(before.sender, 2)
        (before_receiver,) = _running(before.receiver, 1)
        dv, dl, dr = gat_backward(
            AttentionEdges(edges, group, self.reducer, missing),
            values,
            logits,
            inputs.receiver,
            self.negative_slope,
            adjoint,
            wanted=(wanted.sender, wanted.sender, wanted.receiver),
            before=(before_values, before_logits, before_receiver),
        )
        return Inputs(
            before.params,
            _given(dv, dl) or before.sender,
            _given(dr) or before.receiver,
            before.edge,
        )


@dataclasses.dataclass(frozen=True)
class _GatV2Kernel:
    """Messages (<a, leaky_relu(s_j + r_i)>, s_j)."""

    negative_slope: float
    reducer: Softmax

    def fold(
        self,
        edges: EdgeGroups,
        group: Group,
        inputs: Inputs,
        before: Pytree,
        num_rows: int,
        missing: jax.Array | None,
    ) -> State:
        over = AttentionEdges(edges, group, self.reducer, missing)
        slope = self.negative_slope
        return gatv2_forward(
            over, inputs.sender, inputs.receiver, inputs.params, slope, before=before
        )

    def pull(
        self,
        edges: EdgeGroups,
        group: Group,
        inputs: Inputs,
        adjoint: State,
        wanted: Wanted,
        before: Inputs,
        missing: jax.Array | None,
    ) -> Inputs:
        (before_sender,), (before_receiver,) = (
            _running(part, 1) for part in (before.sender, before.receiver)
        )
        ds, dr, da = gatv2_backward(
            AttentionEdges(edges, group, self.reducer, missing),
            inputs.sender,
            inputs.receiver,
            inputs.params,
            self.negative_slope,
            adjoint,
            wanted=(wanted.sender, wanted.receiver, wanted.params),
            before=(before_sender, before_receiver, _running(before.params, 1)[0]),
        )
        return Inputs(
            _given(da) or before.params,
            _given(ds) or before.sender,
            _given(dr) or before.receiver,
            before.edge,
        )


@dataclasses.dataclass(frozen=True)
class _DotKernel:
    """Messages (scale <q_i, k_j>, v_j)."""

    scale: float
    reducer: Softmax

    def fold(
        self,
        edges: EdgeGroups,
        group: Group,
        inputs: Inputs,
        before: Pytree,
        num_rows: int,
        missing: jax.Array | None,
    ) -> State:
        over = AttentionEdges(edges, group, self.reducer, missing)
        keys, values = inputs.sender
        return dot_forward(over, inputs.receiver, keys, values, self.scale, before=before)

    def pull(
        self,
        edges: EdgeGroups,
        group: Group,
        inputs: Inputs,
        adjoint: State,
        wanted: Wanted,
        before: Inputs,
        missing: jax.Array | None,
    ) -> Inputs:
        keys, values = inputs.sender
        before_keys, before_values = _running(before.sender, 2)
        (before_queries,) = _running(before.receiver, 1)
        dq, dk, dv = dot_backward(
            AttentionEdges(edges, group, self.reducer, missing),
            inputs.receiver,
            keys,
            values,
            self.scale,
            adjoint,
            wanted=(wanted.receiver, wanted.sender, wanted.sender),
            before=(before_queries, before_keys, before_values),
        )
        return Inputs(
            before.params,
            _given(dk, dv) or before.sender,
            _given(dq) or before.receiver,
            before.edge,
        )
