"""Softmax over the edges that enter a node."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxgraph.ops.arguments import check_block, check_no_added_loops, check_slots
from jaxgraph.ops.core.blocks import Block, fold_block
from jaxgraph.ops.core.derivatives import custom_vjp, with_portable_tangents
from jaxgraph.ops.core.edge_maps import map_edges
from jaxgraph.ops.core.edges import match_variation
from jaxgraph.ops.core.messages import Inputs, finish_messages
from jaxgraph.ops.core.precision import to_accumulation
from jaxgraph.ops.core.propagation import OneBlock, reduce_once
from jaxgraph.ops.core.reducers import Softmax, Sum
from jaxgraph.ops.dispatch import Implementation, by_preference
from jaxgraph.ops.implementations import call_on_block
from jaxgraph.ops.self_check import check_edge_softmax

__all__ = ["EDGE_SOFTMAX", "edge_softmax"]


def edge_softmax(
    block: Block, logits: jax.Array, *, implementation: str | None = None
) -> jax.Array:
    """Normalises numbers per edge over the edges that enter each receiver.

    alpha_e = exp(l_e) / sum_{f -> i} exp(l_f)  for e -> i

    Computed with a running maximum. Differentiable:
    dl_e = alpha_e (g_e - sum_{f -> i} alpha_f g_f). Where the coefficients only weight a sum, use
    `gat_attention` or `gatv2_attention`, which never write them to memory.

    Args:
      block: the edges.
      logits: [slots, heads], floating; -inf takes an edge out.
      implementation: "mosaic_gpu", "cpu" or "xla"; None takes the one that the graph was
        placed for, or the next that can.

    Returns:
      [slots, heads]; 0 in slots without an edge and where all edges of a receiver are at -inf.

    Raises:
      ValueError: logits have the wrong shape or type, the block adds self-loops (which have no
        slot), or a name is unknown.
      NotImplementedError: the implementation named cannot compute this.

    References:
      Velickovic et al., "Graph attention networks", 2018, equation 2; Milakov and Gimelshein,
      "Online normalizer calculation for softmax", 2018.
    """
    check_block(block)
    heads = jnp.shape(logits)[1:2] or (1,)
    check_slots(block, "logits", logits, (heads,))
    check_no_added_loops(block, "logits")
    return call_on_block(EDGE_SOFTMAX, implementation, block, logits)


@jax.jit
def _portable(block: Block, logits: jax.Array) -> jax.Array:
    return _normalize(block, match_variation(logits, (block, logits)))


def _without_values(params: tuple, sender: tuple, receiver: tuple, logits: jax.Array) -> tuple:
    return logits, logits[..., None][..., :0]


def _coefficient(params: tuple, sender: tuple, receiver: tuple, logits: jax.Array) -> jax.Array:
    peak, total = receiver
    return (jnp.exp(to_accumulation(logits) - peak) / total).astype(logits.dtype)


def _weighted_gradient(params: tuple, sender: tuple, receiver: tuple, edge: tuple) -> jax.Array:
    alpha, gradient = edge
    return to_accumulation(alpha) * to_accumulation(gradient)


def _logit_gradient(params: tuple, sender: tuple, inner: jax.Array, edge: tuple) -> jax.Array:
    alpha, gradient = edge
    centered = to_accumulation(gradient) - inner
    return (to_accumulation(alpha) * centered).astype(alpha.dtype)


def _coefficients(block: Block, logits: jax.Array) -> jax.Array:
    reducer, inputs = Softmax(heads=logits.shape[1]), Inputs((), (), (), logits)
    state = fold_block(block, _without_values, reducer, inputs)
    _, normalizer = finish_messages(_without_values, reducer, inputs, block.edges.chunk, state)
    return map_edges(block, _coefficient, Inputs((), (), normalizer, logits))


_by_kernels = with_portable_tangents(_coefficients)


@custom_vjp
def _normalize(block: Block, logits: jax.Array) -> jax.Array:
    return _by_kernels(block, logits)


def _forward(block, logits):
    alpha = _by_kernels(block, logits)
    return alpha, (block, alpha)


def _backward(residuals, gradient):
    block, alpha = residuals
    edge = (alpha, gradient)
    inner = reduce_once(OneBlock(block), _weighted_gradient, Sum(), Inputs((), (), (), edge))
    return None, map_edges(block, _logit_gradient, Inputs((), (), inner, edge))


_normalize.defvjp(_forward, _backward)

EDGE_SOFTMAX = by_preference(Implementation("edge_softmax", "xla", _portable, check_edge_softmax))
