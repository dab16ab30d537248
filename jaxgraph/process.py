"""Settings of the whole process that make programs on CPU devices faster.

Nothing else in the library changes the C library's memory, the pages of memory or an environment
variable: the command line calls `tune_process`, and so may any program that owns its process.
"""

from __future__ import annotations

import os

import numpy as np

from jaxgraph.ops.cpu.library import want_large_pages

__all__ = ["add_threads", "keep_freed_memory", "tune_process", "use_large_pages"]

_LARGEST = 32 << 20
"""Bytes, with its header, of the largest block whose freeing makes glibc keep more memory."""

_SPARE = 8192
"""Bytes of two pages: one for the header of the block, one to stay below the limit."""


def tune_process(*, num_devices: int = 1) -> None:
    """Turns on all of this module, for programs on CPU devices; results do not change.

    Call it before the first use of jax. Each function says what it gained where it was measured.

    Args:
      num_devices: CPU devices that the process is going to emulate.

    Raises:
      ValueError: `num_devices` is not a positive integer.
    """
    add_threads(num_devices)
    keep_freed_memory()
    use_large_pages()


def add_threads(num_devices: int) -> None:
    """Asks XLA for one more thread per emulated device, by the environment variable NPROC.

    A device that waits for another in a collective holds one of XLA's threads, of which there are
    as many as cores: those that compute would be short of it. XLA reads NPROC when it starts; a
    value that the environment has is kept, and one device needs no more.

    Gains: an epoch of GCN on 2 devices of 2 cores took 1.09 to 1.12 times as long as on one, and
    1.19 to 1.25 times without; on 8 and 16 devices there was no difference.

    Args:
      num_devices: how many devices the process is going to emulate.

    Raises:
      ValueError: it is not a positive integer.
    """
    if isinstance(num_devices, bool) or not isinstance(num_devices, int) or num_devices < 1:
        raise ValueError(f"num_devices is {num_devices!r}; expected an integer, at least 1")
    if num_devices > 1:
        os.environ.setdefault("NPROC", str(_usable_cores() + num_devices))


def keep_freed_memory() -> None:
    """Lets the C library keep freed blocks of up to 32 MiB, and up to 64 MiB at the heap's end.

    XLA takes the memory of results and temporaries anew in every call. glibc gives freed memory
    back to Linux where it is more than twice the largest block that was freed before, and the next
    call uses every page for the first time. This function frees a block of the largest size that
    glibc looks at, never touched. Nothing changes where the environment has a setting
    (`GLIBC_TUNABLES`, `MALLOC_TRIM_THRESHOLD_`), nor in other C libraries.

    Gains: without it the same sum took up to four times as long, depending on what the process had
    done before.
    """
    np.empty(_LARGEST - _SPARE, np.uint8)


def use_large_pages() -> None:
    """Lets the CPU kernels ask Linux for large pages under large results and whole training steps.

    XLA takes the memory of large results and of a program anew in every call, and the first use of
    a page of 4 KiB takes longer than to write it. Linux is asked (`madvise`) under results of 8 MiB
    and more, and under all that a step of `jaxgraph.train` makes; the advice outlasts the memory's
    release. `GLIBC_TUNABLES=glibc.malloc.hugetlb=1` in the environment of a process does it for
    every program.

    Gains: a fifth of a sum over neighbours; a step of GCN, GAT and GraphSAGE at ogbn-arxiv's size
    touched 1,100, 1,100 and 9,900 new pages in place of 102,000, 99,000 and 84,000.
    """
    want_large_pages()


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def __dir__() -> list[str]:
    return sorted(__all__)
