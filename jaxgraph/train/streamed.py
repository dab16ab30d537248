"""Loss, gradient, sums and outputs of a model on a streamed graph."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from flax import nnx

from jaxgraph.parallel import Shard
from jaxgraph.parallel.streaming.function import StreamedFunction
from jaxgraph.parallel.streaming.graph import StreamedGraph
from jaxgraph.train.objective import objective, rows_of_model, split_sums
from jaxgraph.train.task import Sums, Task

__all__ = [
    "evaluation_function",
    "gradient_function",
    "of_all_processes",
    "streamed_evaluation",
    "streamed_gradient",
    "streamed_outputs",
]

Shared = tuple[Any, ...]


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
    run = gradient_function(graph, graphdef, (params, statistics, key), task, train)
    (loss, sums, new), grads = run.value_and_grad(params, statistics, key)
    return loss, sums, new, grads


def gradient_function(
    graph: StreamedGraph, graphdef: nnx.GraphDef, shared: Shared, task: Task, train: bool
) -> StreamedFunction:
    """`(params, statistics, key) -> (loss, sums, statistics)`, and the gradient.

    Args:
      graph, graphdef, task, train: as for `streamed_gradient`.
      shared: the arguments, or their shapes.
    """

    def function(
        part: Shard, params: nnx.State, statistics: nnx.State, key: jax.Array
    ) -> tuple[jax.Array, Sums, nnx.State]:
        loss, (sums, new) = objective(graphdef, params, statistics, part, key, task, train)
        return loss, sums, new

    return graph.parts.cached(
        ("gradient", graphdef, task, train, _types(shared)),
        lambda: StreamedFunction(function, graph, shared, differentiated=True),
    )


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
    return evaluation_function(graph, graphdef, (params, statistics), task)(params, statistics)


def evaluation_function(
    graph: StreamedGraph, graphdef: nnx.GraphDef, shared: Shared, task: Task
) -> StreamedFunction:
    """`(params, statistics) -> sums`.

    Args:
      graph, graphdef, task: as for `streamed_evaluation`.
      shared: the arguments, or their shapes.
    """

    def function(part: Shard, params: nnx.State, statistics: nnx.State) -> dict[str, Sums]:
        return split_sums(graphdef, params, statistics, part, task)

    return graph.parts.cached(
        ("evaluation", graphdef, task, _types(shared)),
        lambda: StreamedFunction(function, graph, shared),
    )


def streamed_outputs(
    graph: StreamedGraph, graphdef: nnx.GraphDef, params: nnx.State, statistics: nnx.State
) -> tuple[np.ndarray, np.ndarray]:
    """Computes the outputs of a model on a streamed graph.

    Args:
      graph: the graph.
      graphdef, params, statistics: the model.

    Returns:
      Ids of the nodes of this process, int64 [nodes], and their outputs, [nodes, out].
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


def of_all_processes(ids: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gathers `streamed_outputs` of all processes, in every one.

    Args:
      ids: int64 [own nodes].
      rows: [own nodes, ...].

    Returns:
      int64 [nodes] and [nodes, ...].
    """
    if jax.process_count() == 1:
        return ids, rows
    from jax.experimental import multihost_utils

    counts = multihost_utils.process_allgather(np.array(len(ids)))
    missing = int(counts.max()) - len(ids)
    padded = (
        np.pad(ids.astype(np.int32), (0, missing), constant_values=-1),
        np.pad(rows, ((0, missing), *((0, 0),) * (rows.ndim - 1))),
    )
    found, of_nodes = multihost_utils.process_allgather(padded, tiled=True)
    return found[found >= 0].astype(np.int64), of_nodes[found >= 0]


def _types(tree: Any) -> Any:
    """The structure, shapes and types of arrays, and the settings under which they are traced."""
    leaves, structure = jax.tree.flatten(tree)
    types = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
    config: Any = jax.config
    return structure, types, config.jax_enable_x64, config.jax_default_matmul_precision
