"""Freed memory that stays with the process, for the next call of the same program."""

from __future__ import annotations

import numpy as np

__all__ = ["keep_freed_memory"]

_LARGEST = 32 << 20
"""Bytes, with what stands before it, below which a block is to glibc a sign of what comes again."""

_SPARE = 8192
"""Bytes of a page for what stands before a block, and of another for staying below."""


def keep_freed_memory() -> None:
    """Lets the C library keep freed blocks of up to 32 MiB, and up to 64 MiB at the heap's end.

    XLA takes the memory of results and temporaries anew in every call. glibc gives freed memory
    back to Linux where it is more than twice the largest block that was freed before: the same sum
    took once or four times as long, by what the process had done earlier, as the next call uses
    every page for the first time. One block as large as glibc goes by, never touched, is freed
    here. That changes no setting, and nothing where the environment has one (`GLIBC_TUNABLES`,
    `MALLOC_TRIM_THRESHOLD_`); to other C libraries a block comes and goes.
    """
    np.empty(_LARGEST - _SPARE, np.uint8)
