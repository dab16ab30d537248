"""`jaxgraph train`: partitions a graph, shards it over devices and trains a model on it."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

import typer

from jaxgraph.cli.devices import mesh_of, start_share
from jaxgraph.cli.display import EpochBar, EpochRecord
from jaxgraph.cli.graph_options import described, graph_summary, load_graph
from jaxgraph.cli.info import versions
from jaxgraph.cli.interruption import Interrupted, Signals
from jaxgraph.cli.json_file import write_json
from jaxgraph.cli.limits import option_name
from jaxgraph.cli.mode_options import check_features
from jaxgraph.cli.model_options import chosen_recipe
from jaxgraph.cli.output import Output
from jaxgraph.cli.predictions import write_predictions
from jaxgraph.cli.process_group import ProcessGroup, joined
from jaxgraph.cli.process_options import ProcessOptions
from jaxgraph.cli.recipes import Recipe, build_model, prepared
from jaxgraph.cli.summary import cost_summary, recipe_table, result_summary, summary_table
from jaxgraph.cli.telemetry import Telemetry, check_telemetry
from jaxgraph.cli.train_input import (
    FolderInput,
    GraphInput,
    TrainInput,
    of_folder,
)
from jaxgraph.cli.train_options import TrainOptions
from jaxgraph.graph import Graph
from jaxgraph.graph_facts import GraphFacts, facts_of
from jaxgraph.layout.part_files import open_parts
from jaxgraph.partition import Partition, partition
from jaxgraph.written_file import check_writable, write_each

__all__ = ["run_train"]

_OF_PROCESS = {field.name for field in fields(ProcessOptions)}
_OF_PROCESS |= {"data_dir", "dataset", "folder", "json", "log", "partition", "predictions"}
_OF_PROCESS |= {"profile", "profile_epochs", "resume", "source"}
"""Options, and the source of a recipe, that may differ between the processes of a run."""

_FEW_NODES = 100
"""Nodes of a part, below which a limit of memory has cut the graph into very many parts."""


@dataclass(frozen=True)
class _Running:
    """This command while it runs.

    Args:
        output: Its output.
        signals: Those that it gets.
        group: The processes of the run.
    """

    output: Output
    signals: Signals
    group: ProcessGroup


def run_train(options: TrainOptions) -> None:
    """Train a model on a graph that is sharded over devices.

    Ctrl-C and SIGTERM end it after the current epoch, with the summary of the epochs so far.
    """
    with Signals() as signals, joined(options) as group:
        if group.is_first:
            check_writable("--json", options.json)
            check_writable("--predictions", options.predictions)
        check_telemetry(options)
        options, settings, given, source = _read(options, group)
        _check_alike(options, settings, source, group)
        output = Output()
        if options.mode == "auto":
            signals.compilation_begins()
            assert isinstance(source, GraphInput)
            options, source = _planned(options, settings, source, group)
            output.print(f"mode: {options.mode}{' with prefetch' if options.prefetch else ''}")
        facts = source.facts
        split = facts.split or "that of the parts"
        chosen = {"source": settings.source, "split": split, "given": given}
        output.print(recipe_table(facts.name, asdict(settings), chosen))
        running = _Running(output, signals, group)
        result, writes = _train(options, settings, source, running)
        result["recipe"] = chosen
        if options.json is not None and group.is_first:
            writes.append(partial(write_json, options.json, result))
        try:
            write_each(*writes)
        finally:
            output.print(summary_table(result))
        if result["diverged"] is not None:
            raise FloatingPointError(result["diverged"])
    if signals.received is not None:
        raise typer.Exit(Interrupted(signals.received).status)


def _check_alike(
    options: TrainOptions, settings: Recipe, source: TrainInput, group: ProcessGroup
) -> None:
    """Refuses a run whose processes have other options, or another graph, than the first."""
    if group.count == 1:
        return
    start_share(max(options.devices or options.parts or 1, group.count), group.count)
    from jaxgraph.train.agreement import check_alike
    from jaxgraph.train.identity import definition

    chosen = asdict(options) | asdict(settings) | {"checkpoint": options.checkpoint is not None}
    alike = {option_name(name): x for name, x in chosen.items() if name not in _OF_PROCESS}
    alike |= {"versions": {**versions(), "python": ""}} | source.arrays()
    entries = {name: definition(value) for name, value in alike.items()}
    check_alike(entries, "Give all processes the same options, and the same graph.")


def _read(
    options: TrainOptions, group: ProcessGroup
) -> tuple[TrainOptions, Recipe, list[str], TrainInput]:
    """Reads and partitions the graph, or opens its folder.

    Returns the options with their defaults, the settings, their names that options gave, and the
    graph.
    """
    if options.partition is not None:
        folder = open_parts(options.partition)
        settings, given = chosen_recipe(options, folder.graph.dataset)
        settings = replace(settings, normalize=folder.graph.normalized)
        options = _with_devices(of_folder(options, folder), group)
        _check_trainable(folder.graph, options.mode)
        return options, settings, given, FolderInput(folder)
    assert options.dataset is not None
    settings, given = chosen_recipe(options, options.dataset)
    defaults: dict[str, Any] = {"mode": "sar", "partitioner": "metis", "balance": "nodes"}
    options = _with_devices(options, group)
    finds_parts = options.mode == "stream" and options.memory_limit and options.parts is None
    if options.parts is None and not finds_parts:
        defaults["parts"] = options.devices or group.default_parts()
    missing = {name: x for name, x in defaults.items() if getattr(options, name) is None}
    options = replace(options, **missing)
    graph = prepared(settings, load_graph(options))
    facts = described(options, graph, normalized=settings.normalize)
    _check_trainable(facts, options.mode)
    how: dict[str, Any] = {
        "method": options.partitioner,
        "seed": options.seed,
        "balance": options.balance,
        "order": options.order,
    }
    if finds_parts:
        parts = _fewest_parts(options, settings, graph, how, group)
        options = replace(options, parts=parts.num_parts)
        _warn_of_many_parts(options, graph, group)
    else:
        parts = partition(graph, options.parts or 1, **how)
    return options, settings, given, GraphInput(graph, parts, facts)


def _with_devices(options: TrainOptions, group: ProcessGroup) -> TrainOptions:
    """The options with the number of devices that a streamed graph visits."""
    if options.mode != "stream":
        return options
    devices = options.devices or group.default_parts()
    if options.parts is not None and options.parts % devices:
        raise ValueError(
            f"--parts: {options.parts} parts visit {devices} device(s), equally many each; "
            f"expected a multiple of {devices}, or other --devices."
        )
    return replace(options, devices=devices)


def _fewest_parts(
    options: TrainOptions,
    settings: Recipe,
    graph: Graph,
    how: dict[str, Any],
    group: ProcessGroup,
) -> Partition:
    """The partition with which a streamed epoch fits the memory limit."""
    import optax

    from jaxgraph.planner import fewest_parts

    mesh = mesh_of(options.devices or 1, group.count)
    model = build_model(settings, facts_of(graph), options.seed, options.dtype)
    optimizer = optax.adam(settings.lr)
    return fewest_parts(model, graph, optimizer, str(options.memory_limit), mesh=mesh, **how)


def _planned(
    options: TrainOptions, settings: Recipe, source: GraphInput, group: ProcessGroup
) -> tuple[TrainOptions, GraphInput]:
    """The options with the mode that is predicted to be fastest, its settings, and its parts.

    On one device a limit of memory decides whether the graph is streamed.
    """
    import optax

    from jaxgraph.planner import choose

    graph, on_one = source.graph, options.parts == 1
    mesh = mesh_of(options.parts or 1, group.count, options.hosts)
    model = build_model(settings, facts_of(graph), options.seed)
    plan = choose(
        model,
        graph,
        mesh,
        optax.adam(settings.lr),
        methods=(options.partitioner or "metis",),
        memory_limit=options.memory_limit if on_one else None,
        compile=on_one and options.memory_limit is not None,
    )
    if plan.mode == "stream":
        source = replace(source, parts=plan.partition(graph, options.seed))
    devices = options.parts if plan.mode == "stream" else None
    options = replace(options, **plan.shard_options(), parts=plan.num_parts, devices=devices)
    if plan.mode == "stream":
        _warn_of_many_parts(options, graph, group)
    return options, source


def _warn_of_many_parts(options: TrainOptions, graph: Graph, group: ProcessGroup) -> None:
    parts = options.parts or 1
    if group.is_first and parts > 1 and graph.num_nodes < _FEW_NODES * parts:
        typer.echo(
            f"Warning: --memory-limit {options.memory_limit} cuts {graph.num_nodes:,} nodes into "
            f"{parts} parts, and an epoch visits every pair of them; a larger limit is faster.",
            err=True,
        )


def _check_trainable(facts: GraphFacts, mode: str | None) -> None:
    if not facts.num_classes:
        raise ValueError(
            f"{facts.name} has no labels; training needs a class for each node. "
            "A file of edges gets them by jaxgraph partition --memory-limit 2GB "
            "--node-data FOLDER --out PARTS."
        )
    if not {"train", "val"} <= facts.splits.keys():
        raise ValueError(
            f"{facts.name} has no training and validation nodes; --labels-per-class 20 draws them."
        )
    check_features(mode, facts)


def _train(
    options: TrainOptions,
    settings: Recipe,
    source: TrainInput,
    running: _Running,
) -> tuple[dict[str, Any], list[Callable[[], None]]]:
    """Trains, and returns the result to show and write, and the write of the predictions."""
    group = running.group
    running.signals.compilation_begins()
    group.heartbeat.enter("place")
    # Imported late, so that a wrong name or a missing file is reported without waiting for jax.
    import jax
    import optax

    from jaxgraph import train
    from jaxgraph.train.classification import balanced_weights

    if options.dtype == "float64":
        # The command owns the process.
        jax.config.update("jax_enable_x64", True)
    facts = source.facts
    devices = options.devices or options.parts or 1
    mesh = mesh_of(devices, group.count, options.hosts)
    model = build_model(settings, facts, options.seed, options.dtype)
    sharded = source.place(options, mesh)
    optimizer = optax.chain(
        optax.add_decayed_weights(settings.weight_decay), optax.adam(settings.lr)
    )
    weights = None
    if options.class_weights == "balanced":
        weights = balanced_weights(facts.train_class_counts)
    task = train.NodeClassification(weights, label_smoothing=options.label_smoothing)
    run: dict[str, Any] = {
        "epochs": settings.epochs,
        "seed": options.seed,
        "memory_limit": options.memory_limit,
        "task": task,
        "patience": settings.patience or None,
        "checkpoint": options.checkpoints(),
    }
    if options.repartition is not None:
        assert isinstance(source, GraphInput)
        run |= {"source": source.graph, "repartition": options.repartition}
    outcome = _fit(options, running, model, sharded, optimizer, run)
    if outcome.diverged is not None and not outcome.history.records:
        raise FloatingPointError(outcome.diverged)
    writes: list[Callable[[], None]] = []
    if options.predictions is not None:
        outputs = train.predict(model, sharded)
        if group.is_first:
            names = source.node_names()
            write = partial(write_predictions, multilabel=facts.multilabel)
            writes.append(partial(write, options.predictions, outputs, names))
    values = {name: value for name, value in asdict(settings).items() if name != "source"}
    result = {
        "versions": versions(),
        "options": asdict(options) | values,
        "graph": graph_summary(facts),
        "interrupted": outcome.interrupted,
        "diverged": outcome.diverged,
        "resumed": outcome.history.resumed,
        **result_summary(outcome.history),
        **cost_summary(outcome.programs, sharded, outcome.history),
    }
    return result, writes


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """The outcome of training.

    Args:
        history: The history of the epochs that have ended.
        programs: The compiled program of an epoch, first; in mode "stream", those of its stages.
        interrupted: Whether a signal arrived before the last epoch.
        diverged: The loss that became NaN or infinite, with advice, or None.
    """

    history: Any
    programs: Sequence[Any]
    interrupted: bool = False
    diverged: str | None = None


def _fit(
    options: TrainOptions,
    running: _Running,
    model: Any,
    sharded: Any,
    optimizer: Any,
    run: dict[str, Any],
) -> _Outcome:
    """Trains; `run` holds the arguments of `fit` that do not depend on this command's display."""
    from jaxgraph import train

    programs: list[Any] = []
    signals, group, epochs = running.signals, running.group, run["epochs"]

    def begin(compiled: Sequence[Any]) -> None:
        programs.extend(compiled)
        group.meet()
        telemetry.begin(compiled)
        group.heartbeat.enter("epoch", 1)
        signals.epochs_begin()

    group.heartbeat.enter("compile")
    share = sharded.parts.moved.share_of_epoch if sharded.is_streamed else None
    with EpochBar(epochs, running.output, share) as bar, Telemetry(options, sharded) as telemetry:

        def end_epoch(record: EpochRecord) -> None:
            bar.update(record)
            telemetry.epoch_ended(record)
            signals.epoch_ended()
            if record.epoch < epochs:
                group.heartbeat.enter("epoch", record.epoch + 1)

        try:
            history = train.fit(
                model, sharded, optimizer, **run, on_epoch=end_epoch, on_compile=begin
            )
        except train.TrainingInterrupted as error:
            if error.number is not None:
                signals.received = error.number
            cut = len(error.history.records) < epochs
            return _Outcome(history=error.history, programs=programs, interrupted=cut)
        except train.DivergenceError as error:
            advice = "Use a smaller --lr; JAX_DEBUG_NANS=1 in the environment shows where it starts"
            message = f"{error.loss}. {advice}."
            return _Outcome(history=error.history, programs=programs, diverged=message)
        finally:
            group.heartbeat.enter("evaluate")
    return _Outcome(history=history, programs=programs)
