"""The passes of a model over a graph, and what they find: loss, gradient, metrics and outputs.

A pass runs on the devices that hold the graph, or part by part where it is streamed.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flax import nnx

from jaxgraph.parallel import Shard, ShardedGraph, gather_rows, spmd
from jaxgraph.parallel.spmd import collect_rows
from jaxgraph.parallel.streaming.function import StreamedFunction
from jaxgraph.parallel.streaming.graph import StreamedGraph
from jaxgraph.seeds import checked_seed
from jaxgraph.train.arguments import check_training, checked_graph, checked_graphs, checked_task
from jaxgraph.train.fit_state import abstract_variables, place_variables, random_key
from jaxgraph.train.latest_programs import LatestPrograms
from jaxgraph.train.objective import (
    Split,
    gradients,
    objective,
    rows_of_model,
    split_model,
    split_sums,
    sums_of_splits,
)
from jaxgraph.train.task import SPLITS, Merged, Sums, Task

if TYPE_CHECKING:
    from jaxgraph.graph import Graph
    from jaxgraph.typed_graph import TypedGraph

    GivenGraph = Graph | TypedGraph | ShardedGraph


def loss_and_grad(
    model: nnx.Module,
    sharded: GivenGraph,
    *,
    seed: int = 0,
    train: bool = False,
    task: Task | None = None,
) -> tuple[jax.Array, nnx.State]:
    """Computes the training loss of a model and its gradient; the model does not change.

    Args:
      model: a module called as `model(shard, x, key=key, train=train)`.
      sharded: the graph.
      seed: seed of the random key, `jax.random.key(seed)`, from 0 to 2**32 - 1.
      train: whether dropout is on and BatchNorm normalises by this graph.
      task: the task that defines the loss; None: `NodeClassification()`.

    Returns:
      The loss, a scalar, and the gradient, a pytree of the parameters; rows of a `NodeEmbedding`
      are in the graph's order.

    Raises:
      ValueError: an argument is of the wrong kind, or model, graph and task do not fit together.
    """
    task = checked_task(task)
    sharded = checked_graph(model, sharded, task, train=True)
    check_training(task, [sharded])
    key = random_key(checked_seed("seed", seed), sharded)
    split = place_variables(split_model(model), sharded)
    return passes_over(sharded).loss_and_grad(split, key, task, bool(train))


def add_sums(sums: Sequence[Mapping[str, Sums]]) -> dict[str, Sums]:
    """Adds up the sums of several graphs, split by split."""
    splits = dict.fromkeys(split for of_graph in sums for split in of_graph)

    def added(*parts: Any) -> Any:
        return functools.reduce(operator.add, parts)

    def is_whole(part: Any) -> bool:
        return isinstance(part, Merged)

    return {
        split: jax.tree.map(added, *(s[split] for s in sums if split in s), is_leaf=is_whole)
        for split in splits
    }


def evaluate(
    model: nnx.Module,
    sharded: GivenGraph | Sequence[GivenGraph],
    *,
    task: Task | None = None,
) -> dict[str, dict[str, float]]:
    """Computes loss and metrics of a model on the splits of a graph, without dropout.

    Args:
      model: a module called as `model(shard, x, key=None, train=False)`.
      sharded: the graph, or several for metrics over all of them; a `Graph` or `TypedGraph` is
        sharded over one device.
      task: the task to measure; None: `NodeClassification()`.

    Returns:
      Metrics by name for each of "train", "val" and "test" with a mask that the task evaluates.

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


def predict(model: nnx.Module, sharded: GivenGraph) -> np.ndarray:
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


def passes_over(graph: ShardedGraph) -> Passes:
    """The passes over a graph, which depend on where its parts are."""
    return StreamedPasses(graph) if isinstance(graph, StreamedGraph) else Passes(graph)


class Passes:
    """Passes over a graph that its devices hold."""

    def __init__(self, graph: ShardedGraph) -> None:
        self.graph = graph

    def loss_and_grad(
        self, split: Split, key: jax.Array, task: Task, train: bool
    ) -> tuple[jax.Array, nnx.State]:
        """The training loss, and its gradient with rows of nodes in the graph's order."""
        loss, grads = _loss_and_grad(split, self.graph, key, task, train)
        return loss, collect_rows(grads, self.graph)

    def sums(self, split: Split, task: Task) -> dict[str, Sums]:
        """A task's sums for every split that it evaluates, without dropout."""
        return _sums(split, self.graph, task)

    def outputs(self, split: Split) -> np.ndarray:
        """The model's outputs, [nodes, out], in the graph's order."""
        return gather_rows(outputs_of(split, self.graph), self.graph)


class StreamedPasses(Passes):
    """Passes over a graph whose parts visit the devices."""

    graph: StreamedGraph

    def loss_and_grad(
        self, split: Split, key: jax.Array, task: Task, train: bool
    ) -> tuple[jax.Array, nnx.State]:
        """See `Passes.loss_and_grad`."""
        run = self.gradient(split, key, task, train)
        (loss, *_), grads = run.value_and_grad(*split[1:], key)
        return loss, grads

    def sums(self, split: Split, task: Task) -> dict[str, Sums]:
        """See `Passes.sums`."""
        return self.evaluation(split, task)(*split[1:])

    def outputs(self, split: Split) -> np.ndarray:
        """See `Passes.outputs`."""
        run = self._cached("outputs", split, rows_of_model, outputs="rows")
        return self.graph.gather_rows(run(*split[1:]))

    def gradient(self, split: Split, key: Any, task: Task, train: bool) -> StreamedFunction:
        """`(params, statistics, key) -> (loss, sums, statistics)`, and the gradient."""

        def function(
            split: Split, part: Shard, key: jax.Array
        ) -> tuple[jax.Array, Sums, nnx.State]:
            loss, (sums, new) = objective(split, part, key, task, train)
            return loss, sums, new

        name = "gradient", task, train
        return self._cached(name, split, function, key, differentiated=True)

    def evaluation(self, split: Split, task: Task) -> StreamedFunction:
        """`(params, statistics) -> sums` of each split."""
        return self._cached(("evaluation", task), split, partial(split_sums, task=task))

    def _cached(
        self,
        name: Any,
        split: Split,
        function: Callable[..., Any],
        *further: Any,
        **options: Any,
    ) -> StreamedFunction:
        """`(split, part, *further) -> outputs`, cut once for types and settings."""
        graphdef, *variables = split

        def of_part(part: Shard, params: nnx.State, statistics: nnx.State, *further: Any) -> Any:
            return function(Split(graphdef, params, statistics), part, *further)

        shared = (*variables, *further)
        leaves, structure = jax.tree.flatten(shared)
        types = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        config: Any = jax.config
        settings = config.jax_enable_x64, config.jax_default_matmul_precision
        return self.graph.parts.cached(
            (name, graphdef, structure, types, settings),
            lambda: StreamedFunction(of_part, self.graph, shared, **options),
        )


@LatestPrograms
def outputs_of(split: Split, sharded: ShardedGraph) -> jax.Array:
    """The model's outputs, rows of all shards."""
    return spmd(rows_of_model, outputs="rows")(split, sharded)


_sums = LatestPrograms(sums_of_splits, static_argnums=(2,))


@partial(LatestPrograms, static_argnums=(3, 4))
def _loss_and_grad(*arguments: Any) -> tuple[jax.Array, nnx.State]:
    loss, _, _, grads = gradients(*arguments)
    return loss, grads


@partial(jax.jit, static_argnames="task")
def _metrics(sums: list[Mapping[str, Sums]], task: Task) -> dict[str, Mapping[str, jax.Array]]:
    return {split: task.metrics(values) for split, values in add_sums(sums).items()}
