"""torch alone: CSR times dense (MKL), and the limits of memory and cores."""
# pyright: reportMissingImports=false

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array

from benchmarks.cpu.inputs import Data, node_features
from benchmarks.cpu.libraries.interface import Prepared
from benchmarks.cpu.libraries.torch_training import tensor
from benchmarks.cpu.tasks import Product, SpMM, Task, Triad

__all__ = ["TorchLibrary", "csr_tensor"]


class TorchLibrary:
    """`torch.sparse.mm` on a CSR tensor."""

    def versions(self) -> Mapping[str, str]:
        """The versions of the packages that do the work."""
        return {"torch": torch.__version__}

    def load(self, data: Data) -> None:
        """Loads a graph."""
        self._data = data
        self._matrix: Any = None

    def lay_out(self, task: Task) -> None:
        """Makes the matrix of the task; see `Library.lay_out`."""
        self._matrix = None
        if isinstance(task, SpMM):
            data = self._data
            values = data.edge_weight if task.weighted else np.ones_like(data.edge_weight)
            self._matrix = csr_tensor(data.senders, data.receivers, values, data.num_nodes)
        elif not isinstance(task, Triad | Product):
            raise NotImplementedError("torch alone has no such task")

    def prepare(self, task: Task) -> Prepared:
        """Prepares a task."""
        if isinstance(task, Triad):
            return _triad(task)
        if isinstance(task, Product):
            return _product(task)
        assert isinstance(task, SpMM)
        matrix, x = self._matrix, tensor(node_features(self._data.num_nodes, task.features))

        def run() -> None:
            with torch.no_grad():
                torch.sparse.mm(matrix, x)

        return Prepared(lambda: {"y": torch.sparse.mm(matrix, x).numpy()}, run, "torch.sparse CSR")


def csr_tensor(
    senders: np.ndarray, receivers: np.ndarray, values: np.ndarray, num_nodes: int
) -> Any:
    """A matrix with a row per receiver.

    Args:
      senders, receivers: int32 [edges].
      values: float32 [edges].
      num_nodes: rows and columns.

    Returns:
      A CSR tensor with 32-bit indices, which MKL accepts without a conversion.
    """
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


def _triad(task: Triad) -> Prepared:
    a, b, c = (torch.full((task.elements,), value) for value in (0.0, 1.0, 2.0))

    def run() -> None:
        torch.add(b, c, alpha=3.0, out=a)

    def results() -> dict[str, np.ndarray]:
        run()
        return {"a": a[:16].numpy()}

    return Prepared(results, run)


def _product(task: Product) -> Prepared:
    a = tensor(node_features(task.size, task.size))

    def run() -> None:
        torch.mm(a, a)

    return Prepared(lambda: {"c": torch.mm(a, a).numpy()}, run)
