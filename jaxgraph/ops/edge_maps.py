"""Values per edge, computed a chunk of edges at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxgraph.ops.blocks import Block
from jaxgraph.ops.edges import EdgeChunk, for_each_chunk, match_variation, to_slot_order
from jaxgraph.ops.messages import (
    Inputs,
    at_edges,
    evaluate_message,
    message_shapes,
)

__all__ = ["map_edges"]

Pytree = Any


def map_edges(
    block: Block, function: Callable[[Pytree, Pytree, Pytree, Pytree], Pytree], inputs: Inputs
) -> Pytree:
    """y_e = function(params, sender_j, receiver_i, x_e) for every edge e: j -> i of a block.

    The values of a chunk are written one behind the other, in the order of the walk by receiver,
    and all are brought to slot order at the end, so that nothing is scattered. Not differentiable:
    ops define the derivative.

    Args:
      block: the edges.
      function: evaluated on chunks of edges, like a message.
      inputs: what it is computed from.

    Returns:
      Pytree of arrays [slots, ...], 0 in slots that hold no edge of the block.
    """
    edges, slots = block.edges, block.edge_slots
    shapes = message_shapes(function, inputs, edges.chunk)
    empty = jax.tree.map(lambda leaf: jnp.zeros((slots, *leaf.shape[1:]), leaf.dtype), shapes)

    def body(chunk: EdgeChunk, first: jax.Array, written: Pytree) -> Pytree:
        values = evaluate_message(function, at_edges(inputs, chunk))

        def write(leaf: jax.Array, new: jax.Array) -> jax.Array:
            mask = chunk.mask.reshape(-1, *(1,) * (new.ndim - 1))
            old = lax.dynamic_slice_in_dim(leaf, chunk.first_place, edges.chunk, 0)
            new = jnp.where(mask, new, old)
            return lax.dynamic_update_slice_in_dim(leaf, new, chunk.first_place, 0)

        return jax.tree.map(write, written, values)

    start = match_variation(empty, (edges, inputs))
    return to_slot_order(edges, for_each_chunk(edges, "receiver", 0, body, start))
