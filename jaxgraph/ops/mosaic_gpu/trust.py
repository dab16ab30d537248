"""The conditions for taking the GPU kernels where a call does not ask for them by name."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax

from pallas_kernels.chips import unsupported

if TYPE_CHECKING:
    from jaxgraph.ops.registry import Implementation

__all__ = ["distrust", "failed_check"]


def distrust(device: Any) -> str:
    """Finds a reason not to take the GPU kernels on a device unless they are asked for by name.

    Args:
      device: a device of JAX.

    Returns:
      The reason; "" where the chip is one that they were made for and, if it is at hand, a check
      of sums, extrema and attention with their gradients has passed, once in a process.
    """
    if reason := unsupported(device):
        return reason
    # Nothing runs on the devices of a topology that programs are compiled for.
    return _checked_once(device) if device in jax.local_devices() else ""


@functools.cache
def _checked_once(device: Any) -> str:
    # Imported here: ops import the choice between implementations, which imports this module.
    from jaxgraph.ops.registry import implementations

    trusted = ("aggregate", "gat_attention")
    kernels = [e for e in implementations() if e.name == "mosaic_gpu" and e.op in trusted]
    # The caller's strict settings are for the caller's code.
    lenient = jax.transfer_guard("allow"), jax.numpy_rank_promotion("allow")
    with jax.default_device(device), lenient[0], lenient[1]:
        return next(filter(None, map(failed_check, kernels)), "")


def failed_check(implementation: Implementation) -> str:
    """Runs the self-check of an implementation.

    Args:
      implementation: the implementation.

    Returns:
      "" where it passed, else what it said, or the first line of what it raised.
    """
    try:
        found = implementation.check()
    except Exception as error:  # of a compiler, a driver or the kernel itself: all mean XLA
        found = f"raised {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return "" if found.startswith("ok") else f"self-check of {implementation.op} {found}"
