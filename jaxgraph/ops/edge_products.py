"""Dot products of sender and receiver along edges: sampled dense-dense matrix multiplication."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxgraph.ops.arguments import (
    check_block,
    check_no_added_loops,
    check_rows,
    check_same_axes,
)
from jaxgraph.ops.blocks import Block, pull_block
from jaxgraph.ops.dispatch import call
from jaxgraph.ops.edge_maps import map_edges
from jaxgraph.ops.edges import EdgeGroup, match_variation
from jaxgraph.ops.implementations import implementations_of
from jaxgraph.ops.kernels import find_calls
from jaxgraph.ops.message_functions import weighted_message
from jaxgraph.ops.messages import Inputs, Wanted
from jaxgraph.ops.precision import to_accumulation
from jaxgraph.ops.propagation import propagate_block
from jaxgraph.ops.reducers import Sum
from jaxgraph.ops.self_check import check_sddmm

__all__ = ["SDDMM", "sddmm"]


def sddmm(
    block: Block, sender: jax.Array, receiver: jax.Array, *, implementation: str | None = None
) -> jax.Array:
    """Multiplies the two ends of every edge.

    y_e = <s_j, r_i>  for e: j -> i

    Differentiable by both: ds_j = sum_{e: j -> i} g_e r_i and dr_i = sum_{e: j -> i} g_e s_j, each
    an `aggregate` with weights.

    Args:
      block: the edges.
      sender: [sender rows, features] or [sender rows, heads, features], floating.
      receiver: [receiver rows, ...], of the same axes behind the first.
      implementation: "mosaic_gpu", "cpu" or "xla"; None takes the first that can.

    Returns:
      [slots] or [slots, heads], as `weight` of `aggregate` and `logits` of `edge_softmax`; 0 in
      slots without an edge.

    Raises:
      ValueError: an array has the wrong shape or type, the block adds self-loops (which have no
        slot), or a name is unknown.
      NotImplementedError: the implementation named cannot compute this.

    References:
      Wang et al., "Deep Graph Library", 2019, section 3.1 (generalised SDDMM).
    """
    check_block(block)
    axes = "features" if len(jnp.shape(sender)) == 2 else "heads, features"
    check_rows(block, "sender", "sender", sender, axes)
    check_rows(block, "receiver", "receiver", receiver, axes)
    check_same_axes("sender", sender, "receiver", receiver)
    check_no_added_loops(block, "the result")
    return call(SDDMM, implementation, block, sender, receiver)


@jax.jit
def _multiply(block: Block, sender: jax.Array, receiver: jax.Array) -> jax.Array:
    dtype = jnp.result_type(sender, receiver)
    calls = find_calls(block.edges)
    if calls is not None and dtype not in calls.types:
        raise NotImplementedError(
            f"no kernel of {block.edges.implementation!r} multiplies {sender.dtype} by "
            f"{receiver.dtype}; it multiplies numbers of {', '.join(map(str, calls.types))}"
        )
    return _products(block, *match_variation((sender, receiver), (block, sender, receiver)))


def _product(params: tuple, sender: jax.Array, receiver: jax.Array, edge: tuple) -> jax.Array:
    products = to_accumulation(sender) * to_accumulation(receiver)
    return jnp.sum(products, -1).astype(jnp.result_type(sender, receiver))


@jax.custom_vjp
def _products(block: Block, sender: jax.Array, receiver: jax.Array) -> jax.Array:
    calls = find_calls(block.edges)
    if calls is not None:
        heads = sender.shape[1:-1]
        over = EdgeGroup(block.edges, 0)
        products = calls.edge_products(over, receiver, sender, heads=math.prod(heads))
        return products.reshape(-1, *heads)
    return map_edges(block, _product, Inputs((), sender, receiver, ()))


def _forward(block, sender, receiver):
    return _products(block, sender, receiver), (block, sender, receiver)


def _backward(residuals, gradient):
    block, sender, receiver = residuals
    inputs = Inputs((), sender.astype(gradient.dtype), (), gradient)
    by_receiver = propagate_block(block, weighted_message, Sum(receiver.dtype), inputs)
    wanted = Wanted(params=False, sender=True, receiver=False, edge=False)
    transposed = pull_block(block, weighted_message, Sum(), inputs, receiver, wanted)
    by_sender = transposed.sender[0].astype(sender.dtype)
    return None, by_sender, by_receiver


_products.defvjp(_forward, _backward)

SDDMM = implementations_of("sddmm", _multiply, check_sddmm)
