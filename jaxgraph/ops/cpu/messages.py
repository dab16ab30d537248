"""The messages that the CPU kernels know, recognised by comparing with the library's own."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.cpu.attention_messages import attention_kernel
from jaxgraph.ops.cpu.calls import (
    KERNEL_TYPES,
    edge_products,
    neighbor_extremum,
    neighbor_sum,
    winner_gradient,
)
from jaxgraph.ops.edges import EdgeGroup
from jaxgraph.ops.message_functions import sum_message, weighted_message
from jaxgraph.ops.messages import Inputs, MessageFn, Wanted
from jaxgraph.ops.precision import accumulation_dtype
from jaxgraph.ops.reducers import Extremum, Reducer, Softmax, Sum

__all__ = ["cpu_kernel"]

Pytree = Any


def cpu_kernel(message: MessageFn, reducer: Reducer, inputs: Inputs) -> Any:
    """The CPU kernel for messages, or None where there is none.

    Args:
      message, reducer, inputs: as for `jaxgraph.ops.kernels.find_kernel`.

    Returns:
      A `jaxgraph.ops.kernels.Kernel`, or None.
    """
    if isinstance(reducer, Softmax):
        return attention_kernel(message, reducer, inputs)
    leaves = jax.tree.leaves(inputs.sender)
    if not leaves or any(leaf.dtype not in KERNEL_TYPES for leaf in leaves):
        return None
    if message is sum_message and isinstance(reducer, Sum):
        return _SumKernel()
    if message is weighted_message and isinstance(reducer, Sum) and _exact(inputs):
        return _WeightedSumKernel()
    if message is sum_message and isinstance(reducer, Extremum) and len(leaves) == 1:
        return _ExtremumKernel(reducer.sign > 0)
    return None


def _exact(inputs: Inputs) -> bool:
    """Whether the type in which x is accumulated holds the weights as they are."""
    kept, weights = accumulation_dtype(inputs.sender.dtype), inputs.edge.dtype
    return weights in KERNEL_TYPES and jnp.promote_types(kept, weights) == kept


def _continued(before: list[jax.Array], leaves: list[jax.Array]) -> list[jax.Array | None]:
    """What each result continues from, or None where nothing has been summed yet."""
    return list(before) if before else [None] * len(leaves)


@dataclasses.dataclass(frozen=True)
class _SumKernel:
    """y_i = sum_j x_j."""

    def fold(self, over: EdgeGroup, inputs: Inputs, before: Pytree, num_rows: int) -> Pytree:
        leaves, structure = jax.tree.flatten(inputs.sender)
        running = _continued(jax.tree.leaves(before), leaves)
        sums = [
            neighbor_sum(over, "receiver", leaf, num_rows, before=previous)
            for leaf, previous in zip(leaves, running, strict=True)
        ]
        return jax.tree.unflatten(structure, sums)

    def pull(
        self, over: EdgeGroup, inputs: Inputs, adjoint: Pytree, wanted: Wanted, before: Inputs
    ) -> Inputs:
        if not wanted.sender:
            return before
        leaves, gradients = jax.tree.leaves(inputs.sender), jax.tree.leaves(adjoint)
        running = _continued(before.sender, leaves)
        sums = [
            neighbor_sum(over, "sender", gradient, leaf.shape[0], before=previous)
            for leaf, gradient, previous in zip(leaves, gradients, running, strict=True)
        ]
        return dataclasses.replace(before, sender=sums)


@dataclasses.dataclass(frozen=True)
class _WeightedSumKernel:
    """y_i = sum_e w_e x_j; no edge is added, since it would have no weight."""

    def fold(self, over: EdgeGroup, inputs: Inputs, before: Pytree, num_rows: int) -> Pytree:
        x, weights = inputs.sender, inputs.edge
        return neighbor_sum(over, "receiver", x, num_rows, weights=weights, before=before)

    def pull(
        self, over: EdgeGroup, inputs: Inputs, adjoint: Pytree, wanted: Wanted, before: Inputs
    ) -> Inputs:
        x, weights = inputs.sender, inputs.edge
        gradients = before
        if wanted.edge:
            products = _weight_gradient(over, x, weights, adjoint, before.edge)
            gradients = dataclasses.replace(gradients, edge=[products])
        if wanted.sender:
            previous = _continued(before.sender, [x])[0]
            total = neighbor_sum(
                over, "sender", adjoint, x.shape[0], weights=weights, before=previous
            )
            gradients = dataclasses.replace(gradients, sender=[total])
        return gradients


def _weight_gradient(
    over: EdgeGroup, x: jax.Array, weights: jax.Array, gradient: jax.Array, before: list[jax.Array]
) -> jax.Array:
    """dw_e = <g_i, x_j>, of the shape and type of the weights."""
    dtype = jnp.result_type(x, weights, gradient)
    heads = 1 if weights.ndim == 1 else weights.shape[1]
    previous = before[0].reshape(-1, heads).astype(dtype) if before else None
    products = edge_products(
        over, gradient.astype(dtype), x.astype(dtype), heads=heads, before=previous
    )
    return products.reshape(weights.shape).astype(weights.dtype)


@dataclasses.dataclass(frozen=True)
class _ExtremumKernel:
    """y_i = max_j x_j, or min."""

    maximum: bool

    def fold(self, over: EdgeGroup, inputs: Inputs, before: Pytree, num_rows: int) -> Pytree:
        (x,), structure = jax.tree.flatten(inputs.sender)
        parts = jax.tree.leaves(before)
        state = neighbor_extremum(
            over,
            x,
            num_rows,
            maximum=self.maximum,
            before=(parts[0], parts[1], parts[2]) if parts else None,
        )
        return jax.tree.unflatten(structure, [state])

    def pull(
        self, over: EdgeGroup, inputs: Inputs, adjoint: Pytree, wanted: Wanted, before: Inputs
    ) -> Inputs:
        if not wanted.sender:
            return before
        (x,) = jax.tree.leaves(inputs.sender)
        y, gradient, several, identity = jax.tree.leaves(adjoint)
        previous = _continued(before.sender, [x])[0]
        total = winner_gradient(over, x, (y, gradient, several, identity), before=previous)
        return dataclasses.replace(before, sender=[total])
