"""The messages that the CPU kernels know, recognised by comparing with the library's own."""

from __future__ import annotations

from typing import Any

from jaxgraph.ops.core.message_kernels import Calls, message_kernel
from jaxgraph.ops.core.messages import Inputs, MessageFn
from jaxgraph.ops.core.reducers import Reducer, Softmax
from jaxgraph.ops.cpu.attention_messages import attention_kernel
from jaxgraph.ops.cpu.calls import (
    KERNEL_TYPES,
    edge_products,
    neighbor_extremum,
    neighbor_sum,
    winner_gradient,
)

__all__ = ["CPU_CALLS", "cpu_kernel"]

CPU_CALLS = Calls(KERNEL_TYPES, neighbor_sum, edge_products, neighbor_extremum, winner_gradient)
"""The compiled kernels."""


def cpu_kernel(message: MessageFn, reducer: Reducer, inputs: Inputs) -> Any:
    """The CPU kernel for messages, or None where there is none.

    Args:
      message, reducer, inputs: as for `jaxgraph.ops.core.kernels.find_kernel`.

    Returns:
      A `jaxgraph.ops.core.kernels.Kernel`, or None.
    """
    if isinstance(reducer, Softmax):
        return attention_kernel(message, reducer, inputs)
    return message_kernel(CPU_CALLS, message, reducer, inputs)
