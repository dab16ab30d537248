"""scipy: CSR times dense, one thread."""

from __future__ import annotations

from scipy.sparse import csr_array

from benchmarks.cpu.inputs import Data, node_features
from benchmarks.cpu.tasks import SpMM, Task
from benchmarks.cpu.worker import Prepared


class Library:
    """`scipy.sparse.csr_array @ x`."""

    def load(self, data: Data) -> None:
        """Takes a graph."""
        self._data = data

    def lay_out(self, task: Task) -> None:
        """Makes the matrix of the task."""
        if not isinstance(task, SpMM):
            raise NotImplementedError("scipy has no such task")
        data = self._data
        edges, shape = (data.receivers, data.senders), (data.num_nodes, data.num_nodes)
        self._matrix = csr_array((data.weights(task), edges), shape)

    def prepare(self, task: SpMM) -> Prepared:
        """Prepares a task."""
        matrix, x = self._matrix, node_features(self._data.num_nodes, task.features)
        return Prepared(lambda: {"y": matrix @ x}, lambda: matrix @ x, "CSR, one thread")
