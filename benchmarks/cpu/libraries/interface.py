"""The interface between a worker and its library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from benchmarks.cpu.inputs import Data
from benchmarks.cpu.tasks import Task

__all__ = ["Library", "Prepared"]


@dataclass(frozen=True)
class Prepared:
    """A task that is ready to be timed.

    Attributes:
      results: computes the results that libraries are compared by, by name. Called once, before
        `run`; for training it makes the first two steps.
      run: does the task once; returns when it is done and none of its outputs is held.
      path: the chosen variant of the library, for the report.
      compile_seconds: time of compilation, where the library compiles.
    """

    results: Callable[[], Mapping[str, np.ndarray]]
    run: Callable[[], None]
    path: str = ""
    compile_seconds: float | None = None


class Library(Protocol):
    """A library in its worker process. Its constructor imports it."""

    def versions(self) -> Mapping[str, str]:
        """The versions of the packages that do the work."""
        ...

    def load(self, data: Data) -> None:
        """Loads a graph, instead of the one before."""
        ...

    def lay_out(self, task: Task) -> None:
        """Makes the formats of the graph that the task needs: they count as loaded data.

        Raises:
          NotImplementedError: the library has no such task.
        """
        ...

    def prepare(self, task: Task) -> Prepared:
        """Makes the task's inputs, compiles, and makes all choices."""
        ...
