"""The messages that the GPU kernels know, recognised by comparing with the library's own."""

from __future__ import annotations

from functools import partial
from typing import Any

from jaxgraph.ops.core.message_kernels import Calls, message_kernel
from jaxgraph.ops.core.messages import Inputs, MessageFn
from jaxgraph.ops.core.reducers import Reducer, Softmax
from jaxgraph.ops.mosaic_gpu.attention_messages import attention_kernel
from jaxgraph.ops.mosaic_gpu.calls import (
    KERNEL_TYPES,
    edge_products,
    edge_sums,
    edge_total,
    neighbor_extremum,
    neighbor_mean,
    neighbor_sum,
    winner_gradient,
)
from pallas_kernels.teams import Launch

__all__ = ["gpu_calls", "gpu_kernel"]


def gpu_calls(launch: Launch | None = None) -> Calls:
    """The kernels, started in one way.

    Args:
      launch: how; None: for the chip of this process.

    Returns:
      The kernels.
    """
    launch = launch or Launch()
    return Calls(
        KERNEL_TYPES,
        partial(neighbor_sum, launch=launch),
        partial(edge_products, launch=launch),
        partial(neighbor_extremum, launch=launch),
        partial(winner_gradient, launch=launch),
        partial(neighbor_mean, launch=launch),
        partial(edge_sums, launch=launch),
        partial(edge_total, launch=launch),
    )


def gpu_kernel(message: MessageFn, reducer: Reducer, inputs: Inputs) -> Any:
    """The GPU kernel for messages, or None where there is none.

    Args:
      message, reducer, inputs: as for `jaxgraph.ops.core.kernels.find_kernel`.

    Returns:
      A `jaxgraph.ops.core.kernels.Kernel`, or None.
    """
    if isinstance(reducer, Softmax):
        return attention_kernel(message, reducer, inputs, Launch())
    return message_kernel(gpu_calls(), message, reducer, inputs)
