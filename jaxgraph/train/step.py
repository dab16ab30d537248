"""One full-batch training step."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxgraph.parallel import ShardedGraph
from jaxgraph.train.arguments import check_optimizer, checked_graph, checked_task
from jaxgraph.train.fit_state import TrainState, abstract_state, shardings
from jaxgraph.train.identity import EvalParams, Optimizer, comparable
from jaxgraph.train.objective import Split, gradients, split_model
from jaxgraph.train.task import Sums, Task


@dataclasses.dataclass(frozen=True)
class Learner:
    """The constants of training, a static part of every compiled program.

    Attributes:
      graphdef: structure of the model.
      optimizer: the optimizer, equal to those made alike.
      task: the task to learn.
      offloads: whether a policy of the model has tensors wait in the host's memory.
    """

    graphdef: nnx.GraphDef
    optimizer: Optimizer
    task: Task
    offloads: bool = False

    @property
    def compiler_options(self) -> dict[str, Any] | None:
        """Options for XLA, which change the order of a program and no value.

        Its latency-hiding scheduler sends to the host as late, and fetches as early, as it can: a
        device would hold more than without offloading.
        """
        return {"xla_gpu_enable_latency_hiding_scheduler": False} if self.offloads else None

    def split(self, state: TrainState) -> Split:
        """The model with the variables of a state."""
        return Split(self.graphdef, state.params, state.statistics)

    def evaluated(self, state: TrainState) -> TrainState:
        """The state with the parameters to evaluate and to keep, in their own types."""
        function = self.optimizer.eval_params
        if function is None:
            return state
        params = function(state.optimizer_state, state.params)
        params = jax.tree.map(lambda new, old: new.astype(old.dtype), params, state.params)
        return TrainState(params, state.statistics, state.optimizer_state)


def train_step(
    learner: Learner, state: TrainState, sharded: ShardedGraph, key: jax.Array
) -> tuple[TrainState, Sums]:
    """Makes one step of the optimizer on the whole of one graph; pure."""
    found = gradients(learner.split(state), sharded, key, learner.task, train=True)
    loss, sums, statistics, grads = found
    return updated(learner, state, sharded, loss, statistics, grads), sums


def batch_step(
    learner: Learner, state: TrainState, batch: ShardedGraph, key: jax.Array
) -> tuple[TrainState, Sums]:
    """Makes a step on a mini-batch; none where no seed has a loss, which is then 0 / 0; pure."""
    new, sums = train_step(learner, state, batch, key)
    is_empty = has_no_loss(learner, sums)
    new = jax.tree.map(lambda after, before: jnp.where(is_empty, before, after), new, state)
    return jax.lax.with_sharding_constraint(new, shardings(new, batch)), sums


def has_no_loss(learner: Learner, sums: Sums) -> jax.Array:
    """True where no seed of a batch has a loss."""
    return (sums.get("loss", 1) == 0) & jnp.isnan(learner.task.metrics(sums)["loss"])


def updated(
    learner: Learner,
    state: TrainState,
    sharded: ShardedGraph,
    loss: jax.Array,
    statistics: nnx.State,
    grads: nnx.State,
) -> TrainState:
    """The state after a step of the optimizer, given what a pass over the graph computed."""
    # Optimizers that read the loss (reduce_on_plateau) take it as `value`; others ignore it.
    optimizer = optax.with_extra_args_support(learner.optimizer.transformation)
    updates, optimizer_state = optimizer.update(
        grads, state.optimizer_state, state.params, value=loss
    )
    params: Any = optax.apply_updates(state.params, updates)
    new = TrainState(params, statistics, optimizer_state)
    return jax.lax.with_sharding_constraint(new, shardings(new, sharded))


def compile_train_step(
    model: nnx.Module,
    sharded: ShardedGraph,
    optimizer: optax.GradientTransformation,
    *,
    task: Task | None = None,
) -> jax.stages.Compiled:
    """Compiles a training step without running it or reading data.

    Args:
      model: a module called as `model(shard, x, key=key, train=True)`.
      sharded: the graph; its leaves may be `jax.ShapeDtypeStruct`, see
        `jaxgraph.parallel.placement.AbstractSource`.
      optimizer: a transformation of optax.
      task: the task to learn; None: `NodeClassification()`.

    Returns:
      The compiled program `(state, sharded, key) -> (new state, loss)`, for
      `jaxgraph.analysis.traffic` and its own `memory_analysis()`; it can be called with
      `jaxgraph.train.initial_state(model, sharded, optimizer)`, whose memory it donates.

    Raises:
      ValueError: an argument is of the wrong kind, or model, graph and task do not fit together.
    """
    return trace_train_step(model, sharded, optimizer, task=task)[0].lower().compile()


def trace_train_step(
    model: nnx.Module,
    sharded: ShardedGraph,
    optimizer: optax.GradientTransformation,
    *,
    task: Task | None = None,
) -> tuple[jax.stages.Traced, tuple[TrainState, ShardedGraph, jax.Array]]:
    """Traces a training step without compiling it: what `compile_train_step` compiles."""
    task = checked_task(task)
    sharded = checked_graph(model, sharded, task, abstract=True, train=True)
    check_optimizer(optimizer, model)
    learner = make_learner(model, optimizer, task)

    def step(
        state: TrainState, sharded: ShardedGraph, key: jax.Array
    ) -> tuple[TrainState, jax.Array]:
        state, sums = train_step(learner, state, sharded, key)
        return state, task.metrics(sums)["loss"]

    key = jax.eval_shape(lambda: jax.random.key(0))
    arguments = (abstract_state(model, optimizer, sharded), sharded, key)
    program = jax.jit(step, donate_argnums=0, compiler_options=learner.compiler_options)
    return program.trace(*arguments), arguments


def make_learner(
    model: nnx.Module,
    optimizer: optax.GradientTransformation,
    task: Task,
    eval_params: EvalParams | None = None,
) -> Learner:
    """Makes the static part of training a model."""
    policies: Any = getattr(model, "policy", None) or ()
    offloads = any(getattr(policy, "offload", ()) for policy in policies)
    return Learner(split_model(model)[0], comparable(optimizer, eval_params), task, offloads)
