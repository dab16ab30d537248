"""The training loop: a program per epoch, early stopping and the choice of the best parameters."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax
from flax import nnx

from jaxgraph.byte_amounts import bytes_of
from jaxgraph.parallel import ShardedGraph
from jaxgraph.seeds import checked_seed
from jaxgraph.train.aggregates import with_aggregates
from jaxgraph.train.arguments import (
    check_model,
    check_optimizer,
    checked_count,
    checked_graphs,
    checked_task,
)
from jaxgraph.train.epoch import EpochProgram, Kept, Outcome, first_kept
from jaxgraph.train.evaluation import as_numbers
from jaxgraph.train.fit_state import (
    FitState,
    abstract_fit_state,
    checked_fit_state,
    collect_fit_state,
    place_fit_state,
    place_key,
)
from jaxgraph.train.for_run import Planned, model_for_run
from jaxgraph.train.history import DivergenceError, EpochRecord, History, TrainingInterrupted
from jaxgraph.train.state import TrainState, abstract_state, initial_state, random_key, restore
from jaxgraph.train.step import make_learner
from jaxgraph.train.task import Task

if TYPE_CHECKING:
    from jaxgraph.graph import Graph

__all__ = ["fit"]


def fit(
    model: nnx.Module,
    sharded: Graph | ShardedGraph | Sequence[Graph | ShardedGraph],
    optimizer: optax.GradientTransformation,
    *,
    epochs: int,
    seed: int | None = None,
    task: Task | None = None,
    patience: int | None = None,
    restore_best: bool = True,
    aggregate_once: bool = True,
    memory_limit: int | str | None = None,
    plan: Planned | None = None,
    state: FitState | None = None,
    on_epoch: Callable[[EpochRecord], Any] | None = None,
    on_compile: Callable[[Sequence[jax.stages.Compiled]], Any] | None = None,
) -> History:
    """Trains a model on whole graphs and leaves the best parameters in it.

    An epoch is one step of the optimizer on each graph that has training nodes, and one pass of
    inference that evaluates all splits. Epoch e, from 1, draws its dropout from
    `jax.random.fold_in(jax.random.key(seed), e - 1)`, so that the curve does not depend on the
    number of devices; with several graphs, graph i also folds in i.

    When training ends, the model holds what it has learned: after the last epoch, by patience, by a
    result or an exception of `on_epoch`, or by KeyboardInterrupt. `History.state` continues the
    run: two calls of 6 epochs equal one of 12, in parameters, statistics, optimizer, dropout and
    patience. On another partition or number of devices results are the same but for rounding. On
    the same sharded graph they are equal if both calls aggregate once or neither does.

    Args:
      model: a module called as `model(shard, x, key=key, train=...)`; changed in place when
        training ends.
      sharded: the graph, or several, of different shapes or padded to the same. A `Graph` is
        sharded over one device, and stays there as long as it lives.
      optimizer: a transformation of optax. A second run with an equal one compiles nothing: one
        with equal numbers, and the same objects for functions or arrays of your own.
      epochs: the greatest number of epochs; in a continued run, of further epochs.
      seed: seed of dropout, from 0 to 2**32 - 1; the model has drawn its parameters by its own
        seed. None: 0, or that of `state`.
      task: the task to learn; None: `NodeClassification()`.
      patience: number of epochs without a lower validation loss after which training stops,
        including those before `state`; None: never.
      restore_best: whether to leave the parameters and statistics of the lowest validation loss
        instead of the last epoch's. Without validation nodes it is always the last epoch's.
      aggregate_once: whether to aggregate the features for the first layer once instead of in every
        epoch, if the aggregation has no parameter (in `jaxgraph.nn` all but attention models) and
        this saves more than it costs. Results are the same but for rounding; each device holds one
        more array of the size of its features. See `jaxgraph.train.aggregate_once`.
      memory_limit: bytes of one device that the run may take, or text such as "16GB". The cheapest
        policy under which the compiled epoch fits is taken for this run: results are the same but
        for rounding. `History.memory_plan` says which. None: the model's own policy.
      plan: a plan of `jaxgraph.planner.choose`, whose policy is taken for this run.
      state: the state of a run to continue, `History.state` or a copy; None: a new run. It replaces
        all variables of the model, which must be made as in that run. The optimizer may have
        another learning rate, but must have the same state.
      on_epoch: function of each epoch's record; a true result ends training.
      on_compile: function of the compiled programs of an epoch, for `memory_analysis()` and
        `jaxgraph.analysis.traffic`; called once, before the first epoch. With one graph there is
        one program: step, evaluation and the choice of variables.

    Returns:
      The history.

    Raises:
      ValueError: an argument is of the wrong kind, model, graph, task, optimizer and state do not
        fit together, or no policy fits the limit: the least that works is named.
      DivergenceError: the training or validation loss is not finite; the model holds the best
        parameters so far. It is a FloatingPointError with the `history`, whose state precedes that
        epoch.
      TrainingInterrupted: Ctrl-C during training. It is a KeyboardInterrupt, so that a program ends
        as usual, with the `history` of the completed epochs.
    """
    limit = None if memory_limit is None else bytes_of("memory_limit", memory_limit)
    task = checked_task(task)
    graphs = checked_graphs(sharded, task, train=True)
    check_model(model, graphs)
    check_optimizer(optimizer, model)
    epochs = checked_count("epochs", epochs)
    _check_patience(patience, graphs, task)
    _check_callable("on_epoch", on_epoch, "an EpochRecord")
    _check_callable("on_compile", on_compile, "a sequence of compiled programs")
    seed = None if seed is None else checked_seed("seed", seed)
    expected = abstract_fit_state(model, optimizer, restore_best=bool(restore_best))
    abstract = abstract_state(model, optimizer, graphs[0])
    run, memory_plan = model_for_run(
        model,
        graphs,
        optimizer,
        task,
        limit=limit,
        plan=plan,
        restore_best=bool(restore_best),
        aggregated=epochs if aggregate_once else 0,
    )
    if state is None:
        progress = _first_progress(model, optimizer, graphs[0], seed or 0)
    else:
        state = checked_fit_state(state, expected)
        progress = _continued_progress(state, abstract, graphs[0], seed)
    if aggregate_once:
        graphs = with_aggregates(model, graphs, epochs)
    program = EpochProgram(make_learner(run, optimizer, task), graphs, bool(restore_best))
    started = time.perf_counter()
    compiled = program.compile(progress.state, progress.kept, progress.key)
    compile_seconds = time.perf_counter() - started
    if on_compile is not None:
        on_compile(compiled)

    def end() -> History:
        epochs = (progress.epoch, progress.best_epoch)
        ended = collect_fit_state(
            progress.state,
            progress.kept,
            progress.key,
            epochs,
            expected=expected,
            abstract=abstract,
            sharded=graphs[0],
        )
        restore(model, *ended.learned)
        return History(progress.records, compile_seconds, ended, memory_plan)

    try:
        for new in _epochs(program, progress, epochs, patience):
            progress = new
            if on_epoch is not None and on_epoch(progress.records[-1]):
                break
    except KeyboardInterrupt as error:
        raise TrainingInterrupted(end()) from error
    except _DivergedError as error:
        raise DivergenceError(str(error), end()) from None
    except BaseException:
        end()
        raise
    return end()


@dataclasses.dataclass(frozen=True)
class _Progress:
    """A run after an epoch; replaced as a whole, so that an interruption finds it consistent.

    Attributes:
      state, kept, key: arrays on the mesh.
      epoch: number of completed epochs.
      best_epoch: number of the best epoch; 0 before the first.
      records: this call's records.
    """

    state: TrainState
    kept: Kept
    key: jax.Array
    epoch: int = 0
    best_epoch: int = 0
    records: tuple[EpochRecord, ...] = ()

    def after(self, state: TrainState, kept: Kept, record: EpochRecord) -> _Progress:
        best_epoch = record.epoch if record.is_best else self.best_epoch
        return _Progress(state, kept, self.key, record.epoch, best_epoch, (*self.records, record))


class _DivergedError(Exception):
    """An epoch whose loss is not finite."""


def _epochs(
    program: EpochProgram, progress: _Progress, epochs: int, patience: int | None
) -> Iterator[_Progress]:
    """Runs epochs until the last one, the end of patience or a loss that is not finite."""
    for _ in range(epochs):
        if patience is not None and progress.epoch - progress.best_epoch >= patience:
            return
        started = time.perf_counter()
        state, kept, outcome = program.run(
            progress.state, progress.kept, progress.key, progress.epoch
        )
        # Waits for the devices and raises their errors before the epoch is kept.
        record = _record(progress.epoch + 1, jax.device_get(outcome), started)
        diverged = _diverged(record)
        if diverged:
            raise _DivergedError(diverged)
        progress = progress.after(state, kept, record)
        yield progress


def _first_progress(
    model: nnx.Module, optimizer: optax.GradientTransformation, sharded: ShardedGraph, seed: int
) -> _Progress:
    state = initial_state(model, sharded, optimizer)
    return _Progress(state, first_kept(state, sharded), random_key(seed, sharded))


def _continued_progress(
    state: FitState, abstract: TrainState, sharded: ShardedGraph, seed: int | None
) -> _Progress:
    if seed is not None:
        key_data = jax.device_get(jax.random.key_data(random_key(seed, sharded)))
        if not np.array_equal(key_data, jax.device_get(state.key_data)):
            raise ValueError(
                f"seed is {seed}, and the state continues a run of another seed; leave seed out"
            )
    placed, kept = place_fit_state(state, abstract, sharded)
    numbers = (int(state.epoch), int(state.best_epoch))
    return _Progress(placed, kept, place_key(state, sharded), *numbers)


def _check_callable(name: str, function: Any, argument: str) -> None:
    if function is not None and not callable(function):
        raise ValueError(f"{name} is {function!r}; expected a function of {argument}")


def _check_patience(patience: int | None, graphs: Sequence[ShardedGraph], task: Task) -> None:
    if patience is None:
        return
    checked_count("patience", patience)
    if not any("val" in task.splits(graph.shards) for graph in graphs):
        raise ValueError(
            "patience needs validation nodes, and the graph has no val_mask; give Graph "
            "val_mask=..., or leave patience out"
        )


def _record(epoch: int, outcome: Outcome, started: float) -> EpochRecord:
    metrics = as_numbers(outcome.metrics)
    val = metrics.get("val", {})
    return EpochRecord(
        epoch=epoch,
        loss=float(outcome.loss),
        val_loss=val.get("loss", math.nan),
        seconds=time.perf_counter() - started,
        metrics=metrics,
        is_best=bool(outcome.is_best),
    )


def _diverged(record: EpochRecord) -> str:
    """Names the first loss of an epoch that is not finite; "" if all are finite."""
    losses = {"training loss (dropout on)": record.loss}
    for split, name in (("train", "training loss"), ("val", "validation loss")):
        if split in record.metrics:
            losses[f"{name} after the step"] = record.metrics[split]["loss"]
    wrong = [f"{name} is {loss}" for name, loss in losses.items() if not math.isfinite(loss)]
    return f"epoch {record.epoch}: the {wrong[0]}" if wrong else ""
