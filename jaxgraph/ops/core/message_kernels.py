"""Reductions of the library's own messages by the kernels of one implementation.

`calls` is the module with these kernels as functions of arrays: `jaxgraph.ops.cpu.calls`, or
`jaxgraph.ops.mosaic_gpu.calls`, which has `neighbor_mean`, `edge_sums` and `edge_total` too. A
message is recognised by comparing it with the library's own.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.edge_outputs import EdgeOutputs
from jaxgraph.ops.core.edges import AllEdges, EdgeGroup, match_variation
from jaxgraph.ops.core.kernel_stages import KernelStages
from jaxgraph.ops.core.message_functions import sum_message, sum_of_ends, weighted_message
from jaxgraph.ops.core.messages import Inputs, Wanted
from jaxgraph.ops.core.precision import accumulation_dtype
from jaxgraph.ops.core.reducers import Extremum, Mean, Sum
from jaxgraph.ops.core.stages import Stages

Pytree = Any


def message_stages(calls: Any, plain: Stages, inputs: Inputs) -> KernelStages | None:
    """The kernels that sum messages or take their maximum or minimum."""
    leaves = jax.tree.leaves(inputs.sender)
    if not leaves or any(leaf.dtype not in calls.KERNEL_TYPES for leaf in leaves):
        return None
    kind = _kind(calls, plain, inputs)
    return kind and kind(**vars(plain), calls=calls)


def _kind(calls: Any, plain: Stages, inputs: Inputs) -> type[CallStages] | None:
    message, reducer = plain.message, plain.reducer
    if isinstance(message, EdgeOutputs):
        types = {leaf.dtype for leaf in jax.tree.leaves(inputs.receiver)}
        is_known = message.function is sum_of_ends and types <= set(calls.KERNEL_TYPES)
        return _EndSums if is_known and hasattr(calls, "edge_sums") else None
    is_one = hasattr(inputs.sender, "dtype")
    if isinstance(reducer, Sum):
        weighs = message is weighted_message and _exact(calls, inputs)
        if not weighs and message is not sum_message:
            return None
        if not isinstance(reducer, Mean):
            return _Sums
        return _FusedMeans if is_one and hasattr(calls, "neighbor_mean") else _Means
    is_extremum = message is sum_message and isinstance(reducer, Extremum)
    return _Extrema if is_extremum and len(jax.tree.leaves(inputs.sender)) == 1 else None


def _exact(calls: Any, inputs: Inputs) -> bool:
    """True where kernels support the weights, and the accumulation type of x holds them exactly."""
    kept, weights = accumulation_dtype(inputs.sender.dtype), inputs.edge.dtype
    return weights in calls.KERNEL_TYPES and jnp.promote_types(kept, weights) == kept


def _continued(before: list[jax.Array], leaves: list[jax.Array]) -> list[jax.Array | None]:
    """The running value of each result, or None where nothing has been summed yet."""
    return list(before) if before else [None] * len(leaves)


@dataclasses.dataclass(frozen=True)
class CallStages(KernelStages):
    """Base of the stages that the kernels of `calls` compute."""

    calls: Any


class _Sums(CallStages):
    """y_i = sum_e w_e x_j, with the weights of `weighted_message`, or w = 1.

    With weights no self-loop is added: it would have no weight.
    """

    def fold_over(self, over: EdgeGroup, inputs: Inputs, before: Pytree, num_rows: int) -> Pytree:
        leaves, structure = jax.tree.flatten(inputs.sender)
        running = _continued(jax.tree.leaves(before), leaves)
        weights = self._weights(inputs)
        sums = [
            self.calls.neighbor_sum(
                over, "receiver", leaf, num_rows, weights=weights, before=previous
            )
            for leaf, previous in zip(leaves, running, strict=True)
        ]
        return jax.tree.unflatten(structure, sums)

    def pull_over(
        self, over: EdgeGroup, inputs: Inputs, adjoint: Pytree, wanted: Wanted, before: Inputs
    ) -> Inputs:
        gradients, weights = before, self._weights(inputs)
        if wanted.edge and weights is not None:
            products = _weight_gradient(
                self.calls, over, inputs.sender, weights, adjoint, before.edge
            )
            gradients = dataclasses.replace(gradients, edge=[products])
        if not wanted.sender:
            return gradients
        leaves = jax.tree.leaves(inputs.sender)
        running = _continued(before.sender, leaves)
        sums = [
            self.calls.neighbor_sum(
                over, "sender", gradient, leaf.shape[0], weights=weights, before=previous
            )
            for leaf, gradient, previous in zip(
                leaves, jax.tree.leaves(adjoint), running, strict=True
            )
        ]
        return dataclasses.replace(gradients, sender=sums)

    def _weights(self, inputs: Inputs) -> jax.Array | None:
        return inputs.edge if self.message is weighted_message else None


def _weight_gradient(
    calls: Any,
    over: EdgeGroup,
    x: jax.Array,
    weights: jax.Array,
    gradient: jax.Array,
    before: list[jax.Array],
) -> jax.Array:
    """dw_e = <g_i, x_j>, of the shape and type of the weights."""
    dtype = jnp.result_type(x, weights, gradient)
    heads = 1 if weights.ndim == 1 else weights.shape[1]
    previous = before[0].reshape(-1, heads).astype(dtype) if before else None
    products = calls.edge_products(
        over, gradient.astype(dtype), x.astype(dtype), heads=heads, before=previous
    )
    return products.reshape(weights.shape).astype(weights.dtype)


class _Means(_Sums):
    """y_i = the mean of the same messages: their sum, and their number."""

    def fold_over(self, over: EdgeGroup, inputs: Inputs, before: Pytree, num_rows: int) -> Pytree:
        sums, count = (None, None) if before is None else before
        leaves = jax.tree.leaves(inputs.sender)
        dtype = accumulation_dtype(jnp.result_type(*leaves))
        ones = match_variation(jnp.ones((leaves[0].shape[0], 1), dtype), (over.edges, inputs))
        count = self.calls.neighbor_sum(
            over, "receiver", ones, num_rows, before=None if count is None else count[:, None]
        )
        return super().fold_over(over, inputs, sums, num_rows), count[:, 0]


class _FusedMeans(_Means):
    """The mean, divided inside the kernel; the pull divides inside the kernel too."""

    def reduce(self, block: AllEdges, inputs: Inputs) -> tuple[jax.Array, jax.Array]:
        rows, weights = block.edges.by_receiver.position.shape[0], self._weights(inputs)
        return self.calls.neighbor_mean(block.as_group, inputs.sender, rows, weights=weights)

    def finish(self, state: Pytree, inputs: Inputs) -> tuple[jax.Array, jax.Array]:
        outputs, count = Mean().finish(state, inputs.sender)
        return outputs, 1 / jnp.maximum(count, 1)

    def adjoint(
        self, outputs: jax.Array, kept: jax.Array, gradient: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        return gradient, kept

    def pull_over(
        self, over: EdgeGroup, inputs: Inputs, adjoint: Pytree, wanted: Wanted, before: Inputs
    ) -> Inputs:
        gradient, inverse = adjoint
        if wanted.edge:
            scale = inverse.reshape(-1, *(1,) * (gradient.ndim - 1))
            return super().pull_over(over, inputs, gradient * scale, wanted, before)
        if not wanted.sender:
            return before
        total = self.calls.neighbor_sum(
            over,
            "sender",
            gradient,
            inputs.sender.shape[0],
            weights=self._weights(inputs),
            scale=inverse,
            before=_continued(before.sender, [inputs.sender])[0],
        )
        return dataclasses.replace(before, sender=[total])


class _Extrema(CallStages):
    """y_i = max_j x_j, or min."""

    reducer: Extremum

    def fold_over(self, over: EdgeGroup, inputs: Inputs, before: Pytree, num_rows: int) -> Pytree:
        (x,), structure = jax.tree.flatten(inputs.sender)
        parts = jax.tree.leaves(before)
        state = self.calls.neighbor_extremum(
            over,
            x,
            num_rows,
            maximum=self.reducer.sign > 0,
            before=(parts[0], parts[1]) if parts else None,
        )
        return tuple(jax.tree.unflatten(structure, [part]) for part in state)

    def pull_over(
        self, over: EdgeGroup, inputs: Inputs, adjoint: Pytree, wanted: Wanted, before: Inputs
    ) -> Inputs:
        if not wanted.sender:
            return before
        (x,) = jax.tree.leaves(inputs.sender)
        y, gradient = jax.tree.leaves(adjoint)
        previous = _continued(before.sender, [x])[0]
        total = self.calls.winner_gradient(over, x, (y, gradient), before=previous)
        return dataclasses.replace(before, sender=[total])


class _EndSums(CallStages):
    """y_e = s_j + r_i of every edge, and the sums of their gradients by both ends.

    Only the pull exists: `EdgeOutputs` are never reduced.
    """

    def pull_over(
        self, over: EdgeGroup, inputs: Inputs, adjoint: Pytree, wanted: Wanted, before: Inputs
    ) -> Inputs:
        _, gradient = inputs.edge
        found = before
        if wanted.edge:
            (previous,) = before.edge or [None]
            sums = self.calls.edge_sums(over, inputs.receiver, inputs.sender, before=previous)
            found = dataclasses.replace(found, edge=[sums])
        for side in ("sender", "receiver"):
            if getattr(wanted, side):
                total = self.calls.edge_total(over, side, gradient, len(getattr(inputs, side)))
                total = sum(getattr(before, side), total)
                found = dataclasses.replace(found, **{side: [total]})
        return found
