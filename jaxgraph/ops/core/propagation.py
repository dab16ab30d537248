"""Differentiable message passing by a schedule, without a scatter in either direction."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import SymbolicZero

from jaxgraph.ops.core.derivatives import custom_vjp, with_portable_tangents
from jaxgraph.ops.core.edges import match_variation
from jaxgraph.ops.core.input_classes import count_winners
from jaxgraph.ops.core.messages import (
    Inputs,
    MessageFn,
    Wanted,
    floating_leaves,
    with_floating_leaves,
)
from jaxgraph.ops.core.reducers import Extremum, Reducer
from jaxgraph.ops.core.stored import computed_once, stored_for
from pallas_kernels.pytrees import pytree

REDUCED = "reduced_messages"
"""Checkpoint name of the outputs of a reduction of messages and of its residuals."""

Pytree = Any
_MESSAGES = 16
"""The number of message functions whose traced programs are cached."""


class Neighborhood(Protocol):
    """The neighbourhood of an op: a shard under `jaxgraph.parallel.spmd`, or a block of edges."""

    @property
    def sender_rows(self) -> int:
        """Rows of the table of senders, padding included."""
        ...

    @property
    def receiver_rows(self) -> int:
        """Rows of the table of receivers, padding included."""
        ...

    @property
    def edge_slots(self) -> int:
        """Slots of an array with one row per edge, padding included."""
        ...

    @property
    def implementation(self) -> str:
        """The implementation that reduces over the edges: "xla", "cpu" or "mosaic_gpu"."""
        ...

    def propagate(
        self, message: MessageFn, reducer: Reducer, inputs: Inputs, *, self_loops: bool = False
    ) -> Pytree:
        """Reduces messages at their receivers.

        y_i = reduce_{e: j -> i} message(params, sender_j, receiver_i, edge_e)
        """
        ...

    def pull_sum(
        self,
        message: MessageFn,
        reducer: Reducer,
        inputs: Inputs,
        gradient: Pytree,
        wanted: Wanted,
    ) -> Inputs:
        """Pulls a gradient back through a sum of messages, for ops that state their derivative."""
        ...


class Schedule(Protocol):
    """The messages to reduce, and their order: a pytree of the edges that it needs."""

    @property
    def implementation(self) -> str:
        """The implementation that reduces them: "xla", "cpu" or "mosaic_gpu"."""
        ...

    def reduce(self, message: MessageFn, reducer: Reducer, inputs: Inputs) -> tuple[Pytree, Pytree]:
        """Reduces all messages at their receivers."""
        ...

    def pull(
        self,
        message: MessageFn,
        reducer: Reducer,
        inputs: Inputs,
        results: tuple[Pytree, Pytree],
        gradient: Pytree,
        wanted: Wanted,
    ) -> Inputs:
        """Gradients, as lists, of the floating inputs."""
        ...


def propagate_by(
    schedule: Schedule, message: MessageFn, reducer: Reducer, inputs: Inputs
) -> Pytree:
    """Reduces messages at their receivers by a schedule.

    y_i = reduce_{e: j -> i} message(params, sender_j, receiver_i, edge_e)
    """
    # Here, outside of loops, gradients of replicated parameters are summed over the mesh only once.
    inputs = match_variation(inputs, (schedule, inputs))
    return _propagate(message, schedule, reducer, inputs)


@partial(custom_vjp, nondiff_argnums=(0,))
def _propagate(message, schedule: Schedule, reducer: Reducer, inputs: Inputs) -> Pytree:
    return reduced(message, schedule, reducer, inputs)[0]


def _propagate_forward(message, schedule, reducer, inputs):
    schedule, reducer = primal_values(schedule), primal_values(reducer)
    wanted, inputs = wanted_gradients(inputs), primal_values(inputs)
    finds_winners = isinstance(reducer, Extremum)
    if finds_winners:
        inputs = computed_once(inputs)
    outputs, kept = reduced(message, schedule, reducer, inputs)
    # Winners are found by the bits of the inputs: a recomputation finds the same ones.
    results = Stored.of((outputs, kept), by_name=not finds_winners)
    residuals = (schedule, reducer, inputs, results, Static(wanted))
    return named(outputs), residuals


def _propagate_backward(message, residuals, gradient):
    schedule, reducer, inputs, results, wanted = residuals
    outputs, kept = results.restored()
    gradient = stored_for(schedule.implementation, materialize(gradient, outputs))
    grads = pulled(message, wanted.value, schedule, reducer, inputs, (outputs, kept), gradient)
    return None, None, cotangents(inputs, grads)


_propagate.defvjp(_propagate_forward, _propagate_backward, symbolic_zeros=True)


def pull_once(
    schedule: Schedule,
    message: MessageFn,
    reducer: Reducer,
    inputs: Inputs,
    gradient: Pytree,
    wanted: Wanted,
) -> Inputs:
    """Pulls a gradient back through a sum, for use in a backward."""
    inputs = match_variation(inputs, (schedule, inputs, gradient))
    return pulled(message, wanted, schedule, reducer, inputs, ((), ()), gradient)


def reduced(
    message: MessageFn, schedule: Schedule, reducer: Reducer, inputs: Inputs
) -> tuple[Pytree, Pytree]:
    """`schedule.reduce`, traced and lowered once for all layers of equal shapes."""
    return _reduction(message)(schedule, reducer, inputs)


def pulled(
    message: MessageFn,
    wanted: Wanted,
    schedule: Schedule,
    reducer: Reducer,
    inputs: Inputs,
    results: tuple[Pytree, Pytree],
    gradient: Pytree,
) -> Inputs:
    """`schedule.pull`, traced and lowered once for all layers of equal shapes."""
    return _pullback(message, wanted)(schedule, reducer, inputs, results, gradient)


# One function for each of the latest messages: jax holds the traces of a function as long as the
# function, and a user's message is a new one in every trace.
@lru_cache(maxsize=_MESSAGES)
def _reduction(message: MessageFn) -> Callable[..., tuple[Pytree, Pytree]]:
    def reduce(fixed: Any, inputs: Inputs) -> Any:
        schedule, reducer = fixed
        return schedule.reduce(message, reducer, inputs)

    # Residuals need no tangent: the backward recomputes them where it is differentiated.
    by_kernels = with_portable_tangents(reduce, lambda fixed, inputs: reduce(fixed, inputs)[0])

    def reduce_messages(schedule: Schedule, reducer: Reducer, inputs: Inputs) -> Any:
        is_portable = schedule.implementation == "xla"
        return (reduce if is_portable else by_kernels)((schedule, reducer), inputs)

    return jax.jit(reduce_messages)


@lru_cache(maxsize=_MESSAGES)
def _pullback(message: MessageFn, wanted: Wanted) -> Callable[..., Inputs]:
    def pull(fixed: Any, moving: tuple[Inputs, Pytree]) -> tuple[Inputs]:
        schedule, reducer, results = fixed
        inputs, gradient = moving
        results = count_winners(schedule.reduce, message, inputs, results)
        return (schedule.pull(message, reducer, inputs, results, gradient, wanted),)

    def portable(fixed: Any, moving: tuple[Inputs, Pytree]) -> Inputs:
        schedule, reducer, _ = fixed
        results = schedule.reduce(message, reducer, moving[0])
        return pull((schedule, reducer, results), moving)[0]

    by_kernels = with_portable_tangents(pull, portable)

    def pull_messages(schedule, reducer, inputs, results, gradient) -> Inputs:
        is_portable = schedule.implementation == "xla"
        fixed = (schedule, reducer, results)
        return (pull if is_portable else by_kernels)(fixed, (inputs, gradient))[0]

    return jax.jit(pull_messages)


def named(tree: Pytree) -> Pytree:
    """`tree` under the name by which a checkpoint policy can save it."""
    return jax.tree.map(lambda leaf: checkpoint_name(leaf, REDUCED), tree)


@pytree
class Stored:
    """The residuals of a reduction, saved for its own backward under the name `REDUCED`.

    Matrices get one more axis. A recomputation delays the use of a saved matrix with a row per node
    until the gradient is there (`jaxgraph.layers.recompute`), at the cost of one more array; the
    backward of a reduction needs no such delay. Other arrays are unchanged: before a kernel, XLA's
    CPU compiler copies a reshaped array, and copies it back, and it sums the products of the
    features into which a vector is cut ten times slower.

    Attributes:
      arrays: pytree of arrays [rows, ...], or [1, rows, features].
      axes: the number of axes of each before, in the order of the leaves.
    """

    arrays: Pytree
    axes: tuple[int, ...] = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(cls, tree: Pytree, *, by_name: bool = True) -> Stored:
        """Arrays [rows, ...]; `by_name`: whether they get the name."""
        axes = tuple(leaf.ndim for leaf in jax.tree.leaves(tree))
        arrays = jax.tree.map(lambda x: x[None] if x.ndim == 2 else x, tree)
        return cls(named(arrays) if by_name else arrays, axes)

    def restored(self) -> Pytree:
        """The stored tree."""
        leaves, structure = jax.tree.flatten(self.arrays)
        pairs = zip(leaves, self.axes, strict=True)
        return structure.unflatten([jnp.squeeze(x, 0) if axes == 2 else x for x, axes in pairs])


@pytree
class Static:
    """A hashable value that travels among residuals."""

    value: Any = dataclasses.field(metadata={"static": True})


def _is_primal(leaf: Any) -> bool:
    return hasattr(leaf, "perturbed")


def primal_values(tree: Pytree) -> Pytree:
    """The values of a forward function's arguments under `custom_vjp(symbolic_zeros=True)`."""
    return jax.tree.map(
        lambda leaf: leaf.value if _is_primal(leaf) else leaf, tree, is_leaf=_is_primal
    )


def wanted_gradients(inputs: Inputs) -> Wanted:
    """Finds the differentiated parts of `inputs`, the argument of a forward function."""

    def any_perturbed(tree: Pytree) -> bool:
        leaves = jax.tree.leaves(tree, is_leaf=_is_primal)
        return any(leaf.perturbed for leaf in leaves if _is_primal(leaf))

    return Wanted(*map(any_perturbed, inputs.parts))


def materialize(gradient: Pytree, outputs: Pytree) -> Pytree:
    """`gradient` with arrays of zeros, varying as `outputs` do, in place of symbolic zeros."""

    def make(leaf: Any, like: jax.Array) -> jax.Array:
        return match_variation(jnp.zeros_like(like), like) if _is_zero(leaf) else leaf

    return jax.tree.map(make, gradient, outputs, is_leaf=_is_zero)


def _is_zero(leaf: Any) -> bool:
    return isinstance(leaf, SymbolicZero)


def cotangents(inputs: Inputs, grads: Inputs) -> Inputs:
    """Gradients of all leaves of `inputs` from those of the floating leaves."""
    return Inputs(*map(cotangents_of, inputs.parts, grads.parts))


def cotangents_of(tree: Pytree, floating: list[jax.Array]) -> Pytree:
    """Gradients of all leaves of a tree from those of the floating leaves."""
    likes = floating_leaves(tree)
    rounded = [leaf.astype(like.dtype) for leaf, like in zip(floating, likes, strict=True)]
    filled = with_floating_leaves(tree, rounded)

    def none_of_integers(leaf: Any, new: Any) -> Any:
        return np.zeros(np.shape(leaf), jax.dtypes.float0) if new is leaf else new

    return jax.tree.map(none_of_integers, tree, filled)
