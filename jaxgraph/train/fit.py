"""The training loop: a program per epoch, early stopping, the best parameters kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import optax
from flax import nnx

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
from jaxgraph.train.epoch import EpochProgram, Outcome, first_kept
from jaxgraph.train.evaluation import as_numbers
from jaxgraph.train.history import (
    DivergenceError,
    EpochRecord,
    History,
    TrainingInterrupted,
    best_epoch,
)
from jaxgraph.train.state import initial_state, random_key, restore
from jaxgraph.train.step import make_learner
from jaxgraph.train.task import Task

__all__ = ["fit"]


def fit(
    model: nnx.Module,
    sharded: ShardedGraph | Sequence[ShardedGraph],
    optimizer: optax.GradientTransformation,
    *,
    epochs: int,
    seed: int = 0,
    task: Task | None = None,
    patience: int | None = None,
    restore_best: bool = True,
    aggregate_once: bool = True,
    on_epoch: Callable[[EpochRecord], Any] | None = None,
    on_compile: Callable[[Sequence[jax.stages.Compiled]], Any] | None = None,
) -> History:
    """Trains a model on whole graphs and leaves the best parameters in it.

    An epoch is one step of the optimizer on each graph that has training nodes, and one pass of
    inference that evaluates all splits. Epoch e, from 1, draws its dropout from
    `jax.random.fold_in(jax.random.key(seed), e - 1)`, so that the curve does not depend on the
    number of devices; of several graphs, graph i folds in i as well.

    However training ends, by the last epoch, early, by a result or an exception of `on_epoch` or by
    KeyboardInterrupt, the model then holds what it learned so far.

    Args:
      model: called as `model(shard, x, key=key, train=...)`; changed in place, when training ends.
      sharded: the graph, or several: of different shapes, or padded to the same.
      optimizer: of optax. A second run with the same object compiles nothing.
      epochs: how many, at most.
      seed: of dropout, from 0 to 2**32 - 1; the parameters have been drawn with the model's own.
      task: what is learned; None: `NodeClassification()`.
      patience: stop after so many epochs without a lower validation loss; None: never.
      restore_best: whether to leave the parameters and statistics of the lowest validation loss,
        or else those of the last epoch. Without validation nodes always the latter.
      aggregate_once: whether to aggregate the features for the first layer once instead of in
        every epoch, where that has no parameter (all models of `jaxgraph.nn` but those of
        attention) and saves more than it costs. Results are the same but for rounding; each device
        holds one more array of the size of its features. See `jaxgraph.train.aggregate_once`.
      on_epoch: called with the record of every epoch; a true result ends training.
      on_compile: called once, before the first epoch, with the compiled programs that an epoch
        consists of, for `memory_analysis()` and `jaxgraph.parallel.traffic`; of one graph that is
        one: the step, the evaluation, and what is kept of them.

    Returns:
      The history.

    Raises:
      ValueError: an argument is not of its kind, or model, graph and task do not fit together.
      DivergenceError: the training or validation loss is not finite; the model holds the
        parameters of the best epoch before. A FloatingPointError with the `history`.
      TrainingInterrupted: a KeyboardInterrupt during training. It is one itself, so that a program
        ends as on any Ctrl-C; caught, it has the `history` of the epochs that have ended.
    """
    task = checked_task(task)
    graphs = checked_graphs(sharded, task, train=True)
    check_model(model, graphs)
    check_optimizer(optimizer, model)
    epochs, seed = checked_count("epochs", epochs), checked_seed("seed", seed)
    _check_patience(patience, graphs, task)
    _check_callable("on_epoch", on_epoch, "an EpochRecord")
    _check_callable("on_compile", on_compile, "a sequence of compiled programs")
    if aggregate_once:
        graphs = with_aggregates(model, graphs, epochs)
    program = EpochProgram(make_learner(model, optimizer, task), graphs, bool(restore_best))
    state = initial_state(model, graphs[0], optimizer)
    kept, key = first_kept(state, graphs[0]), random_key(seed, graphs[0])
    started = time.perf_counter()
    compiled = program.compile(state, kept, key)
    compile_seconds = time.perf_counter() - started
    if on_compile is not None:
        on_compile(compiled)
    records: list[EpochRecord] = []
    try:
        for epoch in range(1, epochs + 1):
            started = time.perf_counter()
            state, candidate, outcome = program.run(state, kept, key, epoch - 1)
            # Blocks, and raises what went wrong on the devices: only then is the epoch kept.
            record = _record(epoch, jax.device_get(outcome), started)
            diverged = _diverged(record)
            if diverged:
                raise DivergenceError(diverged, History(tuple(records), compile_seconds))
            kept = candidate
            records.append(record)
            if on_epoch is not None and on_epoch(record):
                break
            if patience is not None and epoch - best_epoch(records) >= patience:
                break
    except KeyboardInterrupt as error:
        raise TrainingInterrupted(History(tuple(records), compile_seconds)) from error
    finally:
        restore(model, kept.params, kept.statistics, graphs[0])
    return History(tuple(records), compile_seconds)


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
        val_accuracy=val.get("accuracy", math.nan),
        seconds=time.perf_counter() - started,
        metrics=metrics,
        is_best=bool(outcome.is_best),
    )


def _diverged(record: EpochRecord) -> str:
    """Names the loss of an epoch that is not finite; "" where all are finite."""
    losses = {"training loss (dropout on)": record.loss}
    for split, name in (("train", "training loss"), ("val", "validation loss")):
        if split in record.metrics:
            losses[f"{name} after the step"] = record.metrics[split]["loss"]
    wrong = [f"{name} is {loss}" for name, loss in losses.items() if not math.isfinite(loss)]
    return f"epoch {record.epoch}: the {wrong[0]}" if wrong else ""
