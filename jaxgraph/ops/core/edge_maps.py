"""Values per edge, computed a chunk of edges at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxgraph.ops.core.blocks import Block
from jaxgraph.ops.core.edges import EdgeChunk, match_variation, visit_slots
from jaxgraph.ops.core.messages import (
    Inputs,
    at_edges,
    evaluate_message,
    message_shapes,
)
from jaxgraph.ops.core.rows import with_rows_from

__all__ = ["map_edges"]

Pytree = Any


def map_edges(
    block: Block, function: Callable[[Pytree, Pytree, Pytree, Pytree], Pytree], inputs: Inputs
) -> Pytree:
    """y_e = function(params, sender_j, receiver_i, x_e) for every edge e: j -> i of a block.

    Edges are taken in the order of their slots, so that nothing is scattered. Not differentiable:
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

    def visit(chunk: EdgeChunk, first: jax.Array, written: Pytree) -> Pytree:
        values = evaluate_message(function, at_edges(inputs, chunk))

        def write(leaf: jax.Array, new: jax.Array) -> jax.Array:
            # Lanes behind the last edge fall on slots that stay 0.
            mask = chunk.mask.reshape(-1, *(1,) * (new.ndim - 1))
            return with_rows_from(leaf, first, jnp.where(mask, new, 0))

        return jax.tree.map(write, written, values)

    return visit_slots(edges, 0, visit, match_variation(empty, (edges, inputs)))
