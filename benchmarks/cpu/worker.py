"""A worker process of one library: `python -m benchmarks.cpu.worker LIBRARY`, started by others.

It never imports jax or jaxgraph unless that is the library, so that peers may live in another
environment.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.cpu.serving import Answer, Session, answer_requests, failure

__all__ = ["LIBRARIES", "main"]

DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl."""

LIBRARIES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "jaxgraph": ("benchmarks.cpu.libraries.jaxgraph_library", "JaxgraphLibrary"),
        "dgl": ("benchmarks.cpu.libraries.dgl_library", "DGLLibrary"),
        "pyg": ("benchmarks.cpu.libraries.pyg_library", "PyGLibrary"),
        "torch": ("benchmarks.cpu.libraries.torch_library", "TorchLibrary"),
        "scipy": ("benchmarks.cpu.libraries.scipy_library", "SciPyLibrary"),
    }
)
"""Module and class of every library, by name; the module is imported in its worker alone."""


def main() -> None:
    """Imports a library and answers requests from standard input on standard output."""
    parser = argparse.ArgumentParser(description="Worker of benchmarks.cpu")
    parser.add_argument("library", choices=list(LIBRARIES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory-limit", type=int, help="bytes of memory that it may take")
    parser.add_argument("--options", type=json.loads, default={}, help="of the library, JSON")
    arguments = parser.parse_args()
    # What libraries print must not come between the replies.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    _confine(arguments.threads, arguments.memory_limit)
    answer_requests(_answer(arguments.library, arguments.options), sys.stdin, replies)


def _answer(library: str, options: Mapping[str, Any]) -> Answer:
    """The function that answers requests; a failed import of the library is its only answer."""
    module, name = LIBRARIES[library]
    try:
        session = Session(getattr(importlib.import_module(module), name)(**options))
    except Exception as error:
        reply = failure(error)
        return lambda request: reply
    # What was imported stays: collections, of which there are some for every task, look past it.
    gc.collect()
    gc.freeze()
    return session.answer


def _confine(threads: int, memory_limit: int | None) -> None:
    """Keeps this process to some cores and so much memory; must come before the library."""
    if sys.platform == "linux":
        # A stopped process would not see that its requests have ended.
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    if memory_limit is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_limit, memory_limit))
    adjustment = Path("/proc/self/oom_score_adj")
    if adjustment.exists():
        # Where memory runs out all the same, a worker goes, and nobody else's process.
        adjustment.write_text("1000")


if __name__ == "__main__":
    main()
