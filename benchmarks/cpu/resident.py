"""The resident memory of this process, now and at its peak (Linux)."""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path


def settle() -> None:
    """Collects garbage and returns freed memory to the system, where that is possible."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def reset_peak() -> bool:
    """Resets the peak to the current resident size; returns whether the system allowed it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def resident_bytes() -> int:
    """Bytes that are resident now, 0 where the system does not report them."""
    return _status("VmRSS")


def peak_bytes() -> int:
    """The most resident bytes since `reset_peak`, 0 where the system does not report them."""
    return _status("VmHWM")


def _status(field: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0
