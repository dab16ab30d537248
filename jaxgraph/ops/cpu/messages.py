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
from jaxgraph.ops.edges import EdgeGroups
from jaxgraph.ops.message_functions import sum_message, weighted_message
from jaxgraph.ops.messages import Inputs, MessageFn, Wanted
from jaxgraph.ops.reducers import Extremum, Reducer, Softmax, Sum

__all__ = ["cpu_kernel"]

Pytree = Any
Group = jax.Array | int


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
    if message is weighted_message and isinstance(reducer, Sum):
        return _WeightedSumKernel()
    if message is sum_message and isinstance(reducer, Extremum) and len(leaves) == 1:
        return _ExtremumKernel(reducer.sign > 0)
    return None


def _continued(before: list[jax.Array], leaves: list[jax.Array]) -> list[jax.Array | None]:
    """What each result continues from, or None where nothing has been summed yet."""
    return list(before) if before else [None] * len(leaves)


def _for_rows(missing: jax.Array | None, num_rows: int) -> jax.Array | None:
    """`missing` with an entry for each row of a table whose first rows it is about."""
    if missing is None:
        return None
    return jnp.pad(missing, (0, num_rows - missing.shape[0]))


@dataclasses.dataclass(frozen=True)
class _SumKernel:
    """y_i = sum_j x_j."""

    def fold(
        self,
        edges: EdgeGroups,
        group: Group,
        inputs: Inputs,
        before: Pytree,
        num_rows: int,
        missing: jax.Array | None,
    ) -> Pytree:
        leaves, structure = jax.tree.flatten(inputs.sender)
        running = _continued(jax.tree.leaves(before), leaves)
        sums = [
            neighbor_sum(edges.by_receiver, group, leaf, num_rows, missing=missing, before=previous)
            for leaf, previous in zip(leaves, running, strict=True)
        ]
        return jax.tree.unflatten(structure, sums)

    def pull(
        self,
        edges: EdgeGroups,
        group: Group,
        inputs: Inputs,
        adjoint: Pytree,
        wanted: Wanted,
        before: Inputs,
        missing: jax.Array | None,
    ) -> Inputs:
        if not wanted.sender:
            return before
        leaves, gradients = jax.tree.leaves(inputs.sender), jax.tree.leaves(adjoint)
        running = _continued(before.sender, leaves)
        sums = [
            _transposed_sum(edges, group, leaf, gradient, previous, missing)
            for leaf, gradient, previous in zip(leaves, gradients, running, strict=True)
        ]
        return dataclasses.replace(before, sender=sums)


def _transposed_sum(
    edges: EdgeGroups,
    group: Group,
    x: jax.Array,
    gradient: jax.Array,
    before: jax.Array | None,
    missing: jax.Array | None = None,
    weights: jax.Array | None = None,
) -> jax.Array:
    """dx_j = sum_{e: j -> i} w_e g_i."""
    num_rows = x.shape[0]
    return neighbor_sum(
        edges.by_sender,
        group,
        gradient,
        num_rows,
        weights=weights,
        missing=_for_rows(missing, num_rows),
        before=before,
    )


@dataclasses.dataclass(frozen=True)
class _WeightedSumKernel:
    """y_i = sum_e w_e x_j; no edge is added, since it would have no weight."""

    def fold(
        self,
        edges: EdgeGroups,
        group: Group,
        inputs: Inputs,
        before: Pytree,
        num_rows: int,
        missing: jax.Array | None,
    ) -> Pytree:
        x, weights = inputs.sender, inputs.edge.astype(inputs.sender.dtype)
        return neighbor_sum(edges.by_receiver, group, x, num_rows, weights=weights, before=before)

    def pull(
        self,
        edges: EdgeGroups,
        group: Group,
        inputs: Inputs,
        adjoint: Pytree,
        wanted: Wanted,
        before: Inputs,
        missing: jax.Array | None,
    ) -> Inputs:
        x, weights = inputs.sender, inputs.edge
        if wanted.edge:
            previous = _continued(before.edge, [weights])[0]
            heads = 1 if weights.ndim == 1 else weights.shape[1]
            if previous is not None:
                previous = previous.reshape(-1, heads).astype(x.dtype)
            products = edge_products(
                edges.by_receiver, group, adjoint, x, len(weights), heads=heads, before=previous
            )
            products = products.reshape(weights.shape).astype(weights.dtype)
            before = dataclasses.replace(before, edge=[products])
        if wanted.sender:
            previous = _continued(before.sender, [x])[0]
            weights = weights.astype(x.dtype)
            total = _transposed_sum(edges, group, x, adjoint, previous, weights=weights)
            before = dataclasses.replace(before, sender=[total])
        return before


@dataclasses.dataclass(frozen=True)
class _ExtremumKernel:
    """y_i = max_j x_j, or min."""

    maximum: bool

    def fold(
        self,
        edges: EdgeGroups,
        group: Group,
        inputs: Inputs,
        before: Pytree,
        num_rows: int,
        missing: jax.Array | None,
    ) -> Pytree:
        (x,), structure = jax.tree.flatten(inputs.sender)
        parts = jax.tree.leaves(before)
        state = neighbor_extremum(
            edges.by_receiver,
            group,
            x,
            _sender_ids(edges, group, x.shape[0]),
            edges.repetition,
            num_rows,
            maximum=self.maximum,
            missing=missing,
            before=(parts[0], parts[1], parts[2]) if parts else None,
        )
        return jax.tree.unflatten(structure, [state])

    def pull(
        self,
        edges: EdgeGroups,
        group: Group,
        inputs: Inputs,
        adjoint: Pytree,
        wanted: Wanted,
        before: Inputs,
        missing: jax.Array | None,
    ) -> Inputs:
        if not wanted.sender:
            return before
        (x,) = jax.tree.leaves(inputs.sender)
        y, gradient, several, identity = jax.tree.leaves(adjoint)
        total = winner_gradient(
            edges.by_sender,
            group,
            x,
            _sender_ids(edges, group, x.shape[0]),
            edges.repetition,
            (y, gradient, several, identity),
            missing=_for_rows(missing, x.shape[0]),
            before=_continued(before.sender, [x])[0],
        )
        return dataclasses.replace(before, sender=[total])


def _sender_ids(edges: EdgeGroups, group: Group, num_rows: int) -> jax.Array:
    """Global ids of the rows of a group's senders; rows behind those that it has hold any id."""
    if edges.sender_ptr is None:
        return edges.sender_ids
    rows = edges.sender_ptr[group] + jnp.arange(num_rows, dtype=jnp.int32)
    return edges.sender_ids.at[rows].get(mode="clip")
