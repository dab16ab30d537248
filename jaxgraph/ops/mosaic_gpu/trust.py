"""The conditions under which the GPU kernels are chosen by default."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax

from pallas_kernels.chips import unsupported

if TYPE_CHECKING:
    from jaxgraph.ops.registry import Implementation


def distrust(device: Any) -> str:
    """Finds a reason not to choose the GPU kernels on a device by default."""
    if reason := unsupported(device):
        return reason
    # The devices of a topology for compilation run nothing.
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
    """Runs the self-check of an implementation."""
    try:
        found = implementation.check()
    except Exception as error:  # of a compiler, a driver or the kernel itself: all mean XLA
        found = f"raised {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return "" if found.startswith("ok") else f"self-check of {implementation.op} {found}"
