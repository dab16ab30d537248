"""One epoch on a streamed graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np
from flax import nnx

from jaxgraph.parallel.streaming.graph import StreamedGraph
from jaxgraph.train.epoch import Kept, Outcome, programs_of
from jaxgraph.train.state import LEARNERS, TrainState
from jaxgraph.train.step import Learner, updated
from jaxgraph.train.streamed import streamed_evaluation, streamed_gradient

__all__ = ["StreamedEpoch"]


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
        """Nothing: each stage compiles its programs when it first runs."""
        return ()

    @property
    def compile_seconds(self) -> float:
        """0, see `compile`."""
        return 0.0

    def _gradients(self, state: TrainState, key: jax.Array, epoch: int) -> Any:
        learner, (graph,) = self.learner, self.graphs
        of_epoch = jax.random.fold_in(key, np.int32(epoch))
        variables = (state.params, state.statistics)
        return streamed_gradient(graph, learner.graphdef, *variables, of_epoch, learner.task, True)


@lru_cache(maxsize=LEARNERS)
def _update(learner: Learner) -> Any:
    """`(state, loss, statistics, gradients) -> state`, a step of the optimizer."""
    return jax.jit(partial(updated, learner))
