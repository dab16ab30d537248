"""Domain parallelism: the halos of all parts are exchanged at once, then reduced as one group.

SAR calls it vanilla domain-parallel training (section 3.1).
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from jaxgraph.ops.core.chosen_rows import chosen_rows
from jaxgraph.ops.core.derivatives import custom_vjp, forward_of
from jaxgraph.ops.core.edges import match_variation
from jaxgraph.ops.core.messages import Inputs, MessageFn, Wanted, floating_leaves
from jaxgraph.ops.core.reducers import Reducer
from jaxgraph.ops.core.rows import rows_from, with_rows_from
from jaxgraph.parallel.own_parts import inputs_of_part, joined, of_part
from pallas_kernels.pytrees import pytree

if TYPE_CHECKING:
    from jaxgraph.parallel.shard import HaloTable, Shard

__all__ = ["HALOS", "AllHalos"]

Pytree = Any
HALOS = "halos"
"""Checkpoint name of the own rows and those that came from other parts."""


@pytree
class AllHalos:
    """The messages of a shard, with the halos of all parts at once; a graph of one part has none.

    Attributes:
      shard: the shard.
      self_loops: whether nodes without an edge to themselves send themselves a message.
    """

    shard: Shard
    self_loops: bool = dataclasses.field(metadata={"static": True})

    def propagate(self, message: MessageFn, reducer: Reducer, inputs: Inputs) -> Pytree:
        """See `jaxgraph.parallel.shard.Shard.propagate`."""
        shard = self.shard

        def reduce(part: Shard, inputs: Inputs, index: jax.Array | int) -> Pytree:
            sender = exchange_all(shard, inputs.sender, index)
            everything = dataclasses.replace(inputs, sender=sender)
            block, loops = part.local_block(), self.self_loops
            return block.propagate(message, reducer, everything, self_loops=loops)

        if shard.own_parts == 1:
            return reduce(shard, inputs, 0)

        def of_one(index: jax.Array) -> Pytree:
            return reduce(shard.part(index), inputs_of_part(shard, inputs, index), index)

        return joined(lax.map(of_one, jnp.arange(shard.own_parts)))

    def pull_sum(
        self, message: MessageFn, reducer: Reducer, inputs: Inputs, gradient: Pytree, wanted: Wanted
    ) -> Inputs:
        """See `jaxgraph.parallel.shard.Shard.pull_sum`."""
        shard = self.shard
        if shard.own_parts == 1:
            return self._pull_part(shard, 0, message, reducer, inputs, gradient, wanted)

        def of_one(index: jax.Array) -> Inputs:
            own = inputs_of_part(shard, inputs, index)
            of_rows = of_part(shard, gradient, index)
            part = shard.part(index)
            return self._pull_part(part, index, message, reducer, own, of_rows, wanted)

        found = lax.map(of_one, jnp.arange(shard.own_parts))
        total = jax.tree.map(lambda leaf: jnp.sum(leaf, 0), (found.params, found.sender))
        return Inputs(*total, *joined((found.receiver, found.edge)))

    def _pull_part(
        self,
        part: Shard,
        index: jax.Array | int,
        message: MessageFn,
        reducer: Reducer,
        inputs: Inputs,
        gradient: Pytree,
        wanted: Wanted,
    ) -> Inputs:
        """Pulls gradients through the edges into one part; senders' are those of all own parts."""

        def exchange(tree: Pytree) -> Pytree:
            return exchange_all(self.shard, tree, index)

        rows = forward_of(exchange, inputs.sender)
        among_all = dataclasses.replace(inputs, sender=rows)
        found = part.local_block().pull_sum(message, reducer, among_all, gradient, wanted)
        if not wanted.sender:
            unread = [jnp.zeros_like(leaf) for leaf in floating_leaves(inputs.sender)]
            return dataclasses.replace(found, sender=unread)
        pairs = zip(found.sender, floating_leaves(rows), strict=True)
        rounded = [leaf.astype(like.dtype) for leaf, like in pairs]
        back = jax.vjp(exchange, floating_leaves(inputs.sender))[1]
        return dataclasses.replace(found, sender=back(rounded)[0])


def exchange_all(shard: Shard, tree: Pytree, index: jax.Array | int = 0) -> Pytree:
    """Returns the rows of a part followed by all its halos, with equally many rows per part.

    Differentiable; the gradient of a halo row travels back and is added to its owner's row.

    Args:
      shard: the shard; its `send` table lists the rows that travel.
      tree: arrays [rows, ...].
      index: index of the own part, the same on every device.

    Returns:
      Arrays [rows of the part + parts * halo rows, ...].
    """
    if shard.send is None:
        return tree
    send = shard.send
    if shard.own_parts == 1:
        send = jax.tree.map(lambda leaf: leaf[None], send)
    by, size = shard.implementation, shard.manifest.halo_rows

    def with_halos(leaf: jax.Array) -> jax.Array:
        leaf = match_variation(leaf, send)
        return _all_rows(shard.axis, size, by, send, jnp.int32(index), leaf)

    with jax.named_scope("domain_exchange"):
        return jax.tree.map(with_halos, tree)


def _steps(axis: str | tuple[str, ...], table: HaloTable, index: jax.Array) -> jax.Array:
    """int32 [devices, own parts]: from each own part to the part `index` of each device."""
    own, parts = table.ptr.shape
    targets = jnp.arange(parts // own) * own + index
    mine = lax.axis_index(axis) * own + jnp.arange(own)
    return (targets[:, None] - mine[None]) % parts


def _message_rows(steps: jax.Array, table: HaloTable, size: int, part_rows: int) -> jax.Array:
    """int32 [devices, own parts, size], the rows of each own part that each device gets."""
    own = jnp.arange(table.ptr.shape[0])[None]
    starts = table.ptr[own, jnp.maximum(steps - 1, 0)]
    rows = table.rows[own[..., None], starts[..., None] + jnp.arange(size)[None, None]]
    return rows + own[..., None] * part_rows


@partial(custom_vjp, nondiff_argnums=(0, 1, 2))
def _all_rows(
    axis: str | tuple[str, ...],
    size: int,
    by: str,
    table: HaloTable,
    index: jax.Array,
    leaf: jax.Array,
) -> jax.Array:
    own, part_rows = table.ptr.shape[0], leaf.shape[0] // table.ptr.shape[0]
    rows = _message_rows(_steps(axis, table, index), table, size, part_rows)
    sent = chosen_rows(leaf, rows.reshape(-1), by).reshape(*rows.shape, *leaf.shape[1:])
    halos = lax.all_to_all(sent, axis, split_axis=0, concat_axis=0)
    halos = halos.reshape(table.ptr.shape[1], size, *leaf.shape[1:])
    first = leaf if own == 1 else rows_from(leaf, index * part_rows, part_rows)
    # Part by part, so that XLA concatenates own and received rows at once.
    return jnp.concatenate([first, *halos])


def _all_rows_forward(axis, size, by, table, index, leaf):
    rows = checkpoint_name(_all_rows.value(axis, size, by, table, index, leaf), HALOS)
    return rows, (table, index, jnp.zeros((leaf.shape[0], 0), leaf.dtype))


def _all_rows_backward(axis, size, by, residuals, gradient):
    table, index, like = residuals
    own, rest = table.ptr.shape[0], gradient.shape[1:]
    part_rows, devices = like.shape[0] // own, table.ptr.shape[1] // own
    total = gradient[:part_rows]
    if own > 1:
        zeros = match_variation(jnp.zeros((like.shape[0], *rest), gradient.dtype), gradient)
        total = with_rows_from(zeros, index * part_rows, total)
    halos = gradient[part_rows:].reshape(devices, own, size, *rest)
    returned = lax.all_to_all(halos, axis, split_axis=0, concat_axis=0)
    returned = returned.reshape(table.ptr.shape[1], size, *rest)
    steps = _steps(axis, table, index).reshape(-1)

    def add(number: jax.Array, total: jax.Array) -> jax.Array:
        part = number % own
        position = table.position[part, jnp.maximum(steps[number] - 1, 0)]
        position = jnp.where(steps[number] > 0, position, -1)
        return _add_rows_at(total, part * part_rows, returned[number], position)

    no_gradient = np.zeros((), jax.dtypes.float0)
    return None, no_gradient, lax.fori_loop(0, devices * own, add, total)


_all_rows.defvjp(_all_rows_forward, _all_rows_backward)


def _add_rows_at(
    total: jax.Array, first: jax.Array, rows: jax.Array, position: jax.Array
) -> jax.Array:
    found = rows.at[jnp.maximum(position, 0)].get(mode="promise_in_bounds")
    has = (position >= 0).reshape(-1, *(1,) * (rows.ndim - 1))
    head = rows_from(total, first, position.shape[0]) + jnp.where(has, found, 0)
    return with_rows_from(total, first, head)
