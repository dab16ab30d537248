"""The ops in float64: the reference for every library's results."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from scipy.sparse import csr_array

from benchmarks.cpu.comparing import Expected
from benchmarks.cpu.inputs import Data, attention_inputs, node_features
from benchmarks.cpu.tasks import ATTENTION_SLOPE, Attention, SpMM, Task

__all__ = ["reference"]

EDGES_AT_ONCE = 1 << 14
"""Edges whose rows are gathered together, few enough to stay in a cache."""


def reference(task: Task, data: Data | None) -> dict[str, Expected] | None:
    """The results of an op on a graph.

    Args:
      task: the task.
      data: the graph; None for tasks that need none.

    Returns:
      Arrays by the names that libraries use; None where the task is no op.
    """
    if data is None:
        return None
    if isinstance(task, SpMM):
        return _spmm(data, task)
    if isinstance(task, Attention):
        return _attention(data, task)
    return None


def _spmm(data: Data, task: SpMM) -> dict[str, Expected]:
    weights = data.edge_weight if task.weighted else np.ones_like(data.edge_weight)
    edges, shape = (data.receivers, data.senders), (data.num_nodes, data.num_nodes)
    matrix = csr_array((weights.astype(np.float64), edges), shape)
    x = node_features(data.num_nodes, task.features).astype(np.float64)
    return {"y": _product(matrix, x)}


def _product(matrix: csr_array, x: np.ndarray) -> Expected:
    # Its own `abs` would merge equal edges, in place.
    absolute = matrix.copy()
    absolute.data = np.abs(absolute.data)
    return Expected(matrix @ x, absolute @ np.abs(x))


def _attention(data: Data, task: Attention) -> dict[str, Expected]:
    inputs = attention_inputs(data.num_nodes, task)
    by_receiver = np.argsort(data.receivers, kind="stable")
    edges = _Edges(data.senders[by_receiver], data.receivers[by_receiver], data.num_nodes)
    rows = (inputs.values, inputs.gradient, inputs.sender_logits, inputs.receiver_logits)

    def attend(head: int) -> dict[str, Expected]:
        numbers = (each[:, head].astype(np.float64) for each in rows)
        return edges.attend(*numbers, backward=task.backward)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        heads = list(pool.map(attend, range(task.heads)))
    return {name: Expected.stack([head[name] for head in heads]) for name in heads[0]}


class _Edges:
    """Edges in the order of their receivers.

    Args:
      senders, receivers: int32 [edges].
      num_nodes: number of nodes.
    """

    def __init__(self, senders: np.ndarray, receivers: np.ndarray, num_nodes: int) -> None:
        self._senders, self._receivers, self._num_nodes = senders, receivers, num_nodes
        self._starts = np.searchsorted(receivers, np.arange(num_nodes + 1))

    def attend(
        self,
        values: np.ndarray,
        gradient: np.ndarray,
        sender_logits: np.ndarray,
        receiver_logits: np.ndarray,
        *,
        backward: bool,
    ) -> dict[str, Expected]:
        """One head of attention, as `Attention` defines it.

        Args:
          values: z, [nodes, features].
          gradient: gradient of y, [nodes, features].
          sender_logits, receiver_logits: l and r, [nodes].
          backward: whether gradients are computed too.

        Returns:
          y and, if requested, the gradients of z, l and r under these names.
        """
        logits = sender_logits[self._senders] + receiver_logits[self._receivers]
        slopes = np.where(logits >= 0, 1.0, ATTENTION_SLOPE)
        # In float64, exponentials of these logits need no maximum.
        weights = np.exp(slopes * logits)
        weights /= self._sum(weights, self._receivers)[self._receivers]
        matrix = self._matrix(weights)
        results = {"y": _product(matrix, values)}
        if not backward:
            return results
        inner = self._inner_products(values, gradient)
        mean = self._sum(weights * inner, self._receivers)[self._receivers]
        by_logit = weights * slopes * (inner - mean)
        # Terms that cancel in inner - mean count as terms of the sum too.
        terms = weights * slopes * (np.abs(inner) + np.abs(mean))
        return results | {
            "z": _product(matrix.T, gradient),
            "l": Expected(self._sum(by_logit, self._senders), self._sum(terms, self._senders)),
            "r": Expected(self._sum(by_logit, self._receivers), self._sum(terms, self._receivers)),
        }

    def _sum(self, numbers: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        return np.bincount(nodes, numbers, self._num_nodes)

    def _matrix(self, weights: np.ndarray) -> csr_array:
        shape = (self._num_nodes, self._num_nodes)
        return csr_array((weights, self._senders, self._starts), shape)

    def _inner_products(self, values: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """<g_i, z_j> of every edge j -> i, [edges]."""
        inner = np.empty(self._senders.size)
        for first in range(0, inner.size, EDGES_AT_ONCE):
            block = slice(first, first + EDGES_AT_ONCE)
            rows = gradient[self._receivers[block]], values[self._senders[block]]
            inner[block] = np.einsum("ef,ef->e", *rows)
        return inner
