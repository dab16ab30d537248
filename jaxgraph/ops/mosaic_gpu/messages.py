"""The messages that the GPU kernels support, recognised by comparing with the library's own."""

from __future__ import annotations

from functools import partial

from jaxgraph.ops.core.kernel_stages import KernelStages
from jaxgraph.ops.core.message_kernels import Calls, message_stages
from jaxgraph.ops.core.messages import Inputs
from jaxgraph.ops.core.program_messages import program_stages
from jaxgraph.ops.core.reducers import Softmax
from jaxgraph.ops.core.stages import Stages
from jaxgraph.ops.mosaic_gpu.attention_messages import attention_stages
from jaxgraph.ops.mosaic_gpu.calls import (
    KERNEL_TYPES,
    edge_products,
    edge_sums,
    edge_total,
    neighbor_extremum,
    neighbor_mean,
    neighbor_sum,
    run_program,
    winner_gradient,
)
from pallas_kernels.teams import Launch

__all__ = ["gpu_calls", "gpu_stages"]


_LACKS = frozenset(("sqrt",))
"""Mosaic GPU of jax 0.10 has no square root."""


def gpu_calls(launch: Launch | None = None) -> Calls:
    """The kernels with one launch configuration.

    Args:
      launch: the launch configuration; None: the one for the chip of this process.

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


def gpu_stages(plain: Stages, inputs: Inputs) -> KernelStages | None:
    """The GPU kernels for messages, or None where there are none.

    Args:
      plain: message, reducer and chunk.
      inputs: the inputs of the message; only types and structure are read.

    Returns:
      The stages, or None.
    """
    if isinstance(plain.reducer, Softmax):
        return attention_stages(plain, inputs, Launch())
    run = partial(run_program, launch=Launch())
    found = message_stages(gpu_calls(), plain, inputs)
    return found or program_stages(run, plain, inputs, has_dots=False, lacks=_LACKS)
