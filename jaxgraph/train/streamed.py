"""Loss, gradient, sums and outputs of a model on a streamed graph."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from flax import nnx

from jaxgraph.parallel import Shard
from jaxgraph.parallel.streaming.execution import StreamedFunction
from jaxgraph.parallel.streaming.graph import StreamedGraph
from jaxgraph.train.objective import objective, rows_of_model, split_sums
from jaxgraph.train.task import Sums, Task

__all__ = ["streamed_evaluation", "streamed_gradient", "streamed_outputs"]


def streamed_gradient(
    graph: StreamedGraph,
    graphdef: nnx.GraphDef,
    params: nnx.State,
    statistics: nnx.State,
    key: jax.Array,
    task: Task,
    train: bool,
) -> tuple[jax.Array, Sums, nnx.State, nnx.State]:
    """Computes the training loss of a streamed graph and its gradient.

    Args:
      graph: the graph.
      graphdef, params, statistics, key, task, train: as for `jaxgraph.train.objective.gradients`.

    Returns:
      As `jaxgraph.train.objective.gradients`.
    """

    def function(
        part: Shard, params: nnx.State, statistics: nnx.State, key: jax.Array
    ) -> tuple[jax.Array, Sums, nnx.State]:
        loss, (sums, new) = objective(graphdef, params, statistics, part, key, task, train)
        return loss, sums, new

    shared = (params, statistics, key)
    run = graph.parts.cached(
        ("gradient", graphdef, task, train, _types(shared)),
        lambda: StreamedFunction(function, graph, shared, differentiated=True),
    )
    (loss, sums, new), grads = run.value_and_grad(*shared)
    return loss, sums, new, grads


def streamed_evaluation(
    graph: StreamedGraph,
    graphdef: nnx.GraphDef,
    params: nnx.State,
    statistics: nnx.State,
    task: Task,
) -> dict[str, Sums]:
    """Computes a task's sums for every split of a streamed graph in one inference pass.

    Args:
      graph: the graph.
      graphdef, params, statistics, task: as for `jaxgraph.train.evaluation.evaluation_sums`.

    Returns:
      The sums over all parts, for each split.
    """

    def function(part: Shard, params: nnx.State, statistics: nnx.State) -> dict[str, Sums]:
        return split_sums(graphdef, params, statistics, part, task)

    run = graph.parts.cached(
        ("evaluation", graphdef, task, _types((params, statistics))),
        lambda: StreamedFunction(function, graph, (params, statistics)),
    )
    return run(params, statistics)


def streamed_outputs(
    graph: StreamedGraph, graphdef: nnx.GraphDef, params: nnx.State, statistics: nnx.State
) -> tuple[np.ndarray, np.ndarray]:
    """Computes the outputs of a model on a streamed graph.

    Args:
      graph: the graph.
      graphdef, params, statistics: the model.

    Returns:
      Ids of nodes, int64 [nodes], and their outputs, [nodes, out].
    """

    def function(part: Shard, params: nnx.State, statistics: nnx.State) -> jax.Array:
        return rows_of_model(graphdef, params, statistics, part)

    run: Any = graph.parts.cached(
        ("outputs", graphdef, _types((params, statistics))),
        lambda: StreamedFunction(function, graph, (params, statistics), outputs="rows"),
    )
    outputs = run(params, statistics)
    ids, rows = graph.parts.nodes()
    return ids, outputs.reshape(-1, *outputs.shape[2:])[rows]


def _types(tree: Any) -> Any:
    """The structure, shapes and types of arrays, and the settings under which they are traced."""
    leaves, structure = jax.tree.flatten(tree)
    types = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
    config: Any = jax.config
    return structure, types, config.jax_enable_x64, config.jax_default_matmul_precision
