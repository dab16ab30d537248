"""Loss, gradient, sums and outputs of a model on a streamed graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from jaxgraph.parallel import Shard
from jaxgraph.parallel.streaming.function import StreamedFunction
from jaxgraph.parallel.streaming.graph import StreamedGraph
from jaxgraph.train.objective import Split, objective, rows_of_model, split_sums
from jaxgraph.train.task import Sums, Task


def gradient_function(
    graph: StreamedGraph, split: Split, key: Any, task: Task, train: bool
) -> StreamedFunction:
    """`(params, statistics, key) -> (loss, sums, statistics)`, and the gradient."""
    graphdef, *variables = split

    def function(
        part: Shard, params: nnx.State, statistics: nnx.State, key: jax.Array
    ) -> tuple[jax.Array, Sums, nnx.State]:
        loss, (sums, new) = objective(Split(graphdef, params, statistics), part, key, task, train)
        return loss, sums, new

    name = ("gradient", graphdef, task, train)
    return _cached(graph, name, function, (*variables, key), differentiated=True)


def streamed_gradient(
    graph: StreamedGraph, split: Split, key: jax.Array, task: Task, train: bool
) -> tuple[jax.Array, Sums, nnx.State, nnx.State]:
    """As `jaxgraph.train.objective.gradients`, in a pass over the parts."""
    run = gradient_function(graph, split, key, task, train)
    values, grads = run.value_and_grad(*split[1:], key)
    return *values, grads


def evaluation_function(graph: StreamedGraph, split: Split, task: Task) -> StreamedFunction:
    """`(params, statistics) -> sums` of each split."""
    graphdef, *variables = split

    def function(part: Shard, *variables: nnx.State) -> dict[str, Sums]:
        return split_sums(Split(graphdef, *variables), part, task)

    return _cached(graph, ("evaluation", graphdef, task), function, variables)


def streamed_outputs(graph: StreamedGraph, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Ids of the graph's nodes, int64 [nodes], and their outputs, [nodes, out]."""
    graphdef, *variables = split

    def function(part: Shard, *variables: nnx.State) -> jax.Array:
        return rows_of_model(Split(graphdef, *variables), part)

    run = _cached(graph, ("outputs", graphdef), function, variables, outputs="rows")
    outputs: Any = run(*variables)
    ids, places = graph.parts.nodes()
    rows = outputs.reshape(-1, *outputs.shape[2:])[places]
    if jax.process_count() == 1:
        return ids, rows
    from jax.experimental import multihost_utils

    # Of all processes, which have different numbers of nodes.
    missing = int(multihost_utils.process_allgather(np.array(len(ids))).max()) - len(ids)
    padded = (
        np.pad(ids.astype(np.int32), (0, missing), constant_values=-1),
        np.pad(rows, ((0, missing), *((0, 0),) * (rows.ndim - 1))),
    )
    found, of_nodes = multihost_utils.process_allgather(padded, tiled=True)
    return found[found >= 0].astype(np.int64), of_nodes[found >= 0]


def _cached(
    graph: StreamedGraph,
    key: Any,
    function: Callable[..., Any],
    shared: Sequence[Any],
    **options: Any,
) -> StreamedFunction:
    """The function, cut once for arguments of these types under these settings."""
    leaves, structure = jax.tree.flatten(tuple(shared))
    types = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
    config: Any = jax.config
    settings = config.jax_enable_x64, config.jax_default_matmul_precision
    return graph.parts.cached(
        (key, structure, types, settings),
        lambda: StreamedFunction(function, graph, shared, **options),
    )
