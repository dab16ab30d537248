"""The choice of the stages that reduce messages.

A reduction and its pull each choose, and choose the same: the choice depends only on the
implementation that the edges were placed for, the message, the reducer and the types. XLA reduces
every message that no kernel supports.
"""

from __future__ import annotations

import jax

from jaxgraph.ops.core.edges import EdgeGroups
from jaxgraph.ops.core.kernel_stages import KernelStages
from jaxgraph.ops.core.messages import Inputs, MessageFn
from jaxgraph.ops.core.reducers import Reducer
from jaxgraph.ops.core.stages import Stages
from jaxgraph.ops.cpu.messages import cpu_stages


def choose_stages(
    edges: EdgeGroups, message: MessageFn, reducer: Reducer, inputs: Inputs
) -> Stages:
    """Chooses the stages that reduce messages: the only place that chooses a kernel."""
    slots = edges.by_receiver.neighbors.shape[0]
    for leaf in jax.tree.leaves(inputs.edge):
        if leaf.shape[:1] != (slots,):
            raise ValueError(
                f"an array of edge data has shape {leaf.shape}; expected one row per edge slot of "
                f"the shard, [{slots}, ...], as shard.edges has"
            )
    plain = Stages(message, reducer, edges.chunk)
    return _kernel(edges.implementation, plain, inputs) or plain


def has_kernel(implementation: str, message: MessageFn, reducer: Reducer, inputs: Inputs) -> bool:
    """True where `choose_stages` uses the implementation that edges were placed for."""
    plain = Stages(message, reducer, chunk=1)
    return implementation == "xla" or _kernel(implementation, plain, inputs) is not None


def _kernel(implementation: str, plain: Stages, inputs: Inputs) -> KernelStages | None:
    """The stages that an implementation has a kernel for, or None."""
    if implementation == "mosaic_gpu":
        # A local import: it loads a compiler for GPUs.
        from jaxgraph.ops.mosaic_gpu.messages import gpu_stages

        return gpu_stages(plain, inputs)
    return cpu_stages(plain, inputs) if implementation == "cpu" else None
