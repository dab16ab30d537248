"""Weighted and unweighted sums, means, maxima and minima over the edges that enter a node."""

from __future__ import annotations

import jax

from jaxgraph.ops.arguments import check_neighborhood, check_no_loops, check_rows, check_slots
from jaxgraph.ops.core.message_functions import sum_message, weighted_message
from jaxgraph.ops.core.messages import Inputs, MessageFn
from jaxgraph.ops.core.propagation import Neighborhood
from jaxgraph.ops.core.reducers import Mean, Reducer, Sum
from jaxgraph.ops.core.reductions import REDUCTIONS, check_reduction
from jaxgraph.ops.dispatch import reduce_by


def aggregate(
    neighborhood: Neighborhood,
    x: jax.Array,
    weight: jax.Array | None = None,
    reduce: str = "sum",
    *,
    self_loops: bool = False,
    implementation: str | None = None,
) -> jax.Array:
    """Reduces the values of the senders over the edges that enter each receiver.

    y_i = reduce_{e: j -> i} w_e x_j;  the mean divides by the number of edges, not by their weight.

    Differentiable in `x` and `weight`: the gradient of a sum in `x` is the sum over the transposed
    edges, that in `weight` an `sddmm`. All w_e x_j equal to a maximum or minimum share its gradient
    equally. NaN wins.

    Args:
      neighborhood: the edges: a shard under `jaxgraph.parallel.spmd`.
      x: [sender rows, ...], floating.
      weight: a number per edge, [slots], or per edge and head, [slots, heads], with x
        [sender rows, heads, ...]; None: 1.
      reduce: "sum", "mean", "max" or "min"; 0 where no edge enters.
      self_loops: whether nodes without an edge to themselves count as having one; not with weights.
      implementation: "mosaic_gpu", "cpu" or "xla", used or refused; None: the one that the graph
        was placed for, and XLA where that has no kernel.

    Returns:
      [receiver rows, ...], of the type of `x`. Sums of 16-bit values accumulate in 32 bits.

    Raises:
      ValueError: an array has the wrong shape or type, weights come with added self-loops, or a
        name is unknown.
      NotImplementedError: the named implementation cannot compute this.

    References:
      Gilmer et al., "Neural message passing for quantum chemistry", 2017; SAR, equation 1.
    """
    check_neighborhood(neighborhood)
    check_rows(neighborhood, "sender", "x", x, "...")
    check_reduction(reduce)
    if weight is not None:
        check_slots(neighborhood, "weight", weight, ((), x.shape[1:2]) if x.ndim > 2 else ((),))
        check_no_loops(self_loops, "weight")
    reduction = aggregation(x, weight, reduce)
    y = reduce_by(implementation, "aggregate", neighborhood, *reduction, self_loops=self_loops)
    return y.astype(x.dtype)


def aggregation(
    x: jax.Array, weight: jax.Array | None, reduce: str
) -> tuple[MessageFn, Reducer, Inputs]:
    """The message, reducer and inputs of `aggregate`."""
    message = sum_message if weight is None else weighted_message
    # Traced with two edges: these messages are the same for any number.
    message, reducer, inputs = REDUCTIONS[reduce].of(message, Inputs((), x, (), weight), 2)
    is_sum = isinstance(reducer, Sum) and not isinstance(reducer, Mean)
    return message, Sum(x.dtype) if is_sum else reducer, inputs
