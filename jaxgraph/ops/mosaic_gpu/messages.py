"""The messages that the GPU kernels support, recognised by comparing with the library's own."""

from __future__ import annotations

from jaxgraph.ops.core.kernel_stages import KernelStages
from jaxgraph.ops.core.message_kernels import message_stages
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.program_messages import program_stages
from jaxgraph.ops.core.reducers import Softmax
from jaxgraph.ops.core.stages import Stages
from jaxgraph.ops.mosaic_gpu import calls
from jaxgraph.ops.mosaic_gpu.attention_messages import attention_stages

_LACKS = frozenset(("sqrt",))
"""Mosaic GPU of jax 0.10 has no square root."""


def gpu_stages(plain: Stages, inputs: Inputs) -> KernelStages | None:
    """The GPU kernels for messages, or None where there are none."""
    if isinstance(plain.reducer, Softmax):
        return attention_stages(plain, inputs)
    found = message_stages(calls, plain, inputs)
    return found or program_stages(calls.run_program, plain, inputs, has_dots=False, lacks=_LACKS)
