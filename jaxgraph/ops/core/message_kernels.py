"""Reductions of the library's own messages by kernels, whichever compute them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgraph.ops.core.edge_outputs import EdgeOutputs
from jaxgraph.ops.core.edges import EdgeGroup, match_variation
from jaxgraph.ops.core.message_functions import sum_message, sum_of_ends, weighted_message
from jaxgraph.ops.core.messages import Inputs, MessageFn, Wanted
from jaxgraph.ops.core.precision import accumulation_dtype
from jaxgraph.ops.core.reducers import Extremum, Mean, Reducer, Sum

__all__ = ["Calls", "message_kernel"]

Pytree = Any


@dataclasses.dataclass(frozen=True)
class Calls:
    """The kernels of one implementation, as functions of arrays.

    Attributes:
      types: of the numbers that they take.
      neighbor_sum, edge_products, neighbor_extremum, winner_gradient: as in
        `jaxgraph.ops.cpu.calls`.
      neighbor_mean: as in `jaxgraph.ops.mosaic_gpu.calls`, with whose `neighbor_sum` it goes
        together; None: means are divided after they are summed.
      edge_sums, edge_total: as there; both or none.
    """

    types: tuple[np.dtype, ...]
    neighbor_sum: Callable[..., jax.Array]
    edge_products: Callable[..., jax.Array]
    neighbor_extremum: Callable[..., tuple[jax.Array, jax.Array]]
    winner_gradient: Callable[..., jax.Array]
    neighbor_mean: Callable[..., tuple[jax.Array, jax.Array]] | None = None
    edge_sums: Callable[..., jax.Array] | None = None
    edge_total: Callable[..., jax.Array] | None = None


def message_kernel(calls: Calls, message: MessageFn, reducer: Reducer, inputs: Inputs) -> Any:
    """The kernel that sums messages or takes their maximum or minimum.

    Args:
      calls: what computes it.
      message, reducer, inputs: as for `jaxgraph.ops.core.kernels.find_kernel`.

    Returns:
      A `jaxgraph.ops.core.kernels.Kernel`, or None.
    """
    leaves = jax.tree.leaves(inputs.sender)
    if not leaves or any(leaf.dtype not in calls.types for leaf in leaves):
        return None
    if isinstance(message, EdgeOutputs):
        types = {leaf.dtype for leaf in jax.tree.leaves(inputs.receiver)}
        is_known = message.function is sum_of_ends and types <= set(calls.types)
        return _EndSumKernel(calls) if is_known and calls.edge_sums is not None else None
    if isinstance(reducer, Sum):
        sums, is_mean = _sum_kernel(calls, message, inputs), isinstance(reducer, Mean)
        return _mean_kernel(sums, inputs) if is_mean and sums is not None else sums
    if message is sum_message and isinstance(reducer, Extremum) and len(leaves) == 1:
        return _ExtremumKernel(calls, reducer.sign > 0)
    return None


def _sum_kernel(
    calls: Calls, message: MessageFn, inputs: Inputs
) -> _SumKernel | _WeightedSumKernel | None:
    if message is sum_message:
        return _SumKernel(calls)
    if message is weighted_message and _exact(calls, inputs):
        return _WeightedSumKernel(calls)
    return None


def _mean_kernel(sums: _SumKernel | _WeightedSumKernel, inputs: Inputs) -> _MeanKernel:
    # Of one array, that is.
    whole = sums.calls.neighbor_mean is not None and hasattr(inputs.sender, "dtype")
    return _WholeMeanKernel(sums) if whole else _MeanKernel(sums)


def _exact(calls: Calls, inputs: Inputs) -> bool:
    """Whether the type in which x is accumulated holds the weights as they are."""
    kept, weights = accumulation_dtype(inputs.sender.dtype), inputs.edge.dtype
    return weights in calls.types and jnp.promote_types(kept, weights) == kept


def _continued(before: list[jax.Array], leaves: list[jax.Array]) -> list[jax.Array | None]:
    """What each result continues from, or None where nothing has been summed yet."""
    return list(before) if before else [None] * len(leaves)


@dataclasses.dataclass(frozen=True)
class _SumKernel:
    """y_i = sum_j x_j."""

    calls: Calls

    def fold(self, over: EdgeGroup, inputs: Inputs, before: Pytree, num_rows: int) -> Pytree:
        leaves, structure = jax.tree.flatten(inputs.sender)
        running = _continued(jax.tree.leaves(before), leaves)
        sums = [
            self.calls.neighbor_sum(over, "receiver", leaf, num_rows, before=previous)
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
            self.calls.neighbor_sum(over, "sender", gradient, leaf.shape[0], before=previous)
            for leaf, gradient, previous in zip(leaves, gradients, running, strict=True)
        ]
        return dataclasses.replace(before, sender=sums)


@dataclasses.dataclass(frozen=True)
class _WeightedSumKernel:
    """y_i = sum_e w_e x_j; no edge is added, since it would have no weight."""

    calls: Calls

    def fold(self, over: EdgeGroup, inputs: Inputs, before: Pytree, num_rows: int) -> Pytree:
        x, weights = inputs.sender, inputs.edge
        return self.calls.neighbor_sum(
            over, "receiver", x, num_rows, weights=weights, before=before
        )

    def pull(
        self, over: EdgeGroup, inputs: Inputs, adjoint: Pytree, wanted: Wanted, before: Inputs
    ) -> Inputs:
        x, weights = inputs.sender, inputs.edge
        gradients = before
        if wanted.edge:
            products = _weight_gradient(self.calls, over, x, weights, adjoint, before.edge)
            gradients = dataclasses.replace(gradients, edge=[products])
        if wanted.sender:
            previous = _continued(before.sender, [x])[0]
            total = self.calls.neighbor_sum(
                over, "sender", adjoint, x.shape[0], weights=weights, before=previous
            )
            gradients = dataclasses.replace(gradients, sender=[total])
        return gradients


def _weight_gradient(
    calls: Calls,
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


@dataclasses.dataclass(frozen=True)
class _MeanKernel:
    """The mean of what another kernel sums."""

    sums: _SumKernel | _WeightedSumKernel

    def fold(self, over: EdgeGroup, inputs: Inputs, before: Pytree, num_rows: int) -> Pytree:
        sums, count = (None, None) if before is None else before
        leaves = jax.tree.leaves(inputs.sender)
        dtype = accumulation_dtype(jnp.result_type(*leaves))
        ones = match_variation(jnp.ones((leaves[0].shape[0], 1), dtype), (over.edges, inputs))
        count = self.sums.calls.neighbor_sum(
            over, "receiver", ones, num_rows, before=None if count is None else count[:, None]
        )
        return self.sums.fold(over, inputs, sums, num_rows), count[:, 0]

    def pull(
        self, over: EdgeGroup, inputs: Inputs, adjoint: Pytree, wanted: Wanted, before: Inputs
    ) -> Inputs:
        return self.sums.pull(over, inputs, adjoint, wanted, before)


@dataclasses.dataclass(frozen=True)
class _WholeMeanKernel(_MeanKernel):
    """The same, divided by the kernel; pulls back gradients that have not been divided."""

    def reduce(self, over: EdgeGroup, inputs: Inputs) -> tuple[jax.Array, jax.Array]:
        mean = self.sums.calls.neighbor_mean
        assert mean is not None
        rows = over.edges.by_receiver.position.shape[0]
        return mean(over, inputs.sender, rows, weights=self._weights(inputs))

    def finish(self, state: Pytree, inputs: Inputs) -> tuple[jax.Array, jax.Array]:
        outputs, count = Mean().finish(state, inputs.sender)
        return outputs, 1 / jnp.maximum(count, 1)

    def adjoint(
        self, outputs: jax.Array, kept: jax.Array, gradient: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        return gradient, kept

    def pull(
        self, over: EdgeGroup, inputs: Inputs, adjoint: Pytree, wanted: Wanted, before: Inputs
    ) -> Inputs:
        gradient, inverse = adjoint
        if wanted.edge:
            scale = inverse.reshape(-1, *(1,) * (gradient.ndim - 1))
            return super().pull(over, inputs, gradient * scale, wanted, before)
        if not wanted.sender:
            return before
        total = self.sums.calls.neighbor_sum(
            over,
            "sender",
            gradient,
            inputs.sender.shape[0],
            weights=self._weights(inputs),
            scale=inverse,
            before=_continued(before.sender, [inputs.sender])[0],
        )
        return dataclasses.replace(before, sender=[total])

    def _weights(self, inputs: Inputs) -> jax.Array | None:
        return inputs.edge if isinstance(self.sums, _WeightedSumKernel) else None


@dataclasses.dataclass(frozen=True)
class _ExtremumKernel:
    """y_i = max_j x_j, or min."""

    calls: Calls
    maximum: bool

    def fold(self, over: EdgeGroup, inputs: Inputs, before: Pytree, num_rows: int) -> Pytree:
        (x,), structure = jax.tree.flatten(inputs.sender)
        parts = jax.tree.leaves(before)
        state = self.calls.neighbor_extremum(
            over,
            x,
            num_rows,
            maximum=self.maximum,
            before=(parts[0], parts[1]) if parts else None,
        )
        return tuple(jax.tree.unflatten(structure, [part]) for part in state)

    def pull(
        self, over: EdgeGroup, inputs: Inputs, adjoint: Pytree, wanted: Wanted, before: Inputs
    ) -> Inputs:
        if not wanted.sender:
            return before
        (x,) = jax.tree.leaves(inputs.sender)
        y, gradient = jax.tree.leaves(adjoint)
        previous = _continued(before.sender, [x])[0]
        total = self.calls.winner_gradient(over, x, (y, gradient), before=previous)
        return dataclasses.replace(before, sender=[total])


@dataclasses.dataclass(frozen=True)
class _EndSumKernel:
    """y_e = s_j + r_i of every edge, and the sums of their gradients by both ends.

    The pull alone of `EdgeOutputs`, which are never reduced.
    """

    calls: Calls

    def pull(
        self, over: EdgeGroup, inputs: Inputs, adjoint: Pytree, wanted: Wanted, before: Inputs
    ) -> Inputs:
        assert self.calls.edge_sums is not None and self.calls.edge_total is not None
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
