"""A worker process of one library, started by `python -m benchmarks.cpu.worker LIBRARY`.

It never imports jax or jaxgraph unless that is the library, so that peers may be installed in
another environment.
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
"""Module and class of every library, by name; only a worker imports the module."""


def main() -> None:
    """Imports a library and answers requests from standard input on standard output."""
    parser = argparse.ArgumentParser(description="Worker of benchmarks.cpu")
    parser.add_argument("library", choices=list(LIBRARIES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory-limit", type=int, help="most bytes that it may allocate")
    parser.add_argument(
        "--options", type=json.loads, default={}, help="options of the library, JSON"
    )
    arguments = parser.parse_args()
    # Output of libraries must not mix with the replies.
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
    # Imported objects stay: garbage collections, one or more per task, ignore them.
    gc.collect()
    gc.freeze()
    return session.answer


def _confine(threads: int, memory_limit: int | None) -> None:
    """Limits this process to some cores and memory; must come before the library."""
    if sys.platform == "linux":
        # A stopped process would not notice that its requests have ended.
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    if memory_limit is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_limit, memory_limit))
    adjustment = Path("/proc/self/oom_score_adj")
    if adjustment.exists():
        # If memory still runs out, a worker is killed, and no other process.
        adjustment.write_text("1000")


if __name__ == "__main__":
    main()
