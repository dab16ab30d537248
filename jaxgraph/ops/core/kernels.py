"""Which messages have kernels of their own, and reductions that take one where there is one.

A kernel reduces the edges of one group in compressed rows and continues from an earlier result in
place. What no kernel knows is computed a chunk of edges at a time (`jaxgraph.ops.core.messages`).
"""

from __future__ import annotations

import functools
import logging
from typing import Any, Protocol, runtime_checkable

from jaxgraph.ops.core.edges import EdgeGroup, EdgeGroups
from jaxgraph.ops.core.message_kernels import Calls
from jaxgraph.ops.core.messages import Inputs, MessageFn, Wanted
from jaxgraph.ops.core.reducers import Reducer
from jaxgraph.ops.cpu.library import missing
from jaxgraph.ops.cpu.messages import CPU_CALLS, cpu_kernel
from jaxgraph.ops.dispatch import PREFERENCE, check_name

__all__ = [
    "FinishingKernel",
    "Kernel",
    "WholeKernel",
    "find_calls",
    "find_kernel",
    "usable_implementation",
]

Pytree = Any


class Kernel(Protocol):
    """A reduction of messages of one kind."""

    def fold(self, over: EdgeGroup, inputs: Inputs, before: Pytree, num_rows: int) -> Pytree:
        """The state [rows, ...], of the reducer or its own, after the messages of a group.

        Args:
          over: the edges.
          inputs: what messages are made from.
          before: the state to continue from, not with `over.missing`; None: nothing has been taken
            in.
          num_rows: rows of the state.

        Returns:
          The state.
        """
        ...

    def pull(
        self, over: EdgeGroup, inputs: Inputs, adjoint: Pytree, wanted: Wanted, before: Inputs
    ) -> Inputs:
        """Gradients of the floating inputs, as lists.

        Args:
          over, inputs: as for `fold`.
          adjoint: `reducer.adjoint(...)`, or that of a `FinishingKernel`, one row per row of
            `inputs.receiver`.
          wanted: which gradients are needed.
          before: running gradients, as lists, not with `over.missing`; an empty list: none so far.

        Returns:
          For every wanted part the running gradients with those of the group added, edges in slot
          order; what is not wanted as it was.
        """
        ...


@runtime_checkable
class FinishingKernel(Kernel, Protocol):
    """A kernel whose states and adjoints have a form of their own."""

    def finish(self, state: Pytree, inputs: Inputs) -> tuple[Pytree, Pytree]:
        """What `reducer.finish` makes of the reducer's own state.

        Args:
          state: what `fold` returned, of all messages.
          inputs: as for `fold`.

        Returns:
          Outputs, one row per row of `inputs.receiver`, and what is kept for the backward.
        """
        ...

    def adjoint(self, outputs: Pytree, kept: Pytree, gradient: Pytree) -> Pytree:
        """What `pull` may be given in place of `reducer.adjoint(...)`.

        Args:
          outputs, kept: what `finish` returned, or `WholeKernel.reduce`.
          gradient: of the outputs.

        Returns:
          One row per row of `inputs.receiver`.
        """
        ...


@runtime_checkable
class WholeKernel(FinishingKernel, Protocol):
    """A kernel that leaves the output itself where one group has all edges that there are."""

    def reduce(self, over: EdgeGroup, inputs: Inputs) -> tuple[Pytree, Pytree]:
        """What `finish` makes of the state that `fold` returns.

        Args:
          over, inputs: as for `fold`.

        Returns:
          As `finish`.
        """
        ...


logger = logging.getLogger(__name__)

GPU_PLATFORMS = ("gpu", "cuda")
"""What devices call the platform that the GPU kernels run on."""


def usable_implementation(name: str | None, device: Any) -> str:
    """Chooses the kernels that reduce messages on devices like one.

    Unless asked for by name, the GPU kernels are taken only on chips that they were made for, and
    where their self-check has passed; else XLA is taken, and one line is logged that says why.

    Args:
      name: the ones asked for: "mosaic_gpu", "cpu" or "xla", taken or refused; None: the fastest
        that can be used.
      device: a device of JAX, one of those that are to run them.

    Returns:
      The name.

    Raises:
      ValueError: there are none of that name.
      NotImplementedError: those asked for cannot be used.
    """
    if name is not None:
        check_name("implementation", name, PREFERENCE)
    platform = device.platform
    on_gpu = platform in GPU_PLATFORMS
    reasons = {
        "mosaic_gpu": "" if on_gpu else f"runs on gpu, and the devices are {platform}",
        "cpu": missing() if platform == "cpu" else f"runs on cpu, and the devices are {platform}",
        "xla": "",
    }
    if name is None and on_gpu:
        # Imported where it is needed: it brings a compiler for GPUs with it.
        from jaxgraph.ops.mosaic_gpu.trust import distrust

        if reason := distrust(device):
            _warn_once(reason)
        return "xla" if reason else "mosaic_gpu"
    if name is None:
        return next(each for each in PREFERENCE if not reasons[each])
    if reasons[name]:
        raise NotImplementedError(
            f"implementation {name!r} {reasons[name]}; implementation=None takes one that can be "
            "used"
        )
    return name


@functools.cache
def _warn_once(reason: str) -> None:
    logger.warning("XLA computes what the GPU kernels would: mosaic_gpu %s", reason)


def find_kernel(
    edges: EdgeGroups, message: MessageFn, reducer: Reducer, inputs: Inputs
) -> Kernel | None:
    """The kernel for messages on some edges.

    Args:
      edges: whose `implementation` says which kernels may be used.
      message, reducer, inputs: what has to be reduced.

    Returns:
      The kernel, or None: there is none.
    """
    if edges.implementation == "mosaic_gpu":
        # Imported where it is needed: it brings a compiler for GPUs with it.
        from jaxgraph.ops.mosaic_gpu.messages import gpu_kernel

        return gpu_kernel(message, reducer, inputs)
    return cpu_kernel(message, reducer, inputs) if edges.implementation == "cpu" else None


def find_calls(edges: EdgeGroups) -> Calls | None:
    """The kernels that may be used on some edges, or None: only XLA.

    Args:
      edges: whose `implementation` says which.

    Returns:
      The kernels.
    """
    if edges.implementation == "mosaic_gpu":
        from jaxgraph.ops.mosaic_gpu.messages import gpu_calls

        return gpu_calls()
    return CPU_CALLS if edges.implementation == "cpu" else None
