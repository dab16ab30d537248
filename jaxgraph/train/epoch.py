"""One epoch on the devices: a step per graph, their evaluation and the choice of variables."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxgraph.parallel import ShardedGraph
from jaxgraph.parallel.streaming.function import StreamedFunction
from jaxgraph.parallel.streaming.rehearsal import Needs, total_bytes
from jaxgraph.train.fit_state import (
    LEARNERS,
    Held,
    Kept,
    TrainState,
    as_shape,
    replicate,
    replicated_shape,
    shardings,
)
from jaxgraph.train.latest_programs import LatestPrograms
from jaxgraph.train.objective import sums_of_splits
from jaxgraph.train.passes import StreamedPasses, add_sums
from jaxgraph.train.step import Learner, batch_step, train_step, updated
from jaxgraph.train.task import Sums
from pallas_kernels.pytrees import pytree


@pytree
class Outcome:
    """The scalars of an epoch.

    Attributes:
      loss: the step's loss.
      metrics: the metrics after the step, by split and name; of "train" those of the step where the
        task evaluates no training nodes.
      is_best: whether the validation loss is the lowest so far.
      waited: share of the time of steps in which devices waited for a batch; None: of whole graphs.
      copied: as of `jaxgraph.train.history.EpochRecord`.
    """

    loss: jax.Array
    metrics: Mapping[str, Mapping[str, jax.Array]]
    is_best: jax.Array
    waited: float | None = dataclasses.field(default=None, metadata={"static": True})
    copied: float | None = dataclasses.field(default=None, metadata={"static": True})


def epoch_on(learner: Learner, graphs: tuple[ShardedGraph, ...]) -> EpochProgram:
    """An epoch on graphs, which depends on where their parts are."""
    kind = StreamedEpoch if graphs[0].is_streamed else EpochProgram
    return kind(learner, graphs)


@dataclasses.dataclass(frozen=True)
class EpochProgram:
    """Runs epochs on one graph as one program, or on several as a few programs for each shape.

    Attributes:
      learner: model, optimizer and task.
      graphs: in the order of their steps.
    """

    learner: Learner
    graphs: tuple[Any, ...]

    def run(self, held: Held, epoch: int) -> tuple[Held, Outcome]:
        """Runs one epoch; what is held stays valid, so that a failed epoch changes nothing."""
        programs, (state, kept, key) = programs_of(self.learner), held
        first, number = self.graphs[0], replicate(np.int32(epoch), self.graphs[0])
        if len(self.graphs) == 1:
            state, kept, outcome = programs.epoch(state, kept, first, key, number)
            return Held(state, kept, key), outcome
        steps = []
        for index in self._trained():
            of_graph = graph_key(key, number, replicate(np.int32(index), first))
            state, sums = programs.step(state, self.graphs[index], of_graph)
            steps.append(sums)
        evaluations = [programs.evaluate(state, graph) for graph in self.graphs]
        kept, outcome = programs.choose(state, kept, first, steps, evaluations)
        return Held(state, kept, key), outcome

    def compile(self, held: Held) -> tuple[jax.stages.Compiled, ...]:
        """Compiles the programs of `run`, and runs nothing."""
        programs, started = programs_of(self.learner), time.perf_counter()
        first, (state, kept, key) = self.graphs[0], held
        if len(self.graphs) == 1:
            number = replicate(np.int32(0), first)
            lowered = [programs.epoch.lower(state, kept, first, key, number)]
        else:
            steps = [programs.step.lower(state, self.graphs[i], key) for i in self._trained()]
            passes = [programs.evaluate.lower(state, graph) for graph in self.graphs]
            found = [each.out_info[1] for each in steps], [each.out_info for each in passes]
            replicated = NamedSharding(first.mesh, PartitionSpec())
            sums = jax.tree.map(lambda leaf: as_shape(leaf, replicated), found)
            lowered = [*steps, *passes, programs.choose.lower(state, kept, first, *sums)]
        compiled = tuple(each.compile() for each in lowered)
        programs.times.append(time.perf_counter() - started)
        return compiled

    def needs(self, held: Held) -> Needs | None:
        """The bytes that an epoch needs, where its graph is streamed."""
        return None

    @property
    def compile_seconds(self) -> float:
        """The longest that the programs of this learner took to compile in this process."""
        return max(programs_of(self.learner).times, default=0.0)

    def _trained(self) -> list[int]:
        """Returns the indices of graphs with training nodes."""
        splits = [self.learner.task.splits(graph.shards) for graph in self.graphs]
        return [index for index, of_graph in enumerate(splits) if "train" in of_graph]


@dataclasses.dataclass(frozen=True)
class StreamedEpoch(EpochProgram):
    """Runs epochs on a streamed graph, the only one of `graphs`."""

    def run(self, held: Held, epoch: int) -> tuple[Held, Outcome]:
        """See `EpochProgram.run`."""
        (graph,), programs = self.graphs, programs_of(self.learner)
        (state, kept, key), needs = held, self.needs(held)
        graph.parts.moved.begin_epoch(needs.sent + needs.returned)
        gradient, evaluation = self._functions(held)
        of_epoch = epoch_key(key, replicate(np.int32(epoch), graph))
        values, grads = gradient.value_and_grad(state.params, state.statistics, of_epoch)
        loss, sums, statistics = values
        state = programs.update(state, graph, loss, statistics, grads)
        evaluated = evaluation(state.params, state.statistics)
        kept, outcome = programs.choose(state, kept, graph, [sums], [evaluated])
        return Held(state, kept, key), outcome

    def compile(self, held: Held) -> tuple[jax.stages.Compiled, ...]:
        """Compiles the programs of `run`, and runs nothing; returns those that parts visit."""
        (graph,), programs, (state, kept, key) = self.graphs, programs_of(self.learner), held
        self.needs(held)
        functions = gradient, evaluation = self._functions(held)
        replicated = gradient.executables.shared
        found = gradient.result_types, state.params, evaluation.result_types
        values, grads, evaluated = jax.tree.map(lambda leaf: as_shape(leaf, replicated), found)
        # Beside those that parts visit, too: no epoch compiles any.
        epoch_key.lower(key, replicated_shape(np.int32, graph)).compile()
        loss, sums, statistics = values
        programs.update.lower(state, graph, loss, statistics, grads).compile()
        programs.choose.lower(state, kept, graph, [sums], [evaluated]).compile()
        graph.parts.threads.start()
        return tuple(each for function in functions for each in function.executables.compiled())

    def needs(self, held: Held, *, compile: bool = True) -> Needs:
        """The bytes that an epoch needs, with those of the variables."""
        found = Needs(0, 0, 0, 0)
        for function in self._functions(held):
            found = found.then(function.needs if compile else function.least_needs)
        # Parameters before and after the step, and those that are kept.
        return dataclasses.replace(found, device=found.device + total_bytes(held[:2]))

    def _functions(self, held: Held) -> tuple[StreamedFunction, StreamedFunction]:
        split, task = self.learner.split(held.state), self.learner.task
        passes = StreamedPasses(*self.graphs)
        return passes.gradient(split, held.key, task, True), passes.evaluation(split, task)


@dataclasses.dataclass(frozen=True)
class Programs:
    """The compiled functions of training with one learner.

    Attributes:
      epoch: `(state, kept, graph, key, epoch)`, a whole epoch on one graph.
      step: `(state, graph, key)`.
      batch_step: as `step`, on a mini-batch.
      evaluate: `(state, graph)`.
      choose: `(state, kept, graph, steps, evaluations)`.
      update: `(state, graph, loss, statistics, gradients)`, of a streamed graph.
      add: `(sums, sums)`, of the steps of batches.
      times: seconds of every compilation; nearly 0 for the second of the same shapes.
    """

    epoch: Any
    step: Any
    batch_step: Any
    evaluate: Any
    choose: Any
    update: Any
    add: Any
    times: list[float] = dataclasses.field(default_factory=list)


# Each learner has functions of its own: JAX caches the programs of a function as long as the
# function lives.
@lru_cache(maxsize=LEARNERS)
def programs_of(learner: Learner) -> Programs:
    """The compiled functions of training with a learner."""

    def epoch(
        state: TrainState,
        kept: Kept,
        sharded: ShardedGraph,
        key: jax.Array,
        number: jax.Array,
    ) -> tuple[TrainState, Kept, Outcome]:
        state, sums = train_step(learner, state, sharded, jax.random.fold_in(key, number))
        evaluation = _evaluation_sums(learner, state, sharded)
        kept, outcome = choose(learner, state, kept, sharded, [sums], [evaluation])
        return state, kept, outcome

    options = learner.compiler_options
    return Programs(
        LatestPrograms(epoch, compiler_options=options),
        LatestPrograms(partial(train_step, learner), compiler_options=options),
        LatestPrograms(partial(batch_step, learner), compiler_options=options),
        LatestPrograms(partial(_evaluation_sums, learner)),
        LatestPrograms(partial(choose, learner)),
        LatestPrograms(partial(updated, learner)),
        LatestPrograms(lambda one, other: add_sums([{"": one}, {"": other}])[""]),
    )


def choose(
    learner: Learner,
    state: TrainState,
    kept: Kept,
    sharded: ShardedGraph,
    steps: Sequence[Sums],
    evaluations: Sequence[Mapping[str, Sums]],
) -> tuple[Kept, Outcome]:
    """Computes the scalars of an epoch, and chooses the variables to keep."""
    task = learner.task
    of_step = task.metrics(add_sums([{"train": sums} for sums in steps])["train"])
    evaluated = {split: task.metrics(sums) for split, sums in add_sums(evaluations).items()}
    metrics, loss = {"train": of_step} | evaluated, of_step["loss"]
    good = jnp.isfinite(loss) & jnp.isfinite(metrics["train"]["loss"])
    val_loss = kept.val_loss
    is_best = good
    if "val" in metrics:
        val_loss = metrics["val"]["loss"].astype(kept.val_loss.dtype)
        good &= jnp.isfinite(val_loss)
        is_best = good & (val_loss < kept.val_loss)
    chosen = learner.evaluated(state)
    params, statistics = jax.tree.map(
        lambda new, old: jnp.where(is_best, new, old),
        (chosen.params, chosen.statistics),
        (kept.params, kept.statistics),
    )
    lowest = jnp.where(is_best, val_loss, kept.val_loss)
    new = Kept(params, statistics, lowest)
    # Sharded like the first, so that all epochs share one program.
    new = jax.lax.with_sharding_constraint(new, shardings(new, sharded))
    return new, Outcome(loss, metrics, is_best)


def _evaluation_sums(learner: Learner, state: TrainState, sharded: ShardedGraph) -> dict[str, Sums]:
    return sums_of_splits(learner.split(learner.evaluated(state)), sharded, learner.task)


@jax.jit
def graph_key(key: jax.Array, epoch: jax.Array, index: jax.Array) -> jax.Array:
    """The random key of a graph's step, or a batch's, in an epoch."""
    return jax.random.fold_in(jax.random.fold_in(key, epoch), index)


@jax.jit
def epoch_key(key: jax.Array, epoch: jax.Array) -> jax.Array:
    """The random key of an epoch."""
    return jax.random.fold_in(key, epoch)
