"""The fold over parts whose halos are given: nothing is sent."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.rows import rows_from, with_rows_from
from jaxgraph.parallel.exchange import halo_route, resized
from jaxgraph.parallel.schedules.sar import Sequential
from pallas_kernels.pytrees import pytree

Pytree = Any


@pytree
class GivenHalos(Sequential):
    """The messages of one part of a graph in mode "sar", alone on a device.

    The rows of the senders are the own rows, then those of each other part, step after step on the
    ring, `halo_route(shard).rows` each. The backward reads them again.
    """

    visits_senders: ClassVar[bool] = False

    def own(self, sender: Pytree) -> Pytree:
        """The own rows among the senders' rows."""
        return jax.tree.map(lambda leaf: leaf[: self.shard.num_rows], sender)

    def fetch(self, sender: Pytree, step: jax.Array | int, after: jax.Array | None) -> Pytree:
        """The rows of the part that is `step` steps back on the ring, [halo rows, ...]."""
        size, start = halo_route(self.shard).rows, self._start(step)
        return jax.tree.map(lambda leaf: rows_from(leaf, start, size), sender)

    def reply(self, step: jax.Array | int, answer: Pytree) -> Pytree:
        """The gradient of the rows that were fetched stays here."""
        return answer

    def settle(self, step: jax.Array | int, returned: Pytree, totals: list[jax.Array]) -> Any:
        """Writes the gradient to the rows that were fetched."""
        size, start = halo_route(self.shard).rows, self._start(step)
        return [
            with_rows_from(total, start, resized(rows, size).astype(total.dtype))
            for total, rows in zip(totals, returned, strict=True)
        ]

    def local_gradients(self, grads: Inputs) -> Inputs:
        """Gradients of the own rows, with room for those of other parts after them."""
        room = (self.shard.num_parts - 1) * halo_route(self.shard).rows
        pad = lambda leaf: jnp.pad(leaf, ((0, room), *((0, 0),) * (leaf.ndim - 1)))  # noqa: E731
        return dataclasses.replace(grads, sender=[pad(leaf) for leaf in grads.sender])

    def _start(self, step: jax.Array | int) -> jax.Array:
        return jnp.int32(self.shard.num_rows + (step - 1) * halo_route(self.shard).rows)
