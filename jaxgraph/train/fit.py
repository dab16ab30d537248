"""The training loop: a program per epoch, early stopping and the choice of the best parameters."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax
from flax import nnx

from jaxgraph.byte_amounts import bytes_of
from jaxgraph.parallel import ShardedGraph
from jaxgraph.sampling import Loader
from jaxgraph.seeds import checked_seed
from jaxgraph.train.agreement import check_alike
from jaxgraph.train.arguments import (
    check_eval_params,
    check_optimizer,
    check_training,
    checked_count,
    checked_graphs,
    checked_task,
)
from jaxgraph.train.checkpoints import Checkpoints, saving_of
from jaxgraph.train.fit_state import (
    FitState,
    abstract_fit_state,
    checked_fit_state,
    random_key,
)
from jaxgraph.train.history import EpochRecord, History
from jaxgraph.train.identity import EvalParams, of_process
from jaxgraph.train.pipeline import epoch_program_of
from jaxgraph.train.run import Run
from jaxgraph.train.sampled import check_loader, loader_digests
from jaxgraph.train.step import make_learner
from jaxgraph.train.task import Task

if TYPE_CHECKING:
    from jaxgraph.graph import Graph
    from jaxgraph.planner import Plan
    from jaxgraph.train.passes import GivenGraph


def fit(
    model: nnx.Module,
    sharded: GivenGraph | Sequence[GivenGraph] | Loader,
    optimizer: optax.GradientTransformation,
    *,
    epochs: int,
    seed: int | None = None,
    task: Task | None = None,
    patience: int | None = None,
    eval_params: EvalParams | None = None,
    staleness: int = 0,
    aggregate_once: bool = True,
    memory_limit: int | str | None = None,
    plan: Plan | None = None,
    state: FitState | None = None,
    checkpoint: Checkpoints | None = None,
    source: Graph | None = None,
    measure_every: int | None = None,
    repartition: str | None = None,
    on_epoch: Callable[[EpochRecord], Any] | None = None,
    on_compile: Callable[[Sequence[jax.stages.Compiled]], Any] | None = None,
) -> History:
    """Trains a model on whole graphs, or on mini-batches, and leaves the best parameters in it.

    An epoch is one step of the optimizer on each graph that has training nodes, and one pass of
    inference that evaluates all splits. Epoch e, from 1, draws its dropout from
    `jax.random.fold_in(jax.random.key(seed), e - 1)`, so that the curve does not depend on the
    number of devices; with several graphs, graph i also folds in i. An epoch of a
    `jaxgraph.sampling.Loader` is a step on each of its batches, where batch i folds in i, and the
    same evaluation of the whole graph, without samples.

    When training ends, the model holds the parameters and statistics of the lowest validation loss,
    or without validation nodes those of the last epoch: after the last epoch, by patience, by a
    result or an exception of `on_epoch`, or by KeyboardInterrupt. `History.state` holds those of
    the last epoch too, in `params` and `statistics`, and continues the run: two calls of 6 epochs
    equal one of 12, in parameters, statistics, optimizer, dropout and patience. On another
    partition or number of devices results are the same but for rounding. On the same sharded graph
    they are equal if both calls aggregate once or neither does.

    Args:
      model: a module called as `model(shard, x, key=key, train=...)`; changed in place when
        training ends.
      sharded: the graph, or several, of different shapes or padded to the same; or a loader of
        mini-batches. A `Graph` or `TypedGraph` is sharded over one device, and stays there as long
        as it lives.
      optimizer: a transformation of optax. A second run with an equal one compiles nothing: one
        with equal numbers, and the same objects for functions or arrays of your own.
      epochs: the greatest number of epochs; of further epochs where `state` continues a run, and of
        all where a checkpoint does.
      seed: seed of dropout, from 0 to 2**32 - 1; the model has drawn its parameters by its own
        seed. None: 0, or that of `state`.
      task: the task to learn; None: `NodeClassification()`.
      patience: number of epochs without a lower validation loss after which training stops,
        including those before `state`; None: never.
      eval_params: function of the optimizer's state and the parameters that returns the parameters
        to evaluate, such as `optax.contrib.schedule_free_eval_params`, or one that reads an average
        that a transformation of your own keeps. All metrics, the choice of the best epoch and the
        model that is left are of them; steps go on from the parameters themselves. Not for a graph
        in mode "stream". None: the parameters themselves.
      staleness: 3: the pipeline of P3, for a loader of a graph in mode "p3". Each step of the
        devices works on three batches, so that they compute while they send, and a step of the
        optimizer takes the gradient at the parameters of three steps before,
        w_{t+1} = w_t - a grad f(w_{t-3}) (P3, equation 3). Results are no longer those of one
        device. Devices hold three batches and three copies of the parameters. 0: none of this.
      aggregate_once: whether to aggregate the features for the first layer once instead of in every
        epoch, if the aggregation has no parameter (in `jaxgraph.nn` all but attention models) and
        this saves more than it costs. Results are the same but for rounding; each device holds one
        more array of the size of its features.
      memory_limit: bytes of one device that the run may take, or text such as "16GB". A streamed
        graph needs enough parts for it, see `jaxgraph.planner.fewest_parts`. Else the cheapest
        policy under which the compiled epoch fits is taken for this run: results are the same but
        for rounding. `History.memory_plan` says which. None: the model's own policy.
      plan: a plan of `jaxgraph.planner.choose`, whose policy is taken for this run.
      state: the state of a run to continue, `History.state` or a copy; None: a new run. It replaces
        all variables of the model, which must be made as in that run. The optimizer may have
        another learning rate, but must have the same state.
      checkpoint: where to save the run, and whether to resume one: `Checkpoints(folder, every=5,
        keep=3, resume=True)`. A run that was killed and resumed ends with the numbers of one that
        was not, bit by bit on the same sharded graph and devices, and but for rounding on others.
        None: nothing is saved.
      source: the graph that was sharded, for `measure_every` and `repartition`.
      measure_every: after every so many epochs, measure layers on parts, forward and backward, for
        a cost model: `jaxgraph.planner.fit_layers(history.measured.samples)`. Measurements are left
        out while they would take more than 2% of the time of the epochs so far; what they run is
        compiled before the first epoch, one program a layer, which `history.measured` reports
        apart. The first device of the mesh needs memory for one more part and layer. Results of
        training do not change. None: never.
      repartition: "auto": move to another partition once measurements predict that the epochs that
        remain gain more than the move costs, by the times that this graph took to place and this
        run to compile. All else carries on, and results are the same but for rounding. Devices then
        hold both graphs. `measure_every` is 1 if not given. None: never.
      on_epoch: function of each epoch's record; a true result ends training.
      on_compile: function of the compiled programs of an epoch, for `memory_analysis()` and
        `jaxgraph.analysis.traffic`; called once, before the first epoch. With one graph there is
        one program: step, evaluation and the choice of variables; of a streamed graph there are
        those that the parts visit.

    Returns:
      The history.

    Raises:
      ValueError: an argument is of the wrong kind, model, graph, task, optimizer and state do not
        fit together, no policy fits the limit: the least that works is named; or the checkpoints
        are of another run, or have more epochs than asked for; or processes do not call it alike.
      OSError: a checkpoint could not be written; earlier ones are unchanged.
      DivergenceError: the training or validation loss is not finite; the model holds the best
        parameters so far. It is a FloatingPointError with the `history`, whose state precedes that
        epoch, and names the first parameter that is not finite.
      TrainingInterrupted: Ctrl-C in training, or SIGTERM where `jax.distributed` is initialized. It
        is a KeyboardInterrupt, so that a program ends as usual, with the `history` of the completed
        epochs.
    """
    limit = None if memory_limit is None else bytes_of("memory_limit", memory_limit)
    task = checked_task(task)
    loader, digests = None, {}
    if isinstance(sharded, Loader):
        check_loader(model, sharded, task)
        loader, sharded, aggregate_once = sharded, sharded.sharded, False
        digests = loader_digests(loader)
    epoch_program = epoch_program_of(loader, staleness)
    if staleness:
        digests |= {"staleness": str(staleness)}
    begin_watch = None
    if measure_every is not None or repartition is not None:
        # Training reaches up: the planner measures and moves it.
        from jaxgraph.planner.cost.watch import watch_of

        wanted = (source, measure_every, repartition)
        begin_watch = watch_of(model, sharded, *wanted, aggregate_once=aggregate_once)
    has_links = loader is not None and loader.links is not None
    graphs = checked_graphs(model, sharded, task, train=not has_links)
    check_training(task, graphs)
    check_optimizer(optimizer, model)
    check_eval_params(eval_params, optimizer, model, graphs)
    epochs = checked_count("epochs", epochs)
    patience = None if patience is None else checked_count("patience", patience)
    for name, function in (("on_epoch", on_epoch), ("on_compile", on_compile)):
        if function is not None and not callable(function):
            raise ValueError(f"{name} is {function!r}; expected a function")
    seed = None if seed is None else checked_seed("seed", seed)
    policy = None if plan is None else plan.policy
    options = {
        "epochs": epochs,
        "seed": seed,
        "patience": patience,
        "eval_params": eval_params,
        "aggregate_once": bool(aggregate_once),
        "memory_limit": limit,
        "plan": policy,
        "state": state,
        "checkpoint": checkpoint,
        "source": source,
        "measure_every": measure_every,
        "repartition": repartition,
    }
    facts = {
        "is_streamed": graphs[0].is_streamed,
        "has_val": any("val" in task.splits(graph.shards) for graph in graphs),
        "has_flow": any(graph.shards.manifest.flow is not None for graph in graphs),
        "has_loader": loader is not None,
    }
    _check_together(options, **facts)
    if jax.process_count() > 1:
        del options["source"]
        options["state"] = jax.tree.leaves(state)
        options["checkpoint"] = checkpoint and (checkpoint.every, checkpoint.keep)
        entries = of_process(model, optimizer, task, graphs, options) | digests
        check_alike(entries, "Call fit with the same arguments in all processes")
    learner = make_learner(model, optimizer, task, eval_params)
    with saving_of(checkpoint, model, optimizer, task, graphs, digests) as saving:
        expected = abstract_fit_state(model, optimizer)
        of_run = (limit, bool(aggregate_once), patience, on_epoch, epoch_program)
        run, memory_plan = Run(model, optimizer, learner, expected, saving, *of_run), None
        if policy is not None:
            run = run.under_policy(policy)
        elif limit is not None and not graphs[0].is_streamed:
            run, memory_plan = run.within_limit(graphs, epochs)
        state, before = _resumed(run, state, epochs, seed, graphs[0])
        started = time.perf_counter()
        # Decisions for all epochs are made as in the run that is resumed.
        progress = run.begin(graphs, epochs, state, seed or 0)
        placed = time.perf_counter()
        compiled = progress.program.compile(progress.held)
        compile_seconds = time.perf_counter() - placed
        needs = progress.program.needs(progress.held)
        if needs is not None and limit is not None and needs.device > limit:
            raise ValueError(
                f"memory_limit is {limit:,} bytes of a device; an epoch on {graphs[0].num_parts} "
                f"part(s) takes {needs.device:,}. Cut the graph into more parts "
                "(jaxgraph.planner.fewest_parts finds how many), or allow that"
            )
        watch = None
        if begin_watch is not None:
            program = progress.program
            seconds = max(time.perf_counter() - started, program.compile_seconds)
            watch = begin_watch(program.graphs[0], seconds, saving.resumed.samples)
        if on_compile is not None:
            on_compile(compiled)
        begun = History((), compile_seconds, memory_plan=memory_plan, needs=needs, resumed=before)
        return run.train(progress, epochs - before, watch, begun)


def _check_together(
    options: dict[str, Any], *, is_streamed: bool, has_val: bool, has_flow: bool, has_loader: bool
) -> None:
    """Refuses options that are right alone and contradict each other, or the graph."""
    given = {name for name, value in options.items() if value is not None}
    measures = bool(given & {"measure_every", "repartition"})
    contradictions = {
        "source is read by measure_every and repartition='auto' alone; give one of them, or leave "
        "source out": "source" in given and not measures,
        "plan: not for a graph in mode 'stream', which computes every stage again; leave it out": (
            "plan" in given and is_streamed
        ),
        "memory_limit: the plan has the policies for a limit of its own; leave out memory_limit, "
        "or leave out plan": {"plan", "memory_limit"} <= given,
        "memory_limit: measurements and moves between epochs need memory of their own; leave out "
        "measure_every and repartition, or leave out memory_limit": "memory_limit" in given
        and measures,
        "state, checkpoint: a run with checkpoints begins anew or resumes one of them; leave out "
        "state, or leave out checkpoint": {"state", "checkpoint"} <= given,
        "measure_every, repartition: not for a graph with message_flow, whose layers compute some "
        "rows alone; leave them out, or shard without message_flow": measures and has_flow,
        "memory_limit, plan, measure_every, repartition, source: for steps over whole graphs; "
        "leave them out, or give fit the graph in place of the loader (a smaller batch_size needs "
        "less memory)": has_loader
        and (measures or bool(given & {"memory_limit", "plan", "source"})),
        "patience needs validation nodes, and the graph has no val_mask; give Graph val_mask=..., "
        "or leave patience out": "patience" in given and not has_val,
    }
    for message, is_wrong in contradictions.items():
        if is_wrong:
            raise ValueError(message)


def _resumed(
    run: Run, state: FitState | None, epochs: int, seed: int | None, sharded: ShardedGraph
) -> tuple[FitState | None, int]:
    """The state from which a run goes on, if any, and the epochs that its checkpoint has done."""
    resumed = run.saving.resumed
    if resumed.epoch > epochs:
        raise ValueError(
            f"epochs is {epochs}, and {run.saving.last} is of a run that has done {resumed.epoch}; "
            "ask for as many epochs or more, or take another folder"
        )
    state = state if resumed.state is None else resumed.state
    if state is None:
        return None, 0
    state = checked_fit_state(state, run.expected)
    if seed is not None:
        key_data = jax.device_get(jax.random.key_data(random_key(seed, sharded)))
        if not np.array_equal(key_data, jax.device_get(state.key_data)):
            raise ValueError(
                f"seed is {seed}, and the state continues a run of another seed; leave seed out"
            )
    return state, resumed.epoch
