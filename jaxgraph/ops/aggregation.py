"""Weighted and unweighted sums, means, maxima and minima over the edges that enter a node."""

from __future__ import annotations

from functools import partial

import jax

from jaxgraph.ops.arguments import check_block, check_no_added_loops, check_rows, check_slots
from jaxgraph.ops.core.blocks import Block
from jaxgraph.ops.core.input_classes import extremum_of
from jaxgraph.ops.core.message_functions import sum_message, weighted_message
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.reducers import Mean, Reducer, Sum
from jaxgraph.ops.dispatch import check_name
from jaxgraph.ops.implementations import call_on_block, implementations_of, propagate_or_refuse
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
    edges, that by `weight` an `sddmm`. The gradient of a maximum or minimum is shared equally by
    all w_e x_j that are equal to it. NaN wins.

    Args:
      block: the edges.
      x: [sender rows, ...], floating.
      weight: a number per edge, [slots], or per edge and head, [slots, heads], with x
        [sender rows, heads, ...]; None: 1.
      reduce: "sum", "mean", "max" or "min"; 0 where no edge enters.
      implementation: "mosaic_gpu", "cpu" or "xla"; None takes the one that the graph was
        placed for, or the next that can.

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
    return call_on_block(AGGREGATE, implementation, block, x, weight, reduce)


@partial(jax.jit, static_argnames="reduce")
def _aggregate(block: Block, x: jax.Array, weight: jax.Array | None, reduce: str) -> jax.Array:
    message = sum_message if weight is None else weighted_message
    reducer: Reducer = Mean() if reduce == "mean" else Sum(x.dtype)
    inputs = Inputs((), x, (), weight)
    if reduce in ("max", "min"):
        message, reducer, inputs = extremum_of(message, inputs, block.edges.chunk, reduce)
    return propagate_or_refuse(block, message, reducer, inputs).astype(x.dtype)


AGGREGATE = implementations_of("aggregate", _aggregate, check_aggregate)
