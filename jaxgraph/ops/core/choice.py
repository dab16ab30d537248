"""The choice of the stages that reduce messages.

A reduction and its pull each choose, and choose the same: the choice depends only on the
implementation that the edges were placed for, the message, the reducer and the types. XLA reduces
every message that no kernel supports.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jaxgraph.ops.core.edges import EdgeGroups
from jaxgraph.ops.core.kernel_stages import KernelStages
from jaxgraph.ops.core.message_kernels import message_stages
from jaxgraph.ops.core.messages import Inputs, MessageFn
from jaxgraph.ops.core.program_messages import program_stages
from jaxgraph.ops.core.reducers import Reducer, Softmax
from jaxgraph.ops.core.stages import Stages
from jaxgraph.ops.cpu import attention_messages as cpu_attention
from jaxgraph.ops.cpu import calls as cpu_calls


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
    if implementation == "xla":
        return None
    calls, attention_stages = _kernels(implementation)
    if isinstance(plain.reducer, Softmax):
        return attention_stages(plain, inputs)
    return message_stages(calls, plain, inputs) or program_stages(calls, plain, inputs)


def _kernels(implementation: str) -> tuple[Any, Callable[[Stages, Inputs], KernelStages | None]]:
    """The module of an implementation's kernels, and its stages of attention."""
    if implementation == "cpu":
        return cpu_calls, cpu_attention.attention_stages
    # A local import: it loads a compiler for GPUs.
    from jaxgraph.ops.mosaic_gpu import attention_messages, calls

    return calls, attention_messages.attention_stages
