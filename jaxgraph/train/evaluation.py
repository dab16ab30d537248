"""A model's outputs on a sharded graph, and their loss and metrics."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flax import nnx

from jaxgraph.parallel import ShardedGraph
from jaxgraph.train.arguments import checked_graph, checked_graphs, checked_task
from jaxgraph.train.objective import split_model
from jaxgraph.train.passes import outputs_of, passes_over
from jaxgraph.train.regression import Moments
from jaxgraph.train.state import abstract_variables, place_variables
from jaxgraph.train.task import SPLITS, Sums, Task

if TYPE_CHECKING:
    from jaxgraph.graph import Graph


def add_sums(sums: Sequence[Mapping[str, Sums]]) -> dict[str, Sums]:
    """Adds up the sums of several graphs, split by split."""
    splits = dict.fromkeys(split for of_graph in sums for split in of_graph)

    def added(*parts: Any) -> Any:
        return functools.reduce(operator.add, parts)

    def is_whole(part: Any) -> bool:
        return isinstance(part, Moments)

    return {
        split: jax.tree.map(added, *(s[split] for s in sums if split in s), is_leaf=is_whole)
        for split in splits
    }


def evaluate(
    model: nnx.Module,
    sharded: Graph | ShardedGraph | Sequence[Graph | ShardedGraph],
    *,
    task: Task | None = None,
) -> dict[str, dict[str, float]]:
    """Computes loss and metrics of a model on the splits of a graph, without dropout.

    Args:
      model: a module called as `model(shard, x, key=None, train=False)`.
      sharded: the graph, or several for metrics over all of them; a `Graph` is sharded over one
        device.
      task: the task to measure; None: `NodeClassification()`.

    Returns:
      Metrics by name for each of "train", "val" and "test" with a mask.

    Raises:
      ValueError: an argument is of the wrong kind, or model, graph and task do not fit together.
    """
    task = checked_task(task)
    graphs = checked_graphs(model, sharded, task)
    split = place_variables(split_model(model), graphs[0])
    sums = [passes_over(graph).sums(split, task) for graph in graphs]
    return as_numbers(jax.device_get(_metrics(sums, task)))


def as_numbers(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Converts metrics on the host to Python numbers, with splits in their usual order."""
    return {
        split: {name: float(value) for name, value in metrics[split].items()}
        for split in SPLITS
        if split in metrics
    }


def predict(model: nnx.Module, sharded: Graph | ShardedGraph) -> np.ndarray:
    """Computes the outputs of a model for every node, without dropout.

    Args:
      model: a module called as `model(shard, x, key=None, train=False)`, returning [rows, out].
      sharded: the graph.

    Returns:
      float [num_nodes, out] in the order of the graph, in every process.

    Raises:
      ValueError: an argument is of the wrong kind, or the model does not fit the graph.
    """
    sharded = checked_graph(model, sharded)
    return passes_over(sharded).outputs(place_variables(split_model(model), sharded))


def compile_inference(model: nnx.Module, sharded: ShardedGraph) -> jax.stages.Compiled:
    """Compiles the program of `predict`, without running it or reading data.

    Args:
      model: a module called as `model(shard, x, key=None, train=False)`, returning [rows, out].
      sharded: the graph; its leaves may be `jax.ShapeDtypeStruct`.

    Returns:
      The compiled program, for `jaxgraph.analysis.traffic` and its own `memory_analysis()`.

    Raises:
      ValueError: an argument is of the wrong kind, or the model does not fit the graph.
    """
    sharded = checked_graph(model, sharded, abstract=True)
    return outputs_of.lower(abstract_variables(split_model(model), sharded), sharded).compile()


@partial(jax.jit, static_argnames="task")
def _metrics(sums: list[Mapping[str, Sums]], task: Task) -> dict[str, Mapping[str, jax.Array]]:
    return {split: task.metrics(values) for split, values in add_sums(sums).items()}
