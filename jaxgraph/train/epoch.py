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
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from jaxgraph.parallel import ShardedGraph
from jaxgraph.train.evaluation import add_sums, evaluation_sums
from jaxgraph.train.latest_programs import LatestPrograms
from jaxgraph.train.state import (
    LEARNERS,
    TrainState,
    abstract_state,
    as_shape,
    replicate,
    replicated_shape,
    shardings,
)
from jaxgraph.train.step import Learner, train_step, updated
from jaxgraph.train.task import Sums
from pallas_kernels.pytrees import pytree


@pytree
class Kept:
    """The variables that training leaves in the model if it ends now, and their loss.

    Attributes:
      params, statistics: of the best epoch so far, or of the last finite one.
      val_loss: the lowest so far, infinite before the first epoch.
    """

    params: nnx.State
    statistics: nnx.State
    val_loss: jax.Array


@pytree
class Outcome:
    """The scalars of an epoch.

    Attributes:
      loss: the step's loss.
      metrics: the metrics after the step, by split and name.
      is_best: whether the validation loss is the lowest so far.
    """

    loss: jax.Array
    metrics: Mapping[str, Mapping[str, jax.Array]]
    is_best: jax.Array


def first_kept(state: TrainState, sharded: ShardedGraph) -> Kept:
    """The variables that are kept before the first epoch, with an infinite loss."""
    val_loss = replicate(np.asarray(np.inf, jnp.result_type(float)), sharded)
    return Kept(state.params, state.statistics, val_loss)


def abstract_arguments(
    model: nnx.Module, optimizer: optax.GradientTransformation, sharded: ShardedGraph
) -> tuple[TrainState, Kept, Any]:
    """State, kept variables and random key before the first epoch, as shapes with shardings."""
    state = abstract_state(model, optimizer, sharded)
    val_loss = replicated_shape(jnp.result_type(float), sharded)
    key = replicated_shape(jax.eval_shape(lambda: jax.random.key(0)).dtype, sharded)
    return state, Kept(state.params, state.statistics, val_loss), key


@dataclasses.dataclass(frozen=True)
class EpochProgram:
    """Runs epochs on one graph as one program, or on several as a few programs for each shape.

    Attributes:
      learner: model, optimizer and task.
      graphs: in the order of their steps.
      restore_best: whether to keep the best variables instead of the last.
    """

    learner: Learner
    graphs: tuple[ShardedGraph, ...]
    restore_best: bool

    def run(
        self, state: TrainState, kept: Kept, key: jax.Array, epoch: int
    ) -> tuple[TrainState, Kept, Outcome]:
        """Runs one epoch; `state` and `kept` stay valid, so that a failed epoch changes nothing."""
        programs = programs_of(self.learner)
        number = replicate(np.int32(epoch), self.graphs[0])
        if len(self.graphs) == 1:
            (graph,) = self.graphs
            return programs.epoch(state, kept, graph, key, number, self.restore_best)
        steps = []
        for index in self._trained():
            of_graph = _graph_key(key, number, replicate(np.int32(index), self.graphs[0]))
            state, sums = programs.step(state, self.graphs[index], of_graph)
            steps.append(sums)
        evaluations = [programs.evaluate(state, graph) for graph in self.graphs]
        kept, outcome = programs.choose(
            state, kept, self.graphs[0], steps, evaluations, self.restore_best
        )
        return state, kept, outcome

    def compile(
        self, state: TrainState, kept: Kept, key: jax.Array
    ) -> tuple[jax.stages.Compiled, ...]:
        """Compiles the programs of `run`, and runs nothing."""
        programs, started = programs_of(self.learner), time.perf_counter()
        first, last = self.graphs[0], self.restore_best
        if len(self.graphs) == 1:
            number = replicate(np.int32(0), first)
            lowered = [programs.epoch.lower(state, kept, first, key, number, last)]
        else:
            steps = [programs.step.lower(state, self.graphs[i], key) for i in self._trained()]
            passes = [programs.evaluate.lower(state, graph) for graph in self.graphs]
            found = [each.out_info[1] for each in steps], [each.out_info for each in passes]
            replicated = NamedSharding(first.mesh, PartitionSpec())
            sums, evaluated = jax.tree.map(lambda leaf: as_shape(leaf, replicated), found)
            choice = programs.choose.lower(state, kept, first, sums, evaluated, last)
            lowered = [*steps, *passes, choice]
        compiled = tuple(each.compile() for each in lowered)
        programs.times.append(time.perf_counter() - started)
        return compiled

    @property
    def compile_seconds(self) -> float:
        """The longest that the programs of this learner took to compile in this process."""
        return max(programs_of(self.learner).times, default=0.0)

    def _trained(self) -> list[int]:
        """Returns the indices of graphs with training nodes."""
        splits = [self.learner.task.splits(graph.shards) for graph in self.graphs]
        return [index for index, of_graph in enumerate(splits) if "train" in of_graph]


@dataclasses.dataclass(frozen=True)
class Programs:
    """The compiled functions of training with one learner.

    Attributes:
      epoch: `(state, kept, graph, key, epoch, restore_best)`, a whole epoch on one graph.
      step: `(state, graph, key)`.
      evaluate: `(state, graph)`.
      choose: `(state, kept, graph, steps, evaluations, restore_best)`.
      update: `(state, graph, loss, statistics, gradients)`, of a streamed graph.
      times: seconds of every compilation; nearly 0 for the second of the same shapes.
    """

    epoch: Any
    step: Any
    evaluate: Any
    choose: Any
    update: Any
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
        restore_best: bool,
    ) -> tuple[TrainState, Kept, Outcome]:
        state, sums = train_step(learner, state, sharded, jax.random.fold_in(key, number))
        evaluation = _evaluation_sums(learner, state, sharded)
        kept, outcome = choose(learner, state, kept, sharded, [sums], [evaluation], restore_best)
        return state, kept, outcome

    options = learner.compiler_options
    return Programs(
        LatestPrograms(epoch, static_argnums=(5,), compiler_options=options),
        LatestPrograms(partial(train_step, learner), compiler_options=options),
        LatestPrograms(partial(_evaluation_sums, learner)),
        LatestPrograms(partial(choose, learner), static_argnums=(5,)),
        LatestPrograms(partial(updated, learner)),
    )


def choose(
    learner: Learner,
    state: TrainState,
    kept: Kept,
    sharded: ShardedGraph,
    steps: Sequence[Sums],
    evaluations: Sequence[Mapping[str, Sums]],
    restore_best: bool,
) -> tuple[Kept, Outcome]:
    """Computes the scalars of an epoch, and chooses the variables to keep."""
    task = learner.task
    metrics = {split: task.metrics(sums) for split, sums in add_sums(evaluations).items()}
    loss = task.metrics(add_sums([{"train": sums} for sums in steps])["train"])["loss"]
    good = jnp.isfinite(loss) & jnp.isfinite(metrics["train"]["loss"])
    val_loss = kept.val_loss
    is_best = good
    if "val" in metrics:
        val_loss = metrics["val"]["loss"].astype(kept.val_loss.dtype)
        good &= jnp.isfinite(val_loss)
        is_best = good & (val_loss < kept.val_loss)
    replaces = is_best if restore_best else good
    evaluated = learner.evaluated(state)
    params, statistics = jax.tree.map(
        lambda new, old: jnp.where(replaces, new, old),
        (evaluated.params, evaluated.statistics),
        (kept.params, kept.statistics),
    )
    lowest = jnp.where(is_best, val_loss, kept.val_loss)
    new = Kept(params, statistics, lowest)
    # Sharded like the first, so that all epochs share one program.
    new = jax.lax.with_sharding_constraint(new, shardings(new, sharded))
    return new, Outcome(loss, metrics, is_best)


def _evaluation_sums(learner: Learner, state: TrainState, sharded: ShardedGraph) -> dict[str, Sums]:
    return evaluation_sums(learner.split(learner.evaluated(state)), sharded, learner.task)


@jax.jit
def _graph_key(key: jax.Array, epoch: jax.Array, index: jax.Array) -> jax.Array:
    return jax.random.fold_in(jax.random.fold_in(key, epoch), index)


@jax.jit
def epoch_key(key: jax.Array, epoch: jax.Array) -> jax.Array:
    """The random key of an epoch."""
    return jax.random.fold_in(key, epoch)
