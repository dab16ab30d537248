"""Reorders data from the given order of edges to that of their slots, and back."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgraph.ops.core.rows import take_rows


class InEdgeOrder:
    """A neighbourhood that knows the given edge of each slot.

    Attributes:
      edge_of_slot: int32 [slots], the given edge of each slot; 0 in empty slots.
      slot_of_edge: int32 [edges], its inverse.
    """

    edge_of_slot: jax.Array
    slot_of_edge: jax.Array

    def by_slot(self, values: Any, name: str = "values") -> jax.Array:
        """Data of the edges in the order of slots, which `propagate` takes."""
        values, count = jnp.asarray(values), self.slot_of_edge.shape[0]
        if values.shape[:1] != (count,):
            raise ValueError(
                f"{name} has shape {values.shape}; expected one row for each of {count} edges"
            )
        if not count:
            return jnp.zeros((*self.edge_of_slot.shape, *values.shape[1:]), values.dtype)
        return take_rows(values, self.edge_of_slot)

    def by_edge(self, slots: Any) -> jax.Array:
        """Values [slots, ...] in the order in which the edges were given, [edges, ...]."""
        slots, count = jnp.asarray(slots), self.edge_of_slot.shape[0]
        if slots.shape[:1] != (count,):
            raise ValueError(
                f"slots has shape {slots.shape}; expected one row for each of {count} slots, as "
                "by_slot and edge_messages return them"
            )
        return take_rows(slots, self.slot_of_edge)


def edge_order(edge_of_slot: np.ndarray, slots: int, edges: int) -> tuple[np.ndarray, np.ndarray]:
    """The arrays of `InEdgeOrder` with room for so many, from the edges of the first slots."""
    slot_of_edge = np.zeros(edges, np.int32)
    slot_of_edge[edge_of_slot] = np.arange(len(edge_of_slot), dtype=np.int32)
    return np.pad(edge_of_slot.astype(np.int32), (0, slots - len(edge_of_slot))), slot_of_edge
