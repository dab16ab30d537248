"""The implementations by name, and the platforms that each runs on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import jax

from jaxgraph.ops.cpu.library import missing

PREFERENCE = ("mosaic_gpu", "cpu", "xla")
"""The names of implementations, in the order in which they are tried."""

GPU_PLATFORMS = ("gpu", "cuda")
"""Names that devices give the platform of the GPU kernels."""


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
