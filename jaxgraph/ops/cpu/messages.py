"""The messages that the CPU kernels support, recognised by comparing with the library's own."""

from __future__ import annotations

from jaxgraph.ops.core.kernel_stages import KernelStages
from jaxgraph.ops.core.message_kernels import Calls, message_stages
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.program_messages import program_stages
from jaxgraph.ops.core.reducers import Softmax
from jaxgraph.ops.core.stages import Stages
from jaxgraph.ops.cpu.attention_messages import attention_stages
from jaxgraph.ops.cpu.calls import (
    KERNEL_TYPES,
    edge_products,
    neighbor_extremum,
    neighbor_sum,
    run_program,
    winner_gradient,
)

__all__ = ["CPU_CALLS", "cpu_stages"]

CPU_CALLS = Calls(KERNEL_TYPES, neighbor_sum, edge_products, neighbor_extremum, winner_gradient)
"""The compiled kernels."""


def cpu_stages(plain: Stages, inputs: Inputs) -> KernelStages | None:
    """The CPU kernels for messages, or None where there are none.

    Args:
      plain: message, reducer and chunk.
      inputs: the inputs of the message; only types and structure are read.

    Returns:
      The stages, or None.
    """
    if isinstance(plain.reducer, Softmax):
        return attention_stages(plain, inputs)
    found = message_stages(CPU_CALLS, plain, inputs)
    return found or program_stages(run_program, plain, inputs)
