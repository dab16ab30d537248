"""A process for the tasks of one graph: a kernel that breaks the device breaks only it."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from benchmarks.cpu.worker import serve
from benchmarks.gpu.checks import check
from benchmarks.gpu.graphs import Placed, make_graph, place
from benchmarks.gpu.plan import TASKS, Check, Task
from benchmarks.gpu.timing import REHEARSAL, Pace, Row, measure, reason
from jaxgraph.ops.usable import usable_implementation


class Session:
    """The state of a worker between requests; each method is a request.

    Args:
      rehearse: whether this is a machine without a GPU.
    """

    _placed: Placed | None = None

    def __init__(self, rehearse: bool) -> None:
        # Both libraries multiply matrices in float32, not in TF32.
        jax.config.update("jax_default_matmul_precision", "float32")
        self._implementation = usable_implementation(
            None if rehearse else "mosaic_gpu", jax.devices()[0]
        )
        self._rehearse = rehearse

    def place(self, graph: str) -> dict[str, int]:
        """Places a graph of the plan; returns its size."""
        made = make_graph(graph)
        self._placed = place(made, self._implementation)
        return {"num_nodes": made.num_nodes, "num_edges": made.num_edges}

    def bandwidth(self) -> float:
        """Bytes per second, read and written, of the best of ten copies of an array."""
        add = jax.jit(lambda x: x + 1)
        x = jnp.zeros(1 << (10 if self._rehearse else 29), jnp.float32)
        x = jax.block_until_ready(add(x))
        best = float("inf")
        for _ in range(10):
            start = time.perf_counter()
            add(x).block_until_ready()
            best = min(best, time.perf_counter() - start)
        return 2 * x.nbytes / best

    def work(self, graph: str, index: int) -> list[Row]:
        """Runs a task of a graph's plan; a row for each contestant."""
        if self._placed is None:
            self.place(graph)
        assert self._placed is not None
        found = list(self._rows(TASKS[graph][index], self._placed))
        # Memory returns to the device, which must be alive for that.
        jax.clear_caches()
        gc.collect()
        if "torch" in sys.modules:
            sys.modules["torch"].cuda.empty_cache()
        jnp.ones(1).sum().block_until_ready()
        return found

    def _rows(self, task: Task, placed: Placed) -> Iterator[Row]:
        pace = REHEARSAL if self._rehearse else Pace()
        try:
            if isinstance(task, Check):
                error, failure = check(task, placed, self._implementation)
                yield Row(task.label, self._implementation, error=error, failure=failure)
            else:
                yield from measure(task, placed, self._implementation, pace)
        except Exception as error:
            yield Row(task.label, self._implementation, failure=reason(error))


if __name__ == "__main__":
    serve(Session(sys.argv[1] == "rehearse"), int(sys.argv[2]))
