"""The bandwidth of a device's memory, the work of a task, and the kernels' bytes in flight."""

from __future__ import annotations

import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from benchmarks.cpu.tasks import Attention, SpMM
from benchmarks.cpu.work import Size, Work, work
from benchmarks.gpu.plan import Layer, Message, Task
from pallas_kernels.teams import LANES, Launch, team_for

__all__ = ["Expectation", "copy_bandwidth", "expectation", "task_work"]

LATENCY = 0.8e-6
"""Seconds, about, of a read from the memory of an H200 under load; for `Expectation.share`."""


@dataclass(frozen=True)
class Expectation:
    """The reads and bytes that an aggregation has in flight, which bound its bandwidth.

    Attributes:
      reads, read_bytes: reads that a lane has in flight at once, and bytes of each.
      in_flight: bytes that all lanes have in flight.
    """

    reads: int
    read_bytes: int
    in_flight: int

    def share(self, bandwidth: float) -> float:
        """The share of a bandwidth that so many bytes in flight can use, at most 1."""
        return min(1.0, self.in_flight / (bandwidth * LATENCY))


def copy_bandwidth(elements: int) -> float:
    """Bytes per second, read and written, of the best of ten copies of an array.

    Args:
      elements: float32 numbers of the array.

    Returns:
      The bandwidth.
    """
    add = jax.jit(lambda x: x + 1)
    x = jax.block_until_ready(add(jnp.zeros(elements, jnp.float32)))
    best = float("inf")
    for _ in range(10):
        start = time.perf_counter()
        add(x).block_until_ready()
        best = min(best, time.perf_counter() - start)
    return 2 * x.nbytes / best


def task_work(task: Task, size: Size) -> Work | None:
    """Bytes of the aggregation, without a layer's matrix product; None where they are not counted.

    Args:
      task: the task.
      size: size of the graph.
    """
    if isinstance(task, Layer):
        if task.kind == "gat":
            return work(Attention(task.heads, task.features, task.backward), size)
        once = work(SpMM(task.features), size)
        return once + once if once and task.backward else once
    return work(task, size) if isinstance(task, SpMM) else None


def expectation(task: Task) -> Expectation | None:
    """Reads in flight of a task's forward kernel; None where no kernel is timed."""
    if isinstance(task, SpMM):
        team = team_for(task.features, 4)
    elif isinstance(task, Layer | Message):
        is_sum = task.kind == "gcn" if isinstance(task, Layer) else task.op in ("mean", "sddmm")
        tables = 1 if is_sum else 2
        team = team_for(task.features, 4, heads=task.heads, tables=tables)
    else:
        return None
    reads, read_bytes = team.ahead * team.steps, team.count * 4
    return Expectation(reads, read_bytes, reads * read_bytes * LANES * Launch().workers)
