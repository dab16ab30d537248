"""Sequential aggregation where a device owns several parts.

Devices take their own parts one after the other, the i-th of each at the same time, and fetch for
it the parts of the ring one by one. So no more than one part of another device is resident, however
few devices there are: the more parts, the less memory.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxgraph.ops.core.block_gradients import add_at
from jaxgraph.ops.core.edges import match_variation
from jaxgraph.ops.core.messages import Inputs, MessageFn, Wanted
from jaxgraph.ops.core.propagation import propagate_by
from jaxgraph.ops.core.reducers import Reducer
from jaxgraph.ops.core.rows import entry_at, rows_from, with_rows_from
from jaxgraph.parallel.exchange import send_rows, several_route
from jaxgraph.parallel.own_parts import inputs_of_part, joined, of_part
from jaxgraph.parallel.schedules.sar import Sequential
from pallas_kernels.pytrees import pytree

if TYPE_CHECKING:
    from jaxgraph.parallel.shard import HaloTable, Shard

__all__ = ["SeveralParts"]

Pytree = Any


@pytree
class _PartOfSeveral(Sequential):
    """The messages of one own part; senders are the rows of all own parts.

    Attributes:
      whole: the shard that it is a part of.
      index: int32 [], which part.
    """

    whole: Shard
    index: jax.Array

    def own(self, sender: Pytree) -> Pytree:
        """The rows of the part."""
        rows = self.shard.num_rows
        return jax.tree.map(lambda leaf: rows_from(leaf, self.index * rows, rows), sender)

    def fetch(self, sender: Pytree, step: jax.Array | int, after: jax.Array | None) -> Pytree:
        """The rows of the part that is `step` behind on the ring, [halo rows, ...]."""
        other = self._other(step)
        table = jax.tree.map(lambda leaf: entry_at(leaf, other), self.whole.send)
        table = dataclasses.replace(table, rows=table.rows + other * self.shard.num_rows)
        route = several_route(self.whole)
        return send_rows(self.shard, route, table, sender, step, after, hop=self._hop(step))

    def reply(self, step: jax.Array | int, answer: Pytree) -> Pytree:
        """Sends the gradient of rows that were fetched, and returns what came of the own ones."""
        route = several_route(self.whole).answers()
        return send_rows(self.shard, route, None, answer, step, hop=self._hop(step))

    def settle(self, step: jax.Array | int, returned: Pytree, totals: list[jax.Array]) -> Any:
        """Takes it into the gradients of the part whose rows they are."""
        other = self._other(step)
        send: HaloTable | None = self.whole.send
        assert send is not None
        position = entry_at(entry_at(send.position, other), step - 1)
        first, size = other * self.shard.num_rows, position.shape[0]
        heads = [rows_from(total, first, size) for total in totals]
        heads = add_at(heads, returned, position)
        return [with_rows_from(t, first, head) for t, head in zip(totals, heads, strict=True)]

    def local_gradients(self, grads: Inputs) -> Inputs:
        """Gradients of the rows of the part, among zeros for all others."""
        first = self.index * self.shard.num_rows

        def among_zeros(leaf: jax.Array) -> jax.Array:
            shape = (self.whole.num_rows, *leaf.shape[1:])
            zeros = match_variation(jnp.zeros(shape, leaf.dtype), leaf)
            return with_rows_from(zeros, first, leaf)

        return dataclasses.replace(grads, sender=[among_zeros(leaf) for leaf in grads.sender])

    def plan(self, *task: Any) -> str:
        """Never at the sender: edges that leave for other own parts would be visited apart."""
        plan = super().plan(*task)
        return "refetch" if plan == "at-sender" else plan

    def _other(self, step: jax.Array | int) -> jax.Array:
        """Which of its parts each device sends rows of."""
        return ((self.index - step) % self.whole.own_parts).astype(jnp.int32)

    def _hop(self, step: jax.Array | int) -> jax.Array:
        return self.index * (self.shard.num_parts - 1) + step


@pytree
class SeveralParts:
    """The messages of a shard of several parts, in mode "sar".

    Attributes:
      shard: the shard.
      self_loops: whether nodes without an edge to themselves send themselves a message.
    """

    shard: Shard
    self_loops: bool = dataclasses.field(metadata={"static": True})

    @property
    def implementation(self) -> str:
        """Which kernels reduce the messages."""
        return self.shard.implementation

    def propagate(self, message: MessageFn, reducer: Reducer, inputs: Inputs) -> Pytree:
        """See `jaxgraph.parallel.shard.Shard.propagate`."""
        return propagate_by(self, message, reducer, inputs)

    def reduce(self, message: MessageFn, reducer: Reducer, inputs: Inputs) -> tuple[Pytree, Pytree]:
        """See `jaxgraph.ops.core.propagation.Schedule`."""

        def reduce(index: jax.Array) -> tuple[Pytree, Pytree]:
            return self._part(index).reduce(
                message, reducer, inputs_of_part(self.shard, inputs, index)
            )

        return joined(lax.map(reduce, jnp.arange(self.shard.own_parts)))

    def pull(
        self,
        message: MessageFn,
        reducer: Reducer,
        inputs: Inputs,
        results: tuple[Pytree, Pytree],
        gradient: Pytree,
        wanted: Wanted,
    ) -> Inputs:
        """See `jaxgraph.ops.core.propagation.Schedule`."""
        wanted = dataclasses.replace(wanted, over_inputs=False)

        def pull(index: jax.Array) -> Inputs:
            own_results, own_gradient = of_part(self.shard, (results, gradient), index)
            part, own = self._part(index), inputs_of_part(self.shard, inputs, index)
            return part.pull(message, reducer, own, own_results, own_gradient, wanted)

        def step(total: Pytree, index: jax.Array) -> tuple[Pytree, Pytree]:
            grads = pull(index)
            total = jax.tree.map(jnp.add, total, (grads.params, grads.sender))
            return total, (grads.receiver, grads.edge)

        first = pull(jnp.int32(0))
        total, others = lax.scan(
            step, (first.params, first.sender), jnp.arange(1, self.shard.own_parts)
        )
        first_others = (first.receiver, first.edge)
        all_parts = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first_others, others)
        return Inputs(*total, *joined(all_parts))

    def _part(self, index: jax.Array) -> _PartOfSeveral:
        return _PartOfSeveral(self.shard.part(index), self.self_loops, self.shard, index)
