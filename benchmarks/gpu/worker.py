"""A separate process for the tasks of one graph: a kernel that breaks the device breaks only it.

Places the graph, writes its size and waits for a line on its standard input. Then writes a JSON
object per line: {"begin": task} before each task, then a row for each contestant.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.cpu.work import Size
from benchmarks.gpu.checks import check
from benchmarks.gpu.graphs import Placed, make_graph, place
from benchmarks.gpu.plan import GRAPHS, TASKS, Check, Task
from benchmarks.gpu.roofline import copy_bandwidth
from benchmarks.gpu.timing import Pace, Row, measure
from jaxgraph.ops.core.choice import usable_implementation

__all__ = ["main", "work_on"]

REHEARSAL = Pace(rounds=2, round_seconds=1e-3, spread_bytes=1)


def work_on(
    graph: str, placed: Placed, implementation: str, tasks: Sequence[int], rehearse: bool
) -> Iterator[dict[str, Any]]:
    """Runs tasks.

    Args:
      graph: name of the graph in the plan.
      placed: the graph.
      implementation: implementation of the ops.
      tasks: their indices in the plan.
      rehearse: whether this is a machine without a GPU.

    Yields:
      The objects to write.
    """
    yield {"bandwidth": copy_bandwidth(1 << (10 if rehearse else 29))}
    for index in tasks:
        yield {"begin": index}
        for row in _rows(graph, TASKS[graph][index], placed, implementation, rehearse):
            yield {"row": vars(row)}
        _release()


def _rows(
    graph: str, task: Task, placed: Placed, implementation: str, rehearse: bool
) -> Iterator[Row]:
    try:
        if isinstance(task, Check):
            start = time.perf_counter()
            error, failure = check(task, placed, implementation)
            seconds = time.perf_counter() - start
            yield Row(graph, task.label, implementation, [], error, None, seconds, failure)
        else:
            yield from measure(
                graph, task, placed, implementation, REHEARSAL if rehearse else Pace()
            )
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
        yield Row(graph, task.label, implementation, failure=reason)


def _release() -> None:
    """Returns memory to the device, which must be alive for that; an error ends the worker."""
    jax.clear_caches()
    gc.collect()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()
    jnp.ones(1).sum().block_until_ready()


def main() -> None:
    """Reads the command line and writes to standard output."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.worker", description=__doc__)
    parser.add_argument("graph", choices=list(GRAPHS))
    parser.add_argument("tasks", type=int, nargs="+")
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    # Both libraries multiply matrices in float32, not in TF32.
    jax.config.update("jax_default_matmul_precision", "float32")
    implementation = usable_implementation(
        None if options.rehearse else "mosaic_gpu", jax.devices()[0]
    )
    start = time.perf_counter()
    made = make_graph(options.graph)
    size = Size(made.num_nodes, made.num_edges, 1, GRAPHS[options.graph].num_classes, 0)
    placed = place(made, implementation)
    del made
    ready = {"size": vars(size), "seconds": time.perf_counter() - start}
    print(json.dumps(ready), flush=True)
    # Nothing to read: the parent process has ended.
    if not sys.stdin.readline():
        return
    for line in work_on(options.graph, placed, implementation, options.tasks, options.rehearse):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
