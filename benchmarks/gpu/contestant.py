"""Contestants of a task: calls that start a run, wait for it, and report its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from benchmarks.gpu.graphs import Placed
from benchmarks.gpu.plan import Task
from benchmarks.gpu.programs import program

OURS = "jaxgraph"
SHOWN_ROWS = 4096
"""Rows of each result that are compared."""


@dataclass(frozen=True)
class Contestant:
    """A library or implementation that does a task.

    Attributes:
      take: takes over arrays on the device, without copying where possible.
      call: starts a run on the result of `take`; its own result may not be ready.
      wait: waits until all runs are done, given the last result.
      numbers: the first rows of the results.
      memory: bytes that a run needs on the device, with the graph and all arrays, given the result
        of `take`.
    """

    take: Callable[[Sequence[jax.Array]], Any]
    call: Callable[[Any], Any]
    wait: Callable[[Any], None]
    numbers: Callable[[Any], dict[str, np.ndarray]]
    memory: Callable[[Any], int | None]


def jaxgraph_contestant(task: Task, placed: Placed, implementation: str) -> Contestant:
    """The library of this repository, compiled.

    Args:
      task: the task.
      placed: the graph.
      implementation: implementation of the ops.

    Returns:
      The contestant; it shows only the result and its gradients in the first array.
    """
    function, shapes = program(task, placed, implementation)
    arrays = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    compiled = jax.jit(function).lower(placed.block, *arrays).compile()

    def memory(_: Any) -> int | None:
        found = compiled.memory_analysis()
        if found is None:
            return None
        sizes = (found.argument_size_in_bytes, found.output_size_in_bytes, found.temp_size_in_bytes)
        return sum(sizes) - found.alias_size_in_bytes

    def numbers(outputs: Sequence[jax.Array]) -> dict[str, np.ndarray]:
        named = zip(("y", "x"), outputs, strict=False)
        return {name: np.asarray(output[:SHOWN_ROWS]) for name, output in named}

    return Contestant(
        take=lambda arrays: arrays,
        call=lambda arrays: compiled(placed.block, *arrays),
        wait=lambda outputs: jax.block_until_ready(outputs) and None,
        numbers=numbers,
        memory=memory,
    )
