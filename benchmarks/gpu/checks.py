"""Checks of kernels and their gradients against NumPy or the portable implementation."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

import jaxgraph as jg
from benchmarks.cpu.comparing import relative_error
from benchmarks.gpu.graphs import Placed
from benchmarks.gpu.plan import Check
from benchmarks.gpu.programs import draw, program

TOLERANCES = {"float32": 3e-5, "bfloat16": 2e-2, "float16": 2e-3}
"""Largest relative error by dtype; sums accumulate in float32, results are rounded once."""


def check(task: Check, placed: Placed, implementation: str) -> tuple[float | None, str]:
    """Runs a check.

    Args:
      task: the check.
      placed: the graph.
      implementation: the checked implementation.

    Returns:
      The relative error, or None where the check has none, and the fault, "" for none.
    """
    if task.against == "numpy":
        found = next(
            each
            for each in jg.ops.implementations()
            if (each.op, each.name) == (task.op, implementation)
        )
        line = found.check()
        return None, "" if line.startswith("ok") else line
    function, shapes = program(task, placed, implementation)
    arrays = draw(shapes, len(task.label), task.dtype)
    run = jax.jit(function)
    first = _numbers(run(placed.block, *arrays))
    again = _numbers(run(placed.block, *arrays))
    reference, _ = program(task, placed, "xla")
    expected = _numbers(jax.jit(reference)(placed.block, *arrays))
    if any(not np.array_equal(first[name], again[name], equal_nan=True) for name in first):
        return None, "two runs differ"
    error = relative_error(first, expected)
    tolerance = TOLERANCES[task.dtype]
    wrong = f"off by {error:.1e}; {tolerance:.0e} is allowed"
    return error, "" if error <= tolerance else wrong


def _numbers(outputs: Sequence[jax.Array]) -> dict[str, np.ndarray]:
    return {str(index): np.asarray(each, np.float64) for index, each in enumerate(outputs)}
