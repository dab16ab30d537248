"""One full-batch training step, and its loss and gradient alone."""

from __future__ import annotations

import dataclasses
from functools import lru_cache, partial
from typing import Any

import jax
import optax
from flax import nnx

from jaxgraph.parallel import ShardedGraph, collect_rows
from jaxgraph.seeds import checked_seed
from jaxgraph.train.arguments import (
    check_model,
    check_optimizer,
    checked_graph,
    checked_task,
)
from jaxgraph.train.objective import gradients, split_model
from jaxgraph.train.optimizers import Optimizer, comparable
from jaxgraph.train.state import (
    LEARNERS,
    TrainState,
    abstract_state,
    place_variables,
    random_key,
    shardings,
)
from jaxgraph.train.task import Sums, Task

__all__ = ["Learner", "compile_train_step", "loss_and_grad", "make_learner", "train_step"]


@dataclasses.dataclass(frozen=True)
class Learner:
    """The constants of training: a static part of every compiled program.

    Attributes:
      graphdef: structure of the model.
      optimizer: of optax, equal where it was made alike.
      task: what is learned.
    """

    graphdef: nnx.GraphDef
    optimizer: Optimizer
    task: Task


def train_step(
    learner: Learner, state: TrainState, sharded: ShardedGraph, key: jax.Array
) -> tuple[TrainState, Sums]:
    """One step of the optimizer on the whole of one graph; pure.

    Args:
      learner: model, optimizer and task.
      state: parameters, statistics and optimizer state on the mesh of the graph.
      sharded: the graph.
      key: random key of the step.

    Returns:
      The new state, and the task's sums, of the outputs before the step and with dropout on.
    """
    loss, sums, statistics, grads = gradients(
        learner.graphdef, state.params, state.statistics, sharded, key, learner.task, train=True
    )
    # Optimizers that look at the loss (reduce_on_plateau) take it as `value`; others ignore it.
    optimizer = optax.with_extra_args_support(learner.optimizer.transformation)
    updates, optimizer_state = optimizer.update(
        grads, state.optimizer_state, state.params, value=loss
    )
    params: Any = optax.apply_updates(state.params, updates)
    new = TrainState(params, statistics, optimizer_state)
    return jax.lax.with_sharding_constraint(new, shardings(new, sharded)), sums


def compile_train_step(
    model: nnx.Module,
    sharded: ShardedGraph,
    optimizer: optax.GradientTransformation,
    *,
    task: Task | None = None,
) -> jax.stages.Compiled:
    """Compiles a training step without running it; no data is looked at.

    Args:
      model: called as `model(shard, x, key=key, train=True)`.
      sharded: the graph; its leaves may be `jax.ShapeDtypeStruct`, see
        `jaxgraph.parallel.AbstractSource`.
      optimizer: of optax.
      task: what is learned; None: `NodeClassification()`.

    Returns:
      The compiled program `(state, sharded, key) -> (new state, loss)`, for
      `jaxgraph.analysis.traffic` and its own `memory_analysis()`; it can be called with
      `jaxgraph.train.initial_state(model, sharded, optimizer)`, whose memory it takes over.

    Raises:
      ValueError: an argument is not of its kind, or model, graph and task do not fit together.
    """
    task = checked_task(task)
    sharded = checked_graph(sharded, task, abstract=True, train=True)
    check_model(model, (sharded,))
    check_optimizer(optimizer, model)
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = abstract_state(model, optimizer, sharded)
    learner = make_learner(model, optimizer, task)
    return _train_step(learner).lower(state, sharded, key).compile()


@lru_cache(maxsize=LEARNERS)
def _train_step(learner: Learner) -> Any:
    def step(
        state: TrainState, sharded: ShardedGraph, key: jax.Array
    ) -> tuple[TrainState, jax.Array]:
        state, sums = train_step(learner, state, sharded, key)
        return state, learner.task.metrics(sums)["loss"]

    return jax.jit(step, donate_argnums=0)


def make_learner(model: nnx.Module, optimizer: optax.GradientTransformation, task: Task) -> Learner:
    """The static part of training a model."""
    return Learner(split_model(model)[0], comparable(optimizer), task)


def loss_and_grad(
    model: nnx.Module,
    sharded: ShardedGraph,
    *,
    seed: int = 0,
    train: bool = False,
    task: Task | None = None,
) -> tuple[jax.Array, nnx.State]:
    """The training loss of a model and its gradient; the model stays as it is.

    Args:
      model: called as `model(shard, x, key=key, train=train)`.
      sharded: the graph.
      seed: of the random key, `jax.random.key(seed)`, from 0 to 2**32 - 1.
      train: whether dropout is on and BatchNorm normalises by this graph.
      task: what the loss is; None: `NodeClassification()`.

    Returns:
      The loss, a scalar, and the gradient, a pytree of the parameters, rows of a `NodeEmbedding`
      in the graph's order.

    Raises:
      ValueError: an argument is not of its kind, or model, graph and task do not fit together.
    """
    task = checked_task(task)
    sharded = checked_graph(sharded, task, train=True)
    check_model(model, (sharded,))
    key = random_key(checked_seed("seed", seed), sharded)
    graphdef, params, statistics = split_model(model)
    loss, grads = _loss_and_grad(
        graphdef,
        place_variables(params, sharded),
        place_variables(statistics, sharded),
        sharded,
        key,
        task,
        bool(train),
    )
    return loss, collect_rows(grads, sharded)


@partial(jax.jit, static_argnames=("graphdef", "task", "train"))
def _loss_and_grad(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    statistics: nnx.State,
    sharded: ShardedGraph,
    key: jax.Array,
    task: Task,
    train: bool,
) -> tuple[jax.Array, Any]:
    loss, _, _, grads = gradients(graphdef, params, statistics, sharded, key, task, train)
    return loss, grads
