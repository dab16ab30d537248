"""One epoch on a streamed graph."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import optax
from flax import nnx

from jaxgraph.parallel.streaming.function import StreamedFunction
from jaxgraph.parallel.streaming.graph import StreamedGraph
from jaxgraph.parallel.streaming.rehearsal import Needs, total_bytes
from jaxgraph.train.epoch import (
    EpochProgram,
    Kept,
    Outcome,
    abstract_arguments,
    epoch_key,
    programs_of,
)
from jaxgraph.train.state import TrainState, as_shape, replicate, replicated_shape
from jaxgraph.train.step import Learner
from jaxgraph.train.streamed import evaluation_function, gradient_function


@dataclasses.dataclass(frozen=True)
class StreamedEpoch(EpochProgram):
    """Runs epochs on a streamed graph, the only one of `graphs`."""

    def run(
        self, state: TrainState, kept: Kept, key: jax.Array, epoch: int
    ) -> tuple[TrainState, Kept, Outcome]:
        """See `jaxgraph.train.epoch.EpochProgram.run`."""
        graph, programs = self._graph, programs_of(self.learner)
        needs = self.needs(state, kept, key)
        graph.parts.moved.begin_epoch(needs.sent + needs.returned)
        gradient, evaluation = self._functions(state, key)
        of_epoch = epoch_key(key, replicate(np.int32(epoch), graph))
        values, grads = gradient.value_and_grad(state.params, state.statistics, of_epoch)
        loss, sums, statistics = values
        state = programs.update(state, graph, loss, statistics, grads)
        evaluated = evaluation(state.params, state.statistics)
        chosen = programs.choose(state, kept, graph, [sums], [evaluated], self.restore_best)
        return state, *chosen

    def compile(
        self, state: TrainState, kept: Kept, key: jax.Array
    ) -> tuple[jax.stages.Compiled, ...]:
        """Compiles the programs of `run`, and runs nothing; returns those that parts visit."""
        graph, programs = self._graph, programs_of(self.learner)
        self.needs(state, kept, key)
        gradient, evaluation = self._functions(state, key)
        replicated = gradient.executables.shared
        found = gradient.result_types, state.params, evaluation.result_types
        values, grads, evaluated = jax.tree.map(lambda leaf: as_shape(leaf, replicated), found)
        # Beside those that parts visit, too: no epoch compiles any.
        epoch_key.lower(key, replicated_shape(np.int32, graph)).compile()
        loss, sums, statistics = values
        programs.update.lower(state, graph, loss, statistics, grads).compile()
        choice = programs.choose.lower(state, kept, graph, [sums], [evaluated], self.restore_best)
        choice.compile()
        graph.parts.threads.start()
        functions = (gradient, evaluation)
        return tuple(each for function in functions for each in function.executables.compiled())

    def needs(
        self, state: TrainState, kept: Kept, key: jax.Array, *, compile: bool = True
    ) -> Needs:
        """The bytes that an epoch needs, with those of the variables."""
        found = Needs(0, 0, 0, 0)
        for function in self._functions(state, key):
            found = found.then(function.needs if compile else function.least_needs)
        # Parameters before and after the step, and those that are kept.
        return dataclasses.replace(found, device=found.device + total_bytes((state, kept)))

    @property
    def _graph(self) -> StreamedGraph:
        (graph,) = self.graphs
        assert isinstance(graph, StreamedGraph)
        return graph

    def _functions(
        self, state: TrainState, key: jax.Array
    ) -> tuple[StreamedFunction, StreamedFunction]:
        split, task = self.learner.split(state), self.learner.task
        gradient = gradient_function(self._graph, split, key, task, True)
        return gradient, evaluation_function(self._graph, split, task)


def needs_of(
    learner: Learner,
    model: nnx.Module,
    optimizer: optax.GradientTransformation,
    graph: StreamedGraph,
    *,
    compile: bool = True,
) -> Needs:
    """The bytes that an epoch needs, before anything is placed; see `StreamedEpoch.needs`."""
    arguments = abstract_arguments(model, optimizer, graph)
    return StreamedEpoch(learner, (graph,), True).needs(*arguments, compile=compile)
