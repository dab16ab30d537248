"""Domain parallelism: the halos of all parts are exchanged at once, then reduced as one group.

SAR calls it vanilla domain-parallel training (section 3.1).
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from jaxgraph.ops.core.chosen_rows import chosen_rows
from jaxgraph.ops.core.derivatives import custom_vjp, forward_of
from jaxgraph.ops.core.edges import match_variation
from jaxgraph.ops.core.messages import Inputs, Wanted, floating_leaves
from jaxgraph.ops.core.rows import with_rows_from
from jaxgraph.parallel.exchange import Call, Exchange, HaloTable
from pallas_kernels.pytrees import pytree

Pytree = Any
HALOS = "halos"
"""Checkpoint name of the own rows and those that came from other parts."""


@pytree
class Domain(Exchange):
    """The exchange of the halos of all parts at once, before all messages are reduced."""

    reads_own_rows: ClassVar[bool] = False

    def propagate(self, call: Call) -> Pytree:
        """See `jaxgraph.parallel.relation.Relation.propagate`."""
        return _propagate(call, self.all_rows(call.relation, call.inputs.sender))

    def propagate_all(self, calls: Any) -> list[Pytree]:
        """See `Exchange.propagate_all`; an array that several relations send is sent once."""
        arrived: dict[int, jax.Array] = {}

        def all_rows(relation: Any, leaf: jax.Array) -> jax.Array:
            if id(leaf) not in arrived:
                arrived[id(leaf)] = self.all_rows(relation, leaf)
            return arrived[id(leaf)]

        found = []
        for each in calls:
            rows = jax.tree.map(partial(all_rows, each.relation), each.inputs.sender)
            found.append(_propagate(each, rows))
        return found

    def pull_sum(self, call: Call, gradient: Pytree, wanted: Wanted) -> Inputs:
        """See `jaxgraph.parallel.relation.Relation.pull_sum`."""
        exchange, inputs = partial(self.all_rows, call.relation), call.inputs
        rows = forward_of(exchange, inputs.sender)
        block, among_all = call.relation.block(), dataclasses.replace(inputs, sender=rows)
        found = block.pull_sum(call.message, call.reducer, among_all, gradient, wanted)
        if not wanted.sender:
            unread = [jnp.zeros_like(leaf) for leaf in floating_leaves(inputs.sender)]
            return dataclasses.replace(found, sender=unread)
        pairs = zip(found.sender, floating_leaves(rows), strict=True)
        rounded = [leaf.astype(like.dtype) for leaf, like in pairs]
        back = jax.vjp(exchange, floating_leaves(inputs.sender))[1]
        return dataclasses.replace(found, sender=back(rounded)[0])

    def all_rows(self, relation: Any, tree: Pytree) -> Pytree:
        """The own rows followed by all halos, with equally many rows per part.

        Differentiable; the gradient of a halo row travels back and is added to its owner's row.
        """
        by, size = relation.implementation, self.halo_unit * max(map(max, self.halo_units))

        def with_halos(leaf: jax.Array) -> jax.Array:
            return _all_rows(self.axis, size, by, self.send, match_variation(leaf, self.send))

        with jax.named_scope("domain_exchange"):
            return jax.tree.map(with_halos, tree)


def _propagate(call: Call, rows: Pytree) -> Pytree:
    """Reduces the messages of a call whose senders' rows are all here."""
    block, inputs = call.relation.block(), dataclasses.replace(call.inputs, sender=rows)
    return block.propagate(call.message, call.reducer, inputs, self_loops=call.self_loops)


def _steps(axis: str | tuple[str, ...], table: HaloTable) -> jax.Array:
    """int32 [parts], from the own part to each."""
    parts = table.ptr.shape[0]
    return (jnp.arange(parts) - lax.axis_index(axis)) % parts


@partial(custom_vjp, nondiff_argnums=(0, 1, 2))
def _all_rows(
    axis: str | tuple[str, ...], size: int, by: str, table: HaloTable, leaf: jax.Array
) -> jax.Array:
    starts = table.ptr[jnp.maximum(_steps(axis, table) - 1, 0)]
    rows = table.rows[starts[:, None] + jnp.arange(size)[None]]
    sent = chosen_rows(leaf, rows.reshape(-1), by).reshape(*rows.shape, *leaf.shape[1:])
    halos = lax.all_to_all(sent, axis, split_axis=0, concat_axis=0)
    # Part by part, so that XLA concatenates own and received rows at once.
    return jnp.concatenate([leaf, *halos])


def _all_rows_forward(axis, size, by, table, leaf):
    rows = checkpoint_name(_all_rows.value(axis, size, by, table, leaf), HALOS)
    return rows, (table, jnp.zeros((leaf.shape[0], 0), leaf.dtype))


def _all_rows_backward(axis, size, by, residuals, gradient):
    table, like = residuals
    rows, parts = like.shape[0], table.ptr.shape[0]
    halos = gradient[rows:].reshape(parts, size, *gradient.shape[1:])
    returned = lax.all_to_all(halos, axis, split_axis=0, concat_axis=0)
    steps = _steps(axis, table)

    def add(part: jax.Array, total: jax.Array) -> jax.Array:
        position = table.position[jnp.maximum(steps[part] - 1, 0)]
        position = jnp.where(steps[part] > 0, position, -1)
        return _add_rows_at(total, returned[part], position)

    return None, lax.fori_loop(0, parts, add, gradient[:rows])


_all_rows.defvjp(_all_rows_forward, _all_rows_backward)


def _add_rows_at(total: jax.Array, rows: jax.Array, position: jax.Array) -> jax.Array:
    found = rows.at[jnp.maximum(position, 0)].get(mode="promise_in_bounds")
    has = (position >= 0).reshape(-1, *(1,) * (rows.ndim - 1))
    head = total[: position.shape[0]] + jnp.where(has, found, 0)
    return with_rows_from(total, 0, head)
