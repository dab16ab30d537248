"""The messages that the CPU kernels support, recognised by comparing with the library's own."""

from __future__ import annotations

from jaxgraph.ops.core.kernel_stages import KernelStages
from jaxgraph.ops.core.message_kernels import message_stages
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.program_messages import program_stages
from jaxgraph.ops.core.reducers import Softmax
from jaxgraph.ops.core.stages import Stages
from jaxgraph.ops.cpu import calls
from jaxgraph.ops.cpu.attention_messages import attention_stages


def cpu_stages(plain: Stages, inputs: Inputs) -> KernelStages | None:
    """The CPU kernels for messages, or None where there are none."""
    if isinstance(plain.reducer, Softmax):
        return attention_stages(plain, inputs)
    found = message_stages(calls, plain, inputs)
    return found or program_stages(calls.run_program, plain, inputs)
