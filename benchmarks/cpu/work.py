"""The least bytes and operations of a task, for the machine's limit next to its time."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.cpu.models import MODELS, Layer, Model
from benchmarks.cpu.tasks import Attention, Epoch, SpMM, Task

__all__ = ["Arrays", "Size", "Work", "arrays", "work"]

FLOAT = INDEX = 4


@dataclass(frozen=True)
class Size:
    """The size of a graph.

    Attributes:
      num_nodes, num_edges: directed edges.
      num_features: features of a node.
      num_classes: classes of a node.
      num_missing_loops: nodes without an edge to themselves.
    """

    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    num_missing_loops: int

    def with_loops(self) -> Size:
        """The size with the missing self-loops among the edges."""
        edges = self.num_edges + self.num_missing_loops
        return Size(self.num_nodes, edges, self.num_features, self.num_classes, 0)


@dataclass(frozen=True)
class Work:
    """The bytes and operations that a task needs.

    Attributes:
      gathered_bytes: moved if every edge reads its row anew (no reuse).
      single_bytes: moved if every byte moves once.
      operations: floating-point operations of matrix products.
    """

    gathered_bytes: int = 0
    single_bytes: int = 0
    operations: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.gathered_bytes + other.gathered_bytes,
            self.single_bytes + other.single_bytes,
            self.operations + other.operations,
        )


def work(task: Task, size: Size) -> Work | None:
    """Counts the work of a task.

    Args:
      task: the task.
      size: size of the graph.

    Returns:
      The work; for an epoch only that of its aggregations and matrix products. None for a task that
      measures the machine itself.
    """
    if isinstance(task, SpMM):
        return _sum(size, task.features, task.weighted)
    if isinstance(task, Attention):
        forward = _attention(size, task.heads, task.features)
        if not task.backward:
            return forward
        return forward + _attention_backward(size, task.heads, task.features)
    if isinstance(task, Epoch):
        return _epoch(MODELS[task.model], size)
    return None


@dataclass(frozen=True)
class Arrays:
    """Bytes of an op's inputs and outputs, without the graph."""

    inputs: int
    outputs: int


def arrays(task: Task, size: Size) -> Arrays | None:
    """The arrays of an op; None for other tasks."""
    row = FLOAT * size.num_nodes
    if isinstance(task, SpMM):
        return Arrays(row * task.features, row * task.features)
    if isinstance(task, Attention):
        values, logits = row * task.heads * task.features, row * 2 * task.heads
        if not task.backward:
            return Arrays(values + logits, values)
        # With the backward, the gradient of y comes in, and those of z, l and r go out.
        return Arrays(2 * values + logits, 2 * values + logits)
    return None


def _moved(size: Size, per_edge: int, per_node: int, per_gathered_node: int) -> Work:
    """Work of one pass over the edges, from numbers of 4 bytes.

    Args:
      size: size of the graph.
      per_edge: numbers that belong to an edge alone.
      per_node: numbers of a node that are read or written in order.
      per_gathered_node: numbers of a node that each of its edges reads.
    """
    indices = INDEX * (size.num_edges + size.num_nodes + 1)
    fixed = indices + FLOAT * (per_edge * size.num_edges + per_node * size.num_nodes)
    return Work(
        fixed + FLOAT * per_gathered_node * size.num_edges,
        fixed + FLOAT * per_gathered_node * size.num_nodes,
    )


def _sum(size: Size, features: int, weighted: bool = False) -> Work:
    return _moved(size, int(weighted), features, features)


def _attention(size: Size, heads: int, features: int) -> Work:
    """Gathers z and l; reads r, writes y."""
    return _moved(size, 0, heads * features + heads, heads * features + heads)


def _attention_backward(size: Size, heads: int, features: int) -> Work:
    """By sender: gathers g, r, log-sum-exp and <g, y>; reads z, writes the gradient of z.

    g is the gradient of y. That of an edge's logit is written once and read once more, by
    receiver; <g, y> reads both in order.
    """
    width = heads * features
    return _moved(size, 2 * heads, 4 * width + 4 * heads, width + 3 * heads)


def _epoch(model: Model, size: Size) -> Work:
    total = Work()
    edges = size if model.name == "sage" else size.with_loops()
    for index, layer in enumerate(model.layers(size.num_features, size.num_classes)):
        total += _products(model, layer, size.num_nodes, is_first=index == 0)
        if model.name == "gat":
            total += _attention(edges, model.heads, layer.out_features)
            total += _attention_backward(edges, model.heads, layer.out_features)
            continue
        # The first layer's sum of the graph's own features is equal in every epoch.
        if index or not model.aggregates_once:
            once = _sum(edges, min(layer.in_features, layer.out_features))
            total += once + once
    return total


def _products(model: Model, layer: Layer, num_nodes: int, is_first: bool) -> Work:
    """x W, the gradient of W, and the gradient of x unless x is the graph's own features."""
    matrices = 2 if model.name == "sage" else 1
    size = layer.in_features * model.heads * layer.out_features
    return Work(operations=(2 if is_first else 3) * matrices * 2 * num_nodes * size)
