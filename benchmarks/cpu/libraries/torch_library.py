"""torch alone: CSR times dense (MKL)."""
# pyright: reportMissingImports=false

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array

from benchmarks.cpu.inputs import Data, node_features
from benchmarks.cpu.libraries.torch_training import tensor
from benchmarks.cpu.tasks import SpMM, Task
from benchmarks.cpu.worker import Prepared


class Library:
    """`torch.sparse.mm` on a CSR tensor."""

    def load(self, data: Data) -> None:
        """Takes a graph."""
        self._data = data

    def lay_out(self, task: Task) -> None:
        """Makes the matrix of the task."""
        if not isinstance(task, SpMM):
            raise NotImplementedError("torch alone has no such task")
        data = self._data
        self._matrix = csr_tensor(data.senders, data.receivers, data.weights(task), data.num_nodes)

    def prepare(self, task: SpMM) -> Prepared:
        """Prepares a task."""
        matrix, x = self._matrix, tensor(node_features(self._data.num_nodes, task.features))

        @torch.no_grad()
        def compute() -> Any:
            return torch.sparse.mm(matrix, x)

        return Prepared(lambda: {"y": compute().numpy()}, compute, "torch.sparse CSR")


def csr_tensor(
    senders: np.ndarray, receivers: np.ndarray, values: np.ndarray, num_nodes: int
) -> Any:
    """A CSR matrix with a row per receiver, and 32-bit indices, which MKL takes as they are."""
    matrix = csr_array((values, (receivers, senders)), (num_nodes, num_nodes))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            tensor(matrix.indptr.astype(np.int32)),
            tensor(matrix.indices.astype(np.int32)),
            tensor(matrix.data),
            size=(num_nodes, num_nodes),
            check_invariants=False,
        )
