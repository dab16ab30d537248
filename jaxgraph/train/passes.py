"""The passes of a model over a graph: on the devices that hold it, or part by part."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx

from jaxgraph.parallel import Shard, ShardedGraph, gather_rows, spmd
from jaxgraph.parallel.spmd import collect_rows, in_order
from jaxgraph.parallel.streaming.function import StreamedFunction
from jaxgraph.parallel.streaming.graph import StreamedGraph
from jaxgraph.train.latest_programs import LatestPrograms
from jaxgraph.train.objective import (
    Split,
    gradients,
    objective,
    rows_of_model,
    split_sums,
    sums_of_splits,
)
from jaxgraph.train.task import Sums, Task


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
        """A task's sums for every split of the graph, without dropout."""
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
        outputs: Any = run(*split[1:])
        ids, places = self.graph.parts.nodes()
        rows = outputs.reshape(-1, *outputs.shape[2:])[places]
        if jax.process_count() > 1:
            from jax.experimental import multihost_utils

            # Of all processes, which have different numbers of nodes.
            missing = int(multihost_utils.process_allgather(np.array(len(ids))).max()) - len(ids)
            padded = (
                np.pad(ids.astype(np.int32), (0, missing), constant_values=-1),
                np.pad(rows, ((0, missing), *((0, 0),) * (rows.ndim - 1))),
            )
            found, of_nodes = multihost_utils.process_allgather(padded, tiled=True)
            ids, rows = found[found >= 0].astype(np.int64), of_nodes[found >= 0]
        return in_order(ids, rows, self.graph.num_nodes)

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
