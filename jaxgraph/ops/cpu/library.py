"""Finds and loads the compiled kernels, and registers them with XLA."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import logging
from pathlib import Path

import jax

from jaxgraph.ops.cpu.build_record import mismatch

LIBRARY = Path(__file__).with_name("kernels.so")
_TARGETS = (
    "jaxgraph_sum",
    "jaxgraph_product",
    "jaxgraph_extremum",
    "jaxgraph_winner",
    "jaxgraph_program",
    "jaxgraph_attention",
    "jaxgraph_attention_gradient",
    "jaxgraph_hidden_gradient",
    "jaxgraph_edge_sum",
    "jaxgraph_weight_gradient",
    "jaxgraph_row_product",
    "jaxgraph_row_products",
    "jaxgraph_large_pages",
    "jaxgraph_take_rows",
)
"""Symbols of the library, and the names of the custom calls."""

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Library:
    """The compiled kernels on this machine.

    Attributes:
      level: the instruction set that they use: "baseline", "avx2" or "avx512"; "" where missing.
      missing: why they cannot be used, "" where they can.
      handle: the loaded library, None where missing.
    """

    level: str
    missing: str
    handle: ctypes.CDLL | None = None


@functools.cache
def library() -> Library:
    """Loads the kernels and registers them with XLA, once in a process.

    A library that is damaged, or was built from sources other than those installed beside it, is
    not loaded.
    """
    if not LIBRARY.exists():
        reason = (
            "was not built when jaxgraph was installed (no C++17 compiler, or an error that "
            "`pip install -v` shows)"
        )
    elif reason := mismatch(LIBRARY):
        reason = f"{reason}; install jaxgraph again, with a C++17 compiler"
    else:
        try:
            return _loaded()
        except (OSError, AttributeError, RuntimeError, ValueError) as error:
            reason = f"cannot be loaded: {error}"
    logger.warning("the CPU kernels are not used: %s %s", LIBRARY.name, reason)
    return Library("", f"needs {LIBRARY.name}, which {reason}")


def _loaded() -> Library:
    handle = ctypes.CDLL(str(LIBRARY))
    for target in _TARGETS:
        capsule = jax.ffi.pycapsule(getattr(handle, target))
        jax.ffi.register_ffi_target(target, capsule, platform="cpu")
    handle.jaxgraph_level.restype = ctypes.c_char_p
    return Library(handle.jaxgraph_level().decode(), "", handle)


def missing() -> str:
    """The reason why this machine cannot use the kernels, "" where it can."""
    return library().missing


def want_large_pages() -> None:
    """Lets the kernels request large pages from now on, where there are kernels."""
    handle = library().handle
    if handle is not None:
        handle.jaxgraph_want_large_pages()
