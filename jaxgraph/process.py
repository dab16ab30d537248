"""Settings of the whole process that make programs on CPU devices faster.

The rest of the library changes no allocator, page size or environment variable. The command line
calls `tune_process`; a program that owns its process may call it, too.
"""

from __future__ import annotations

import os

import numpy as np

from jaxgraph.ops.cpu.library import want_large_pages

__all__ = ["add_threads", "keep_freed_memory", "tune_process", "use_large_pages"]

_LARGEST = 32 << 20
"""The largest block, in bytes with its header, whose release raises glibc's thresholds."""

_SPARE = 8192
"""Two pages in bytes: one for the block's header, one to stay below the limit."""


def tune_process(*, num_devices: int = 1) -> None:
    """Turns on all settings of this module; results do not change.

    Call it before the first use of jax. Each function's docstring gives its measured gain.

    Args:
      num_devices: CPU devices that the process will emulate.

    Raises:
      ValueError: `num_devices` is not a positive integer.
    """
    add_threads(num_devices)
    keep_freed_memory()
    use_large_pages()


def add_threads(num_devices: int) -> None:
    """Asks XLA for one more thread per emulated device, by the environment variable NPROC.

    XLA has one thread per core. A device that waits in a collective holds one of them, which then
    computes nothing. XLA reads NPROC at its start. This function leaves NPROC alone where the
    environment sets it, and for one device.

    Gains: an epoch of GCN on 2 devices of 2 cores took 1.09 to 1.12 times as long as on one device,
    and 1.19 to 1.25 times without this setting; on 8 and 16 devices there was no difference.

    Args:
      num_devices: CPU devices that the process will emulate.

    Raises:
      ValueError: it is not a positive integer.
    """
    if isinstance(num_devices, bool) or not isinstance(num_devices, int) or num_devices < 1:
        raise ValueError(f"num_devices is {num_devices!r}; expected an integer, at least 1")
    if num_devices > 1:
        os.environ.setdefault("NPROC", str(_usable_cores() + num_devices))


def keep_freed_memory() -> None:
    """Lets the C library keep freed blocks of up to 32 MiB, and up to 64 MiB at the heap's end.

    XLA allocates results and temporaries anew in every call. glibc returns freed memory to Linux
    where it exceeds twice the largest block freed before; the next call then faults every page in
    again. This function raises that threshold: it frees an untouched block of the largest size
    that glibc considers. It changes nothing in other C libraries, or where the environment has a
    setting (`GLIBC_TUNABLES`, `MALLOC_TRIM_THRESHOLD_`).

    Gains: without it the same sum took up to four times as long, depending on the process's
    earlier allocations.
    """
    np.empty(_LARGEST - _SPARE, np.uint8)


def use_large_pages() -> None:
    """Lets the CPU kernels ask Linux for large pages for large results and whole training steps.

    XLA allocates large results and a program's temporaries anew in every call. The fault of a page
    of 4 KiB takes longer than writing the page. The kernels call `madvise` for results of 8 MiB and
    more, and for all memory of a step of `jaxgraph.train`; the advice persists after the memory is
    freed. `GLIBC_TUNABLES=glibc.malloc.hugetlb=1` in the environment has the same effect on every
    program.

    Gains: a sum over neighbours took a fifth less time. A step of GCN, GAT and GraphSAGE at
    ogbn-arxiv's size faulted 1,100, 1,100 and 9,900 pages instead of 102,000, 99,000 and 84,000.
    """
    want_large_pages()


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def __dir__() -> list[str]:
    return sorted(__all__)
