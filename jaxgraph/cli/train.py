"""`jaxgraph train`: partitions a graph, shards it over devices and trains a model on it."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from jaxgraph.byte_amounts import bytes_of
from jaxgraph.cli.checkpoint_options import CheckpointOptions
from jaxgraph.cli.devices import mesh_of, start_share
from jaxgraph.cli.display import EpochBar, EpochRecord
from jaxgraph.cli.graph_options import described, graph_summary, load_graph
from jaxgraph.cli.info import versions
from jaxgraph.cli.interruption import Interrupted, Signals
from jaxgraph.cli.json_file import write_json
from jaxgraph.cli.limits import Number, OneOf, option_name
from jaxgraph.cli.mode_options import ModeOptions, check_features
from jaxgraph.cli.model_options import ModelOptions, check_heads, chosen_recipe
from jaxgraph.cli.output import Output
from jaxgraph.cli.predictions import write_predictions
from jaxgraph.cli.process_group import ProcessGroup, joined
from jaxgraph.cli.process_options import ProcessOptions, check_processes
from jaxgraph.cli.recipes import Recipe, build_model, prepared
from jaxgraph.cli.summary import cost_summary, recipe_table, result_summary, summary_table
from jaxgraph.cli.telemetry import Telemetry, check_telemetry
from jaxgraph.cli.telemetry_options import TelemetryOptions
from jaxgraph.cli.train_input import (
    FolderInput,
    GraphInput,
    TrainInput,
    of_folder,
    refuse_graph_options,
)
from jaxgraph.graph import Graph
from jaxgraph.graph_facts import GraphFacts, facts_of
from jaxgraph.layout.manifest import MODES
from jaxgraph.layout.part_files import open_parts
from jaxgraph.partition import Partition, partition
from jaxgraph.partition.metis import BALANCES
from jaxgraph.partition.registry import check_names, costless_methods
from jaxgraph.written_file import check_writable, write_each

__all__ = ["TrainOptions", "run_train"]

# The library's own lists are in modules that import jax.
DTYPES = ("float32", "bfloat16", "float16", "float64")
IMPLEMENTATIONS = ("mosaic_gpu", "cpu", "xla")
_OF_PROCESS = {field.name for field in fields(ProcessOptions)}
_OF_PROCESS |= {"data_dir", "dataset", "folder", "json", "log", "partition", "predictions"}
_OF_PROCESS |= {"profile", "profile_epochs", "resume", "source"}
"""Options, and the source of a recipe, that may differ between the processes of a run."""

_model_option = partial(typer.Option, rich_help_panel="Model")
_device_option = partial(typer.Option, rich_help_panel="Devices")
_training_option = partial(typer.Option, rich_help_panel="Training")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(CheckpointOptions, ProcessOptions, TelemetryOptions, ModeOptions, ModelOptions):
    """The options of `jaxgraph train`; None leaves the choice to the recipe."""

    dropout: Annotated[
        float | None,
        _model_option(help="Dropout rate, from 0 to below 1."),
        Number(least=0, below=1),
    ] = None
    dtype: Annotated[
        str,
        _model_option(
            help="Type of activations and messages: float32, bfloat16, float16 or float64."
        ),
        OneOf(DTYPES),
    ] = "float32"
    dataset: Annotated[  # pyright: ignore[reportIncompatibleVariableOverride]
        str | None,
        typer.Option(
            rich_help_panel="Graph",
            help="Name of a dataset; `jaxgraph datasets` lists them; or a file: .csv, .tsv, .txt, "
            ".mtx, .graph, .parquet, .npy, .npz.",
        ),
    ] = None
    partition: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel="Graph",
            help="Instead of a dataset: a folder of parts, from `jaxgraph partition --out`.",
        ),
    ] = None
    parts: Annotated[
        int | None,
        _device_option(
            help="Parts, one a device; emulated on CPU where there are fewer devices. 1 where not "
            "given; of several processes one a device."
        ),
        Number(least=1),
    ] = None
    devices: Annotated[
        int | None,
        _device_option(
            help="Mode stream: devices that the parts visit, one part on each at a time. 1 where "
            "not given; of several processes all."
        ),
        Number(least=1),
    ] = None
    mode: Annotated[
        str | None,
        _device_option(
            help="sar (one remote part at a time), domain (all at once), p3 (features by column), "
            "stream (parts wait on the host and visit devices) or auto: that of the first three "
            "that a plan predicts to be fastest, and stream where --memory-limit keeps the graph "
            "off one device; sar where not given."
        ),
        OneOf((*MODES, "p3", "stream", "auto")),
    ] = None
    folder: Annotated[
        Path | None,
        _device_option(
            help="Modes stream and auto: an existing folder where streamed parts and activations "
            "wait; in memory where not given."
        ),
    ] = None
    prefetch: Annotated[
        bool, _device_option("--prefetch", help="Fetch the next part while aggregating.")
    ] = False
    memory_limit: Annotated[
        str | None,
        _device_option(
            help="Memory of one device that may be taken, as 16GB: what layers keep, recompute "
            "and offload is chosen by it, in mode stream the number of parts."
        ),
    ] = None
    implementation: Annotated[
        str | None,
        _device_option(
            help="Kernels: cpu, mosaic_gpu or xla; the fastest that can be used where not given."
        ),
        OneOf(IMPLEMENTATIONS),
    ] = None
    partitioner: Annotated[
        str | None,
        _device_option(
            help="metis, hash, random, equal-vertices or equal-edges; metis where not given."
        ),
        OneOf(costless_methods()),
    ] = None
    balance: Annotated[
        str | None,
        _device_option(help="Balance of METIS: nodes, edges or labels; nodes where not given."),
        OneOf(BALANCES),
    ] = None
    epochs: Annotated[
        int | None,
        _training_option(help="Passes over the graph, at most."),
        Number(least=1, below=2**31),
    ] = None
    lr: Annotated[
        float | None, _training_option(help="Step size of Adam, above 0."), Number(above=0)
    ] = None
    weight_decay: Annotated[
        float | None, _training_option(help="L2 penalty, 0 or more."), Number(least=0)
    ] = None
    class_weights: Annotated[
        str,
        _training_option(
            help="none, or balanced: all classes weigh the same together in the loss."
        ),
        OneOf(("none", "balanced")),
    ] = "none"
    label_smoothing: Annotated[
        float,
        _training_option(help="Share of a label given to all classes alike, from 0 to below 1."),
        Number(least=0, below=1),
    ] = 0.0
    patience: Annotated[
        int | None,
        _training_option(help="Stop this many epochs after the best validation loss; 0: never."),
        Number(least=0),
    ] = None
    repartition: Annotated[
        str | None,
        _training_option(
            help="auto: measure layers between epochs, and move to better parts where that pays."
        ),
        OneOf(("auto",)),
    ] = None
    json: Annotated[
        Path | None, _training_option(help="Write the summary and the history to this file.")
    ] = None
    predictions: Annotated[
        Path | None,
        _training_option(help="Write each node's name or id and its predicted class to this file."),
    ] = None

    def __post_init__(self) -> None:
        """Checks the options, alone and together."""
        super().__post_init__()
        check_processes(self)
        self.check_checkpoints()
        if self.memory_limit is not None:
            bytes_of("--memory-limit", self.memory_limit)
        if self.json is not None and self.json == self.predictions:
            raise ValueError(f"--predictions: {self.json} is the file of --json; expected another.")
        if (self.dataset is None) == (self.partition is None):
            raise ValueError("--dataset, --partition: expected one of them.")
        check_heads(self, self.dataset)
        if self.partition is not None:
            if self.repartition is not None:
                raise ValueError(
                    "--repartition: needs the whole graph; train from --dataset instead of "
                    "--partition."
                )
            settled = ("feature_budget", "partitioner", "balance", "order")
            refuse_graph_options(self, self.partition, settled)
        self._check_stream()
        if self.partition is not None and self.mode is None:
            return
        if self.prefetch and "sar" not in (self.mode or "sar", self.rest):
            need = "--mode p3 --rest sar" if self.mode == "p3" else "--mode sar"
            raise ValueError(f"--prefetch: layers of mode {self.mode} have none; use {need}.")
        if self.repartition is not None and self.mode == "p3":
            raise ValueError("--repartition: layers of mode p3 are not measured; use --mode sar.")
        if self.repartition is not None and self.memory_limit is not None:
            raise ValueError(
                "--repartition: a move needs memory of its own; leave out --memory-limit."
            )
        check_names(self.partitioner or "metis", self.balance or "nodes", order=self.order)

    def _check_stream(self) -> None:
        if self.mode != "stream":
            allowed = ("folder",) if self.mode == "auto" else ()
            for name in ("folder", "devices"):
                if getattr(self, name) is not None and name not in allowed:
                    raise ValueError(
                        f"{option_name(name)}: for --mode stream only; the mode is "
                        f"{self.mode or 'sar'}."
                    )
            return
        refused = ("prefetch", "repartition", "hosts")
        given = [option_name(name) for name in refused if getattr(self, name)]
        if given:
            raise ValueError(
                f"{', '.join(given)}: not for --mode stream, which has one part at a time on each "
                "device: --parts says how much of the graph that is. Leave it out."
            )
        if self.folder is not None and not self.folder.is_dir():
            raise ValueError(f"--folder: {self.folder} is no folder; make it first.")


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
    return options, source


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
