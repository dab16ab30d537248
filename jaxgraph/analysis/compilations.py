"""The programs that JAX compiles while a block of Python runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax

_COMPILED = "/jax/core/compile/backend_compile_duration"


@contextmanager
def compilations() -> Iterator[list[float]]:
    """Counts the programs that are compiled, or read from the persistent cache.

        with jaxgraph.analysis.compilations() as found:
            for block in blocks:
                step(params, block, x)
        print(len(found))

    Yields:
      A list, to which the seconds of each compilation are appended.
    """
    found: list[float] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _COMPILED:
            found.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
