"""The chips that the kernels are made for, and the properties of a device that they depend on.

A JAX device on a GPU knows its compute capability and its number of multiprocessors. Without a
device, as in compilation for a GPU on a machine that has none, a table of generations is used.
"""

from __future__ import annotations

from typing import Any

import jax

__all__ = ["COMPILED_FOR", "compute_capability", "multiprocessors", "unsupported"]

COMPILED_FOR = {"9.0": 132}
"""Compute capabilities that the kernels have been compiled for and run on, with the multiprocessors
of their largest chips: Hopper (H100, H200)."""

_USUAL = "9.0"


def compute_capability(device: Any) -> str:
    """Reads the compute capability of a device, such as "9.0"; "" where it has none."""
    return str(getattr(device, "compute_capability", None) or "")


def unsupported(device: Any) -> str:
    """Says why the kernels do not support a device.

    Args:
      device: a JAX device, of any platform.

    Returns:
      The reason; "" where they have been compiled for chips of its generation.
    """
    if device.platform not in ("gpu", "cuda"):
        return f"runs on gpu, and the devices are {device.platform}"
    found = compute_capability(device)
    if found in COMPILED_FOR:
        return ""
    kind = getattr(device, "device_kind", device.platform)
    return (
        f"is made for chips of compute capability {', '.join(COMPILED_FOR)}, and {kind} has "
        f"{found or 'an unknown one'}"
    )


def multiprocessors(device: Any = None) -> int:
    """Finds the number of multiprocessors of a device.

    Args:
      device: a JAX device; None: the first one of this process.

    Returns:
      The device's number; where it is no GPU or does not report it, that of the largest chip of its
      generation, or of Hopper.
    """
    device = jax.local_devices()[0] if device is None else device
    count = getattr(device, "core_count", None) if device.platform in ("gpu", "cuda") else None
    if isinstance(count, int) and count > 0:
        return count
    return COMPILED_FOR.get(compute_capability(device), COMPILED_FOR[_USUAL])
