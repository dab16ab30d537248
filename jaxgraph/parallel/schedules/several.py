"""Sequential aggregation where a device owns several parts.

Devices take their own parts one after the other, the i-th of each at the same time, and fetch for
it the parts of the ring one by one. A row that several parts of a device need travels to each of
them: one part per device sends less.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from jaxgraph.ops.core.edges import match_variation
from jaxgraph.ops.core.messages import Inputs, MessageFn, Wanted, zero_totals
from jaxgraph.ops.core.propagation import propagate_by, pull_once
from jaxgraph.ops.core.reducers import Reducer
from jaxgraph.ops.core.rows import entry_at, rows_from, with_rows_from
from jaxgraph.ops.core.running import add_at
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

    Its backward never visits edges at their sender: those to other own parts would be separate.

    Attributes:
      whole: the shard that it is a part of.
      index: int32 [], which part.
      totals: gradients of the rows of all own parts so far, for `pull`.
    """

    whole: Shard
    index: jax.Array
    totals: list[jax.Array] | None = None
    visits_senders: ClassVar[bool] = False

    def own(self, sender: Pytree) -> Pytree:
        """The rows of the part."""
        rows = self.shard.num_rows
        return jax.tree.map(lambda leaf: rows_from(leaf, self.index * rows, rows), sender)

    def fetch(self, sender: Pytree, step: jax.Array | int, after: jax.Array | None) -> Pytree:
        """The rows of the part behind at this step, [halo rows, ...]."""
        other = self._other(step)
        table = jax.tree.map(lambda leaf: entry_at(leaf, other), self.whole.send)
        table = dataclasses.replace(table, rows=table.rows + other * self.shard.num_rows)
        route = several_route(self.whole)
        place = self.leaving(step)
        return send_rows(self.shard, route, table, sender, place, after, hop=self._hop(step))

    def reply(self, step: jax.Array | int, answer: Pytree) -> Pytree:
        """Sends the gradient of fetched rows, and returns the received one of own rows."""
        route = several_route(self.whole).answers()
        return send_rows(self.shard, route, None, answer, step, hop=self._hop(step))

    def settle(self, step: jax.Array | int, returned: Pytree, totals: list[jax.Array]) -> Any:
        """Adds the returned rows to the gradients of their part."""
        other = self._other(step)
        send: HaloTable | None = self.whole.send
        assert send is not None
        position = entry_at(entry_at(send.position, other), self.leaving(step) - 1)
        first, size = other * self.shard.num_rows, position.shape[0]
        heads = [rows_from(total, first, size) for total in totals]
        heads = add_at(heads, returned, position)
        return [with_rows_from(t, first, head) for t, head in zip(totals, heads, strict=True)]

    def local_gradients(self, grads: Inputs) -> Inputs:
        """Gradients of the rows of the part, added to those of all own parts so far."""
        assert self.totals is not None
        first, rows = self.index * self.shard.num_rows, self.shard.num_rows

        def added(total: jax.Array, leaf: jax.Array) -> jax.Array:
            new = rows_from(total, first, rows) + leaf.astype(total.dtype)
            return with_rows_from(total, first, new)

        pairs = zip(self.totals, grads.sender, strict=True)
        return dataclasses.replace(grads, sender=[added(*pair) for pair in pairs])

    def receiving(self) -> jax.Array:
        """The part that receives messages, int32 []."""
        return super().receiving() * self.whole.own_parts + self.index

    def sending(self, step: jax.Array | int) -> jax.Array:
        """The own part whose rows leave at a step, int32 []."""
        return super().receiving() * self.whole.own_parts + self._other(step)

    def _other(self, step: jax.Array | int) -> jax.Array:
        """The index of the own part whose rows each device sends at this step."""
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
        """The implementation that reduces the messages."""
        return self.shard.implementation

    def propagate(self, message: MessageFn, reducer: Reducer, inputs: Inputs) -> Pytree:
        """See `jaxgraph.parallel.shard.Shard.propagate`."""
        return propagate_by(self, message, reducer, inputs)

    def pull_sum(
        self, message: MessageFn, reducer: Reducer, inputs: Inputs, gradient: Pytree, wanted: Wanted
    ) -> Inputs:
        """See `jaxgraph.parallel.shard.Shard.pull_sum`."""
        return pull_once(self, message, reducer, inputs, gradient, wanted)

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

        def step(total: Pytree, index: jax.Array) -> tuple[Pytree, Pytree]:
            params, sender = total
            own_results, own_gradient = of_part(self.shard, (results, gradient), index)
            part = dataclasses.replace(self._part(index), totals=sender)
            own = inputs_of_part(self.shard, inputs, index)
            grads = part.pull(message, reducer, own, own_results, own_gradient, wanted)
            params = [a + b.astype(a.dtype) for a, b in zip(params, grads.params, strict=True)]
            return (params, grads.sender), (grads.receiver, grads.edge)

        zeros = (zero_totals(inputs.params), zero_totals(inputs.sender))
        zeros = match_variation(zeros, (self.shard, inputs, gradient))
        total, others = lax.scan(step, zeros, jnp.arange(self.shard.own_parts))
        return Inputs(*total, *joined(others))

    def _part(self, index: jax.Array) -> _PartOfSeveral:
        return _PartOfSeveral(self.shard.part(index), self.self_loops, self.shard, index)
