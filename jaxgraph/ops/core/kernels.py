"""Which implementations there are, which can run here, and which messages each has kernels for.

A kernel reduces the edges of one group in compressed rows and continues from an earlier result in
place. What no kernel knows is computed by XLA (`jaxgraph.ops.core.stages`).
"""

from __future__ import annotations

import difflib
import functools
import logging
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import jax

from jaxgraph.ops.core.edges import EdgeGroup
from jaxgraph.ops.core.messages import Inputs, MessageFn, Wanted
from jaxgraph.ops.core.reducers import Reducer
from jaxgraph.ops.cpu.library import missing
from jaxgraph.ops.cpu.messages import cpu_kernel

__all__ = [
    "PREFERENCE",
    "FinishingKernel",
    "Kernel",
    "WholeKernel",
    "check_name",
    "default_platform",
    "find_kernel",
    "unusable",
    "usable_implementation",
]

Pytree = Any

PREFERENCE = ("mosaic_gpu", "cpu", "xla")
"""The names of implementations, those to try first in front."""


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
    if name is None and device.platform in GPU_PLATFORMS:
        # Imported where it is needed: it brings a compiler for GPUs with it.
        from jaxgraph.ops.mosaic_gpu.trust import distrust

        if reason := distrust(device):
            _warn_once(reason)
        return "xla" if reason else "mosaic_gpu"
    if name is None:
        return next(each for each in PREFERENCE if not unusable(each, device.platform))
    check_name("implementation", name, PREFERENCE)
    if reason := unusable(name, device.platform):
        raise NotImplementedError(
            f"implementation {name!r} {reason}; implementation=None takes one that can be used"
        )
    return name


def unusable(name: str, platform: str) -> str:
    """Says why an implementation cannot run.

    Args:
      name: one of `PREFERENCE`.
      platform: of the devices.

    Returns:
      The reason, "" where it can.
    """
    if name == "mosaic_gpu":
        on_gpu = platform in GPU_PLATFORMS
        return "" if on_gpu else f"runs on gpu, and the devices are {platform}"
    if name == "cpu":
        return missing() if platform == "cpu" else f"runs on cpu, and the devices are {platform}"
    return ""


def default_platform() -> str:
    """The platform of the device that JAX computes on where none is named."""
    device = jax.config.jax_default_device  # type: ignore[attr-defined]
    return getattr(device, "platform", device) or jax.default_backend()


def check_name(argument: str, name: Any, names: Iterable[str]) -> None:
    """Raises `ValueError` with the nearest of `names` if `name` is not one of them."""
    names = tuple(names)
    if name in names:
        return
    near = difflib.get_close_matches(str(name).lower(), names, n=1)
    advice = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{argument} is {name!r}; expected one of {', '.join(names)}{advice}")


@functools.cache
def _warn_once(reason: str) -> None:
    logger.warning("XLA computes what the GPU kernels would: mosaic_gpu %s", reason)


def find_kernel(
    implementation: str, message: MessageFn, reducer: Reducer, inputs: Inputs
) -> Kernel | None:
    """The kernel of an implementation for some messages.

    Args:
      implementation: one of `PREFERENCE`.
      message, reducer, inputs: what has to be reduced.

    Returns:
      The kernel, or None: there is none.
    """
    if implementation == "mosaic_gpu":
        # Imported where it is needed: it brings a compiler for GPUs with it.
        from jaxgraph.ops.mosaic_gpu.messages import gpu_kernel

        return gpu_kernel(message, reducer, inputs)
    return cpu_kernel(message, reducer, inputs) if implementation == "cpu" else None
