"""The choice of an implementation for devices, and of the stages that reduce messages.

A reduction and its pull each choose, and choose the same: the choice depends only on the
implementation that the edges were placed for, the message, the reducer and the types. XLA reduces
every message that no kernel supports.
"""

from __future__ import annotations

import difflib
import functools
import logging
from collections.abc import Iterable
from typing import Any

import jax

from jaxgraph.ops.core.edges import EdgeGroups
from jaxgraph.ops.core.kernel_stages import KernelStages
from jaxgraph.ops.core.messages import Inputs, MessageFn
from jaxgraph.ops.core.reducers import Reducer
from jaxgraph.ops.core.stages import Stages
from jaxgraph.ops.cpu.library import missing
from jaxgraph.ops.cpu.messages import cpu_stages

PREFERENCE = ("mosaic_gpu", "cpu", "xla")
"""The names of implementations, in the order in which they are tried."""

logger = logging.getLogger(__name__)

GPU_PLATFORMS = ("gpu", "cuda")
"""Names that devices give the platform of the GPU kernels."""


def usable_implementation(name: str | None, device: Any) -> str:
    """Chooses the kernels that reduce messages on devices like one.

    Unless named, the GPU kernels are chosen only on chips that they were made for, and where their
    self-check has passed. Otherwise XLA is chosen, and one logged line says why.
    """
    if name is None and device.platform in GPU_PLATFORMS:
        # A local import: it loads a compiler for GPUs.
        from jaxgraph.ops.mosaic_gpu.trust import distrust

        if reason := distrust(device):
            _warn_once(reason)
        return "xla" if reason else "mosaic_gpu"
    if name is None:
        return next(each for each in PREFERENCE if not unusable(each, device.platform))
    check_name("implementation", name, PREFERENCE)
    if reason := unusable(name, device.platform):
        raise NotImplementedError(
            f"implementation {name!r} {reason}; implementation=None chooses a usable one"
        )
    return name


def unusable(name: str, platform: str) -> str:
    """Says why an implementation cannot run."""
    if name == "mosaic_gpu":
        on_gpu = platform in GPU_PLATFORMS
        return "" if on_gpu else f"runs on gpu, and the devices are {platform}"
    if name == "cpu":
        return missing() if platform == "cpu" else f"runs on cpu, and the devices are {platform}"
    return ""


def default_platform() -> str:
    """The platform of JAX's default device."""
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
    logger.warning("XLA replaces the GPU kernels: mosaic_gpu %s", reason)


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
