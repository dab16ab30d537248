"""Weighted and unweighted sums, means, maxima and minima over the edges that enter a node."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from jaxgraph.ops.arguments import check_block, check_no_added_loops, check_rows, check_slots
from jaxgraph.ops.blocks import Block
from jaxgraph.ops.cpu.library import missing
from jaxgraph.ops.dispatch import Implementation, by_preference, call, check_name
from jaxgraph.ops.message_functions import sum_message, weighted_message
from jaxgraph.ops.messages import Inputs, MessageFn
from jaxgraph.ops.precision import to_accumulation
from jaxgraph.ops.propagation import propagate_block, with_implementation, with_kernels
from jaxgraph.ops.reducers import Extremum, Reducer, Sum
from jaxgraph.ops.self_check import check_aggregate

__all__ = ["AGGREGATE", "aggregate"]

REDUCTIONS = ("sum", "mean", "max", "min")


def aggregate(
    block: Block,
    x: jax.Array,
    weight: jax.Array | None = None,
    reduce: str = "sum",
    *,
    implementation: str | None = None,
) -> jax.Array:
    """Reduces the values of the senders over the edges that enter each receiver.

    y_i = reduce_{e: j -> i} w_e x_j;  the mean divides by the number of edges, not by their weight.

    Differentiable by `x` and `weight`: the gradient of a sum by `x` is the sum over the transposed
    edges, that by `weight` an `sddmm`. Of a maximum or minimum, equal winners share the gradient.

    Args:
      block: the edges.
      x: [sender rows, ...], floating.
      weight: a number per edge, [slots], or per edge and head, [slots, heads], with x
        [sender rows, heads, ...]; None: 1.
      reduce: "sum", "mean", "max" or "min"; 0 where no edge enters.
      implementation: "mosaic_gpu", "cpu" or "xla"; None takes the first that can.

    Returns:
      [receiver rows, ...], of the type of `x`. Sums of 16-bit values are kept in 32 bits.

    Raises:
      ValueError: an array has the wrong shape or type, a weight comes with a block that adds
        self-loops, or a name is unknown.
      NotImplementedError: the implementation named cannot compute this.

    References:
      Gilmer et al., "Neural message passing for quantum chemistry", 2017; SAR, equation 1.
    """
    check_block(block)
    check_rows(block, "sender", "x", x, "...")
    check_name("reduce", reduce, REDUCTIONS)
    if weight is not None:
        check_slots(block, "weight", weight, ((), x.shape[1:2]) if x.ndim > 2 else ((),))
        check_no_added_loops(block, "weight")
    return call(AGGREGATE, implementation, block, x, weight, reduce)


def _recipe(
    x: jax.Array, weight: jax.Array | None, reduce: str
) -> tuple[MessageFn, Reducer, Inputs]:
    """The messages to reduce; those of a mean are kept as precise as they are summed."""
    message = sum_message if weight is None else weighted_message
    if reduce in ("max", "min"):
        return message, Extremum(1.0 if reduce == "max" else -1.0), Inputs((), x, (), weight)
    return message, Sum(), Inputs((), to_accumulation(x) if reduce == "mean" else x, (), weight)


@partial(jax.jit, static_argnums=3)
def _portable(block: Block, x: jax.Array, weight: jax.Array | None, reduce: str) -> jax.Array:
    return _reduced(with_implementation(block, "xla"), x, weight, reduce)


@partial(jax.jit, static_argnums=3)
def _native(block: Block, x: jax.Array, weight: jax.Array | None, reduce: str) -> jax.Array:
    return _reduced(with_kernels(block, "cpu", *_recipe(x, weight, reduce)), x, weight, reduce)


def _reduced(block: Block, x: jax.Array, weight: jax.Array | None, reduce: str) -> jax.Array:
    total = propagate_block(block, *_recipe(x, weight, reduce))
    if reduce != "mean":
        return total
    ones = jnp.ones((x.shape[0], *(1,) * (x.ndim - 1)), total.dtype)
    count = propagate_block(block, sum_message, Sum(), Inputs((), ones, (), ()))
    return (total / jnp.maximum(count, 1)).astype(x.dtype)


AGGREGATE = by_preference(
    Implementation("aggregate", "xla", _portable, check_aggregate),
    Implementation("aggregate", "cpu", _native, check_aggregate, ("cpu",), missing),
)
