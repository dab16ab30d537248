"""Partial results of all nodes, reduced once: the schedule of P3's first layer (section 3.2).

A device computes its share of a sum over devices from its columns. One reduce-scatter (the "pull")
leaves every device with the complete rows of its own nodes, and the backward starts with one
all-gather (the "push") of their gradient. Features and their gradient stay where they are.

Rows are processed chunk by chunk. The shares of a chunk are reduced while those of the next one are
computed: this is pipelining (section 3.3) without minibatches. The backward recomputes the shares:
those of all nodes are never saved.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from jaxgraph.ops.core.derivatives import custom_vjp
from jaxgraph.ops.core.edges import match_variation
from jaxgraph.ops.core.messages import Inputs, floating_leaves, with_floating_leaves
from jaxgraph.ops.core.propagation import (
    Static,
    cotangents_of,
    materialize,
    named,
    primal_values,
    wanted_gradients,
)

Pytree = Any
PartialFn = Callable[[Pytree, Pytree, Any], jax.Array]


class Topology(Protocol):
    """The rows whose shares are added: those of all parts, cut into chunks, or of samples."""

    @property
    def axis(self) -> str:
        """Name of the mesh axis over which columns are split."""
        ...

    @property
    def chunks(self) -> int:
        """The number of chunks that the rows are cut into."""
        ...

    def each_part(self, chunk: Any, function: Callable[[Any], Any], /) -> Pytree:
        """Maps a chunk, part by part, to [rows of the chunk in all parts, ...]."""
        ...

    def fold_parts(
        self, chunk: Any, function: Callable[[Any, Any, Any], Any], rows: Any, state: Any, /
    ) -> Pytree:
        """Folds a function over a chunk, part by part."""
        ...


def push_pull(topology: Topology, function: PartialFn, params: Pytree, table: Pytree) -> jax.Array:
    """Sums the devices' shares of the own rows."""
    params, table = match_variation((params, table), topology)
    return _push_pull(function, topology, params, table)


@partial(custom_vjp, nondiff_argnums=(0,))
def _push_pull(function, topology: Topology, params: Pytree, table: Pytree) -> jax.Array:
    def share(chunk: jax.Array | int) -> jax.Array:
        with jax.named_scope("p3_share"):
            return topology.each_part(chunk, partial(function, params, table))

    def complete(shares: jax.Array) -> jax.Array:
        with jax.named_scope("p3_reduce"):
            return lax.psum_scatter(shares, topology.axis, scatter_dimension=0, tiled=True)

    chunks = topology.chunks
    if chunks == 1:
        return complete(share(0))

    def step(carry: Any, chunk: jax.Array) -> tuple[Any, jax.Array]:
        waiting, completed = carry
        # Completed rows are stored a step later: XLA would move a reduction whose result is stored
        # at once to after all work that could hide it.
        return (share(chunk), complete(waiting)), completed

    first = share(0)
    empty = jnp.zeros(
        (first.shape[0] // lax.axis_size(topology.axis), *first.shape[1:]), first.dtype
    )
    carry, stored = lax.scan(step, (first, match_variation(empty, first)), jnp.arange(1, chunks))
    last, completed = carry
    stored = stored[1:].reshape(-1, *first.shape[1:])
    return jnp.concatenate([stored, completed, complete(last)])


def _forward(function, topology, params, table):
    found = wanted_gradients(Inputs(params, table, (), ()))
    wanted = Static((found.params, found.sender))
    topology, params, table = (primal_values(each) for each in (topology, params, table))
    y = named(_push_pull.value(function, topology, params, table))
    return y, (topology, params, table, y, wanted)


def _backward(function, residuals, gradient):
    topology, params, table, y, wanted = residuals
    arguments = (params, table)
    own = materialize(gradient, y)
    like = [floating_leaves(each) if want else [] for each, want in _zip(arguments, wanted)]

    def share(some: list[list[jax.Array]], chunk: Any) -> jax.Array:
        replaced = [
            with_floating_leaves(each, leaves) if want else each
            for (each, want), leaves in zip(_zip(arguments, wanted), some, strict=True)
        ]
        return function(*replaced, chunk)

    def pull(chunk: Any, gradient: jax.Array, total: Pytree) -> Pytree:
        with jax.named_scope("p3_pull"):
            _, pullback = jax.vjp(lambda some: share(some, chunk), like)
            return jax.tree.map(jnp.add, total, pullback(gradient)[0])

    total = match_variation(jax.tree.map(jnp.zeros_like, like), (arguments, own, topology))
    total = _pull_chunks(topology, pull, own, total)
    return None, *(
        cotangents_of(each, leaves) if want else None
        for (each, want), leaves in zip(_zip(arguments, wanted), total, strict=True)
    )


_push_pull.defvjp(_forward, _backward, symbolic_zeros=True)


def _pull_chunks(
    topology: Topology,
    pull: Callable[[Any, jax.Array, Pytree], Pytree],
    own: jax.Array,
    total: Pytree,
) -> Pytree:
    """Pulls the gradient of the own rows back through all shares, chunk by chunk."""

    def push(rows: jax.Array) -> jax.Array:
        with jax.named_scope("p3_gather"):
            return lax.all_gather(rows, topology.axis, tiled=True)

    chunks = topology.chunks
    if chunks == 1:
        return topology.fold_parts(0, pull, push(own), total)
    by_chunk = own.reshape(chunks, -1, *own.shape[1:])

    def step(carry: Any, following: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
        total, gradient = carry
        chunk, rows = following
        upcoming = push(rows)
        return (topology.fold_parts(chunk - 1, pull, gradient, total), upcoming), None

    (total, gradient), _ = lax.scan(
        step, (total, push(by_chunk[0])), (jnp.arange(1, chunks), by_chunk[1:])
    )
    return topology.fold_parts(chunks - 1, pull, gradient, total)


def _zip(arguments: tuple[Pytree, Pytree], wanted: Static) -> list[tuple[Pytree, bool]]:
    return list(zip(arguments, wanted.value, strict=True))
