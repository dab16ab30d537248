"""The messages of attention that the GPU kernels support."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.attention import AttentionStages, is_attention
from jaxgraph.ops.core.edges import AllEdges, EdgeGroup, match_variation
from jaxgraph.ops.core.kernel_stages import KernelStages
from jaxgraph.ops.core.messages import Inputs, Wanted, evaluate_message, pull_chunk
from jaxgraph.ops.core.precision import to_accumulation
from jaxgraph.ops.core.stages import Stages
from jaxgraph.ops.mosaic_gpu.attention_calls import (
    State,
    attention_gradients,
    attention_output,
    attention_state,
)
from jaxgraph.ops.mosaic_gpu.calls import KERNEL_TYPES
from pallas_kernels.attention_gradient import Gradients

Pytree = Any


def attention_stages(plain: Stages, inputs: Inputs) -> KernelStages | None:
    """The GPU kernels for messages of attention."""
    leaves = jax.tree.leaves(inputs)
    if any(leaf.dtype not in KERNEL_TYPES or not leaf.size for leaf in leaves):
        return None
    return _AttentionStages(**vars(plain)) if is_attention(plain.message) else None


class _AttentionStages(AttentionStages):
    """Messages of logits and values, reduced by a softmax."""

    def fold_over(self, over: EdgeGroup, inputs: Inputs, before: Pytree, num_rows: int) -> State:
        start = self._self_message_state(over, inputs) if before is None else before
        return attention_state(
            over,
            self.attention(inputs),
            start,
            fresh=before is None and over.missing is None,
        )

    def reduce(self, block: AllEdges, inputs: Inputs) -> tuple[Pytree, Pytree]:
        over = block.as_group
        start = None if over.missing is None else self._self_message_state(over, inputs)
        return attention_output(over, self.attention(inputs), start)

    def finish(self, state: State, inputs: Inputs) -> tuple[Pytree, Pytree]:
        return self.reducer.finish(state, (None, self.attention(inputs).values))

    def pull_over(
        self,
        over: EdgeGroup,
        inputs: Inputs,
        adjoint: Sequence[jax.Array],
        wanted: Wanted,
        before: Inputs,
    ) -> Inputs:
        if not (wanted.params or wanted.sender or wanted.receiver):
            return before
        own = self._self_message_gradients(over, inputs, adjoint)
        start = Inputs(
            before.params or _placed(own.params, inputs.params),
            before.sender or _placed(own.sender, inputs.sender),
            before.receiver or _placed(own.receiver, inputs.receiver),
            before.edge,
        )
        found = attention_gradients(
            over,
            self.attention(inputs),
            tuple(adjoint),
            self._wanted(start, wanted),
            fresh=over.missing is None and not (before.sender or before.receiver),
        )
        # Both gradients of GATv2's rows are in one.
        sums = [each for each in (found.values, found.sender) if each is not None]
        return Inputs(
            [found.vector] if wanted.params else before.params,
            self.values_first(sums) if wanted.sender else before.sender,
            [found.receiver] if wanted.receiver else before.receiver,
            before.edge,
        )

    def _wanted(self, start: Inputs, wanted: Wanted) -> Gradients:
        """The initial values of the wanted gradients, and of those computed with them."""
        receiver = start.receiver[0] if wanted.receiver or wanted.params else None
        if len(start.sender) == 1:
            vector = start.params[0] if wanted.params else None
            return Gradients(None, start.sender[0] if wanted.sender else None, receiver, vector)
        values, sender = self.values_first(start.sender)
        return Gradients(values, sender, receiver if wanted.receiver else None, None)

    def _self_message_state(self, over: EdgeGroup, inputs: Inputs) -> State:
        """The state after the self-messages."""
        if over.missing is None:
            heads, features = self.attention(inputs).values.shape[1:]
            rows = inputs.receiver.shape[0]
            peak = jnp.full((rows, heads), -jnp.inf, jnp.float32)
            start = (peak, jnp.zeros_like(peak), jnp.zeros((rows, heads, features), jnp.float32))
            return match_variation(start, (over.edges, inputs))
        messages = evaluate_message(self.message, _self_message_inputs(over.missing, inputs))
        return self.reducer.lift(
            messages, over.missing, self._self_message_keep(over, over.missing)
        )

    def _self_message_gradients(
        self, over: EdgeGroup, inputs: Inputs, adjoint: Sequence[jax.Array]
    ) -> Inputs:
        """The gradients of the self-messages, as lists, empty without self-messages."""
        if over.missing is None:
            return Inputs([], [], [], [])
        return pull_chunk(
            self.message,
            self.reducer,
            _self_message_inputs(over.missing, inputs),
            tuple(adjoint),
            self._self_message_keep(over, over.missing),
            over.missing,
        )

    def _self_message_keep(self, over: EdgeGroup, missing: jax.Array) -> jax.Array | None:
        rows = missing.shape[0]
        ids = over.sender_ids(rows)[:rows]
        return self.reducer.per_edge(ids, ids, jnp.zeros_like(ids))


def _self_message_inputs(missing: jax.Array, inputs: Inputs) -> Inputs:
    """The inputs of self-messages; 0 in rows without one, which may hold NaN."""

    def own(leaf: jax.Array) -> jax.Array:
        rows = leaf[: missing.shape[0]]
        return jnp.where(missing.reshape(-1, *(1,) * (leaf.ndim - 1)), rows, 0)

    sender, receiver = jax.tree.map(own, (inputs.sender, inputs.receiver))
    return Inputs(inputs.params, sender, receiver, ())


def _placed(own: list[jax.Array], inputs: Pytree) -> list[jax.Array]:
    """Float32 zeros of the shapes of the inputs, with gradients, if any, in the first rows."""
    leaves = jax.tree.leaves(inputs)
    if not own:
        zeros = [jnp.zeros(leaf.shape, jnp.float32) for leaf in leaves]
        return match_variation(zeros, inputs)
    return [
        jnp.pad(to_accumulation(each), ((0, len(leaf) - len(each)), *((0, 0),) * (leaf.ndim - 1)))
        for each, leaf in zip(own, leaves, strict=True)
    ]
