"""Products or sums of sender and receiver along edges: sampled dense-dense matrix multiplication.

"mosaic_gpu" computes both; "cpu" has products alone, and leaves sums to "xla".
"""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp

from jaxgraph.ops.arguments import (
    check_block,
    check_no_added_loops,
    check_rows,
    check_same_axes,
)
from jaxgraph.ops.core.blocks import Block
from jaxgraph.ops.core.derivatives import custom_vjp, with_portable_tangents
from jaxgraph.ops.core.edge_maps import map_edges
from jaxgraph.ops.core.edges import EdgeGroup, match_variation
from jaxgraph.ops.core.kernels import find_calls
from jaxgraph.ops.core.message_functions import weighted_message
from jaxgraph.ops.core.messages import Inputs, Wanted
from jaxgraph.ops.core.precision import to_accumulation
from jaxgraph.ops.core.propagation import OneBlock, pull_once, reduce_once
from jaxgraph.ops.core.reducers import Sum
from jaxgraph.ops.dispatch import check_name
from jaxgraph.ops.implementations import call_on_block, implementations_of
from jaxgraph.ops.self_check import check_sddmm

__all__ = ["SDDMM", "sddmm"]


OPERATIONS = ("dot", "add")


def sddmm(
    block: Block,
    sender: jax.Array,
    receiver: jax.Array,
    op: str = "dot",
    *,
    implementation: str | None = None,
) -> jax.Array:
    """Multiplies, or adds, the two ends of every edge.

    y_e = <s_j, r_i>  or  y_e = s_j + r_i  for e: j -> i

    Differentiable by both. Of products, ds_j = sum_{e: j -> i} g_e r_i and
    dr_i = sum_{e: j -> i} g_e s_j, each an `aggregate` with weights; of sums,
    ds_j = sum_{e: j -> i} g_e and dr_i = sum_{e: j -> i} g_e.

    Args:
      block: the edges.
      sender: [sender rows, features] or [sender rows, heads, features], floating.
      receiver: [receiver rows, ...], of the same axes behind the first.
      op: "dot" or "add".
      implementation: "mosaic_gpu", "cpu" or "xla"; None takes the one that the graph was
        placed for, or the next that can.

    Returns:
      Products [slots] or [slots, heads], as `weight` of `aggregate` and `logits` of `edge_softmax`,
      or sums [slots, ...], of the axes of `sender`; 0 in slots without an edge.

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
    check_name("op", op, OPERATIONS)
    return call_on_block(SDDMM, implementation, block, sender, receiver, op)


@partial(jax.jit, static_argnames="op")
def _combine(block: Block, sender: jax.Array, receiver: jax.Array, op: str) -> jax.Array:
    dtype = jnp.result_type(sender, receiver)
    calls = find_calls(block.edges)
    if calls is not None and dtype not in calls.types:
        raise NotImplementedError(
            f"no kernel of {block.edges.implementation!r} takes {sender.dtype} and "
            f"{receiver.dtype}; it takes numbers of {', '.join(map(str, calls.types))}"
        )
    if calls is not None and op == "add" and calls.edge_sums is None:
        raise NotImplementedError(f"no kernel of {block.edges.implementation!r} adds both ends")
    ends = match_variation((sender, receiver), (block, sender, receiver))
    return _products(block, *ends) if op == "dot" else _sums(block, *ends)


def _product(params: tuple, sender: jax.Array, receiver: jax.Array, edge: tuple) -> jax.Array:
    products = to_accumulation(sender) * to_accumulation(receiver)
    return jnp.sum(products, -1).astype(jnp.result_type(sender, receiver))


def _products_of(block: Block, ends: tuple[jax.Array, jax.Array]) -> jax.Array:
    sender, receiver = ends
    calls = find_calls(block.edges)
    if calls is None:
        return map_edges(block, _product, Inputs((), sender, receiver, ()))
    heads = sender.shape[1:-1]
    over = EdgeGroup(block.edges, 0)
    products = calls.edge_products(over, receiver, sender, heads=math.prod(heads))
    return products.reshape(-1, *heads)


_products_by_kernels = with_portable_tangents(_products_of)


@custom_vjp
def _products(block: Block, sender: jax.Array, receiver: jax.Array) -> jax.Array:
    return _products_by_kernels(block, (sender, receiver))


def _forward(block, sender, receiver):
    return _products_by_kernels(block, (sender, receiver)), (block, sender, receiver)


def _backward(residuals, gradient):
    block, sender, receiver = residuals
    inputs = Inputs((), sender.astype(gradient.dtype), (), gradient)
    by_receiver = reduce_once(OneBlock(block), weighted_message, Sum(receiver.dtype), inputs)
    wanted = Wanted(params=False, sender=True, receiver=False, edge=False)
    transposed = pull_once(OneBlock(block), weighted_message, Sum(), inputs, receiver, wanted)
    by_sender = transposed.sender[0].astype(sender.dtype)
    return None, by_sender, by_receiver


_products.defvjp(_forward, _backward)


def _sum(params: tuple, sender: jax.Array, receiver: jax.Array, edge: tuple) -> jax.Array:
    total = to_accumulation(sender) + to_accumulation(receiver)
    return total.astype(jnp.result_type(sender, receiver))


def _sums_of(block: Block, ends: tuple[jax.Array, jax.Array]) -> jax.Array:
    sender, receiver = ends
    calls = find_calls(block.edges)
    if calls is not None and calls.edge_sums is not None:
        return calls.edge_sums(EdgeGroup(block.edges, 0), receiver, sender)
    return map_edges(block, _sum, Inputs((), sender, receiver, ()))


_sums_by_kernels = with_portable_tangents(_sums_of)


@custom_vjp
def _sums(block: Block, sender: jax.Array, receiver: jax.Array) -> jax.Array:
    return _sums_by_kernels(block, (sender, receiver))


def _forward_of_sums(block, sender, receiver):
    return _sums_by_kernels(block, (sender, receiver)), (block, sender, receiver)


def _backward_of_sums(residuals, gradient):
    block, *ends = residuals
    totals = _totals_by_kernels(block, (*ends, gradient))
    return None, *(total.astype(end.dtype) for total, end in zip(totals, ends, strict=True))


def _totals_of(
    block: Block, arrays: tuple[jax.Array, jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """The gradients of the ends of edges; of the ends themselves only the shapes are read."""
    *ends, gradient = arrays
    calls, over = find_calls(block.edges), EdgeGroup(block.edges, 0)
    if calls is not None and calls.edge_total is not None:
        sides = zip(("sender", "receiver"), ends, strict=True)
        by_sender, by_receiver = (
            calls.edge_total(over, side, gradient, len(end)) for side, end in sides
        )
        return by_sender, by_receiver
    return _total_by_sender(block, gradient, ends[1]), _total_by_receiver(block, gradient)


_totals_by_kernels = with_portable_tangents(_totals_of)


def _edge(params: tuple, sender: tuple, receiver: tuple, edge: jax.Array) -> jax.Array:
    return to_accumulation(edge)


def _total_by_receiver(block: Block, values: jax.Array) -> jax.Array:
    return reduce_once(OneBlock(block), _edge, Sum(), Inputs((), (), (), values))


def _total_by_sender(block: Block, values: jax.Array, receiver: jax.Array) -> jax.Array:
    """As the gradient, by ones of the senders, of a sum that the values weigh."""
    weights = values.reshape(values.shape[0], -1)
    shape = (weights.shape[1], 1)
    ones = match_variation(jnp.ones((block.sender_rows, *shape)), (block, values))
    like = match_variation(jnp.ones((receiver.shape[0], *shape)), (block, values))
    wanted = Wanted(params=False, sender=True, receiver=False, edge=False)
    inputs = Inputs((), ones, (), weights)
    pulled = pull_once(OneBlock(block), weighted_message, Sum(), inputs, like, wanted)
    return pulled.sender[0].reshape(-1, *values.shape[1:])


_sums.defvjp(_forward_of_sums, _backward_of_sums)

SDDMM = implementations_of("sddmm", _combine, check_sddmm)
