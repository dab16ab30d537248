"""The fold over parts whose halos are given: nothing is sent."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.rows import rows_from, with_rows_from
from jaxgraph.parallel.exchange import Exchange, resized
from jaxgraph.parallel.relation import Relation
from jaxgraph.parallel.schedules.sar import Ring
from jaxgraph.parallel.schedules.sequential import Sequential
from pallas_kernels.pytrees import pytree

Pytree = Any


@pytree
class Given(Exchange):
    """The exchange of a part in mode "sar" that is alone on a device: nothing is sent."""

    @classmethod
    def of(cls, ring: Ring) -> Given:
        """The exchange of a part of a ring."""
        fields = {each.name: getattr(ring, each.name) for each in dataclasses.fields(ring)}
        return cls(**fields | {"send": None, "prefetch": False, "hosts": 1})

    def schedule(self, relation: Relation, self_loops: bool) -> GivenHalos:
        """See `Exchange.schedule`."""
        return GivenHalos(relation, self_loops)


@pytree
class GivenHalos(Sequential):
    """The messages of one part of a graph in mode "sar", alone on a device.

    The rows of the senders are the own rows, then those of each other part, step after step on the
    ring, equally many each. The backward reads them again.
    """

    visits_senders: ClassVar[bool] = False

    def own(self, sender: Pytree) -> Pytree:
        """The own rows among the senders' rows."""
        return jax.tree.map(lambda leaf: leaf[: self.relation.receiver_rows], sender)

    def fetch(self, sender: Pytree, step: jax.Array | int, after: jax.Array | None) -> Pytree:
        """The rows of the part that is `step` steps back on the ring, [halo rows, ...]."""
        size, start = self.exchange.halo_route().rows, self._start(step)
        return jax.tree.map(lambda leaf: rows_from(leaf, start, size), sender)

    def reply(self, step: jax.Array | int, answer: Pytree) -> Pytree:
        """The gradient of the rows that were fetched stays here."""
        return answer

    def settle(self, step: jax.Array | int, returned: Pytree, totals: list[jax.Array]) -> Any:
        """Writes the gradient to the rows that were fetched."""
        size, start = self.exchange.halo_route().rows, self._start(step)
        return [
            with_rows_from(total, start, resized(rows, size).astype(total.dtype))
            for total, rows in zip(totals, returned, strict=True)
        ]

    def local_gradients(self, grads: Inputs) -> Inputs:
        """Gradients of the own rows, with room for those of other parts after them."""
        room = (self.exchange.num_parts - 1) * self.exchange.halo_route().rows
        pad = lambda leaf: jnp.pad(leaf, ((0, room), *((0, 0),) * (leaf.ndim - 1)))  # noqa: E731
        return dataclasses.replace(grads, sender=[pad(leaf) for leaf in grads.sender])

    def _start(self, step: jax.Array | int) -> jax.Array:
        return jnp.int32(self.relation.receiver_rows + (step - 1) * self.exchange.halo_route().rows)
