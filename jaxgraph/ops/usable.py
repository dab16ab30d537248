"""The implementation that is used on a device where none is named."""

from __future__ import annotations

import functools
import logging
from typing import Any

import jax

from jaxgraph.ops.core.implementations import GPU_PLATFORMS, PREFERENCE, check_name, unusable
from jaxgraph.ops.registry import OPS, Implementation, implementations
from pallas_kernels.chips import unsupported

logger = logging.getLogger(__name__)


def chosen(op: str, /, *arguments: Any, **options: Any) -> str:
    """The implementation that an op chooses by default.

    Args:
      op: name of the op, such as "aggregate".
      arguments, options: those of the call, which is not computed. Without any, the answer is for
        arguments that all implementations support, on a graph placed on this machine.

    Returns:
      Its name.

    Raises:
      ValueError: there is no such op, or the op would raise it.
    """
    check_name("op", op, OPS)
    function, names = OPS[op]
    if not arguments:
        placed = usable_implementation(None, jax.devices()[0])
        return placed if placed in names else "xla"
    placed = arguments[0].implementation
    try:
        jax.eval_shape(lambda: function(*arguments, **options, implementation=placed))
    except NotImplementedError:
        return "xla"
    return placed


def usable_implementation(name: str | None, device: Any) -> str:
    """Chooses the kernels that reduce messages on devices like one.

    Unless named, the GPU kernels are chosen only on chips that they were made for, and where their
    self-check has passed. Otherwise XLA is chosen, and one logged line says why.
    """
    if name is None and device.platform in GPU_PLATFORMS:
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


@functools.cache
def _warn_once(reason: str) -> None:
    logger.warning("XLA replaces the GPU kernels: mosaic_gpu %s", reason)


def distrust(device: Any) -> str:
    """Finds a reason not to choose the GPU kernels on a device by default."""
    if reason := unsupported(device):
        return reason
    # The devices of a topology for compilation run nothing.
    return _checked_once(device) if device in jax.local_devices() else ""


@functools.cache
def _checked_once(device: Any) -> str:
    trusted = ("aggregate", "gat_attention")
    kernels = [e for e in implementations() if e.name == "mosaic_gpu" and e.op in trusted]
    # The caller's strict settings are for the caller's code.
    lenient = jax.transfer_guard("allow"), jax.numpy_rank_promotion("allow")
    with jax.default_device(device), lenient[0], lenient[1]:
        return next(filter(None, map(failed_check, kernels)), "")


def failed_check(implementation: Implementation) -> str:
    """Runs the self-check of an implementation."""
    try:
        found = implementation.check()
    except Exception as error:  # of a compiler, a driver or the kernel itself: all mean XLA
        found = f"raised {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return "" if found.startswith("ok") else f"self-check of {implementation.op} {found}"
