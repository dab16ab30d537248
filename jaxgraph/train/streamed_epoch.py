"""One epoch on a streamed graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxgraph.parallel.streaming.function import StreamedFunction
from jaxgraph.parallel.streaming.graph import StreamedGraph
from jaxgraph.parallel.streaming.rehearsal import Needs, total_bytes
from jaxgraph.train.epoch import Kept, Outcome, epoch_key, programs_of
from jaxgraph.train.latest_programs import LatestPrograms
from jaxgraph.train.state import LEARNERS, TrainState, abstract_state, replicate, replicated_shape
from jaxgraph.train.step import Learner, updated
from jaxgraph.train.streamed import (
    evaluation_function,
    gradient_function,
    streamed_evaluation,
    streamed_gradient,
)

__all__ = ["StreamedEpoch", "needs_of"]


@dataclasses.dataclass(frozen=True)
class StreamedEpoch:
    """Runs epochs on a streamed graph, as `jaxgraph.train.epoch.EpochProgram` does on others.

    Attributes:
      learner: model, optimizer and task.
      graphs: the graph alone.
      restore_best: whether to keep the best variables instead of the last.
    """

    learner: Learner
    graphs: tuple[StreamedGraph]
    restore_best: bool

    def run(
        self, state: TrainState, kept: Kept, key: jax.Array, epoch: int
    ) -> tuple[TrainState, Kept, Outcome]:
        """See `jaxgraph.train.epoch.EpochProgram.run`."""
        learner, (graph,) = self.learner, self.graphs
        needs = self.needs(state, kept, key)
        graph.parts.moved.begin_epoch(needs.sent + needs.returned)
        loss, sums, statistics, grads = self._gradients(state, key, epoch)
        state = _update(learner)(state, loss, statistics, grads)
        variables = (state.params, state.statistics)
        evaluated = streamed_evaluation(graph, learner.graphdef, *variables, learner.task)
        choose = programs_of(learner).choose
        kept, outcome = choose(state, kept, graph, [sums], [evaluated], self.restore_best)
        return state, kept, outcome

    def gradients(self, state: TrainState, key: jax.Array, epoch: int) -> Iterator[nnx.State]:
        """See `jaxgraph.train.epoch.EpochProgram.gradients`."""
        yield self._gradients(state, key, epoch)[3]

    def compile(
        self, state: TrainState, kept: Kept, key: jax.Array
    ) -> tuple[jax.stages.Compiled, ...]:
        """Compiles the programs of `run`, and runs nothing.

        Args:
          state, kept, key: as for `jaxgraph.train.epoch.EpochProgram.compile`.

        Returns:
          The programs that parts visit.
        """
        self.needs(state, kept, key)
        functions = tuple(self._functions(state, key))
        self._compile_step(state, kept, key, *functions)
        self.graphs[0].parts.threads.start()
        return tuple(each for function in functions for each in function.executables.compiled())

    def _compile_step(
        self,
        state: TrainState,
        kept: Kept,
        key: jax.Array,
        gradient: StreamedFunction,
        evaluation: StreamedFunction,
    ) -> None:
        """Compiles the programs beside those that parts visit: no epoch compiles any."""
        learner, (graph,) = self.learner, self.graphs
        placed = partial(_placed, gradient.executables.shared)
        epoch_key.lower(key, replicated_shape(np.int32, graph)).compile()
        loss, sums, statistics = placed(gradient.result_types)
        grads = placed(state.params)
        update = _update(learner).lower(state, loss, statistics, grads)
        new = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            update.out_info,
            update.compile().output_shardings,
        )
        evaluated = placed(evaluation.result_types)
        choose = programs_of(learner).choose
        choose.lower(new, kept, graph, [sums], [evaluated], self.restore_best).compile()

    def needs(
        self, state: TrainState, kept: Kept, key: jax.Array, *, compile: bool = True
    ) -> Needs:
        """The bytes that an epoch needs.

        Args:
          state, kept, key: as for `compile`.
          compile: whether to compile; if not, the temporary memory of programs is left out.

        Returns:
          The bytes, with those of the variables.
        """
        found = Needs(0, 0, 0, 0)
        for function in self._functions(state, key):
            found = found.then(function.needs if compile else function.least_needs)
        # Parameters before and after the step, and those that are kept.
        return dataclasses.replace(found, device=found.device + total_bytes((state, kept)))

    @property
    def compile_seconds(self) -> float:
        """0: no epoch is moved to other parts."""
        return 0.0

    def _functions(self, state: TrainState, key: jax.Array) -> Iterator[StreamedFunction]:
        learner, (graph,) = self.learner, self.graphs
        variables = (state.params, state.statistics)
        yield gradient_function(graph, learner.graphdef, (*variables, key), learner.task, True)
        yield evaluation_function(graph, learner.graphdef, variables, learner.task)

    def _gradients(self, state: TrainState, key: jax.Array, epoch: int) -> Any:
        learner, (graph,) = self.learner, self.graphs
        of_epoch = epoch_key(key, replicate(np.int32(epoch), graph))
        variables = (state.params, state.statistics)
        return streamed_gradient(graph, learner.graphdef, *variables, of_epoch, learner.task, True)


def needs_of(
    learner: Learner,
    model: nnx.Module,
    optimizer: optax.GradientTransformation,
    graph: StreamedGraph,
    *,
    compile: bool = True,
) -> Needs:
    """The bytes that an epoch needs, before anything is placed.

    Args:
      learner: of the model and the optimizer.
      model: the model.
      optimizer: of optax.
      graph: the graph.
      compile: as for `StreamedEpoch.needs`.
    """
    state = abstract_state(model, optimizer, graph)
    val_loss = replicated_shape(jnp.result_type(float), graph)
    kept = Kept(state.params, state.statistics, val_loss)
    key = replicated_shape(jax.eval_shape(lambda: jax.random.key(0)).dtype, graph)
    return StreamedEpoch(learner, (graph,), True).needs(state, kept, key, compile=compile)


@lru_cache(maxsize=LEARNERS)
def _update(learner: Learner) -> LatestPrograms:
    """`(state, loss, statistics, gradients) -> state`, a step of the optimizer."""
    return LatestPrograms(partial(updated, learner))


def _placed(sharding: Any, types: Any) -> Any:
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), types
    )
