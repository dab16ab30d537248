"""Arrays of all parts that a device owns, and those of one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.rows import rows_from

if TYPE_CHECKING:
    from jaxgraph.parallel.shard import Shard

__all__ = ["inputs_of_part", "joined", "of_part"]

Pytree = Any


def of_part(shard: Shard, tree: Pytree, index: jax.Array) -> Pytree:
    """Returns the rows or slots of one of the own parts.

    Args:
      shard: of several parts.
      tree: arrays [rows or slots of all own parts, ...].
      index: which part.

    Returns:
      Arrays [rows or slots of the part, ...].
    """

    def some(leaf: jax.Array) -> jax.Array:
        size = leaf.shape[0] // shard.own_parts
        return rows_from(leaf, index * size, size)

    return jax.tree.map(some, tree)


def inputs_of_part(shard: Shard, inputs: Inputs, index: jax.Array) -> Inputs:
    """The inputs of the messages that one part receives; senders are those of all own parts."""
    receiver, edge = of_part(shard, (inputs.receiver, inputs.edge), index)
    return Inputs(inputs.params, inputs.sender, receiver, edge)


def joined(tree: Pytree) -> Pytree:
    """Arrays [own parts, rows, ...] as [own parts * rows, ...]."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)
