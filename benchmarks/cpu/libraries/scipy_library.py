"""scipy: CSR times dense, one thread."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import scipy
from scipy.sparse import csr_array

from benchmarks.cpu.inputs import Data, node_features
from benchmarks.cpu.libraries.interface import Prepared
from benchmarks.cpu.tasks import SpMM, Task

__all__ = ["SciPyLibrary"]


class SciPyLibrary:
    """`scipy.sparse.csr_array @ x`."""

    def versions(self) -> Mapping[str, str]:
        """The versions of the packages that do the work."""
        return {"scipy": scipy.__version__, "numpy": np.__version__}

    def load(self, data: Data) -> None:
        """Loads a graph."""
        self._data = data
        self._matrix: csr_array | None = None

    def lay_out(self, task: Task) -> None:
        """Makes the matrix of the task; see `Library.lay_out`."""
        if not isinstance(task, SpMM):
            raise NotImplementedError("scipy has no such task")
        data = self._data
        weights = data.edge_weight if task.weighted else np.ones_like(data.edge_weight)
        shape = (data.num_nodes, data.num_nodes)
        self._matrix = csr_array((weights, (data.receivers, data.senders)), shape)

    def prepare(self, task: Task) -> Prepared:
        """Prepares a task."""
        assert isinstance(task, SpMM)
        matrix, x = self._matrix, node_features(self._data.num_nodes, task.features)

        def compute() -> np.ndarray:
            return matrix @ x

        def run() -> None:
            compute()

        return Prepared(lambda: {"y": compute()}, run, "CSR, one thread")
