"""`jaxgraph train`: partitions a graph, shards it over devices and trains a model on it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from jaxgraph.cli.devices import mesh_of
from jaxgraph.cli.display import EpochBar, EpochRecord
from jaxgraph.cli.graph_options import GraphOptions, graph_summary, load_graph, split_summary
from jaxgraph.cli.info import versions
from jaxgraph.cli.interruption import Interrupted, Signals
from jaxgraph.cli.json_file import write_json
from jaxgraph.cli.limits import Number, OneOf, option_name
from jaxgraph.cli.output import Output
from jaxgraph.cli.predictions import write_predictions
from jaxgraph.cli.recipes import MODELS, Recipe, build_model, prepared, recipe
from jaxgraph.cli.summary import cost_summary, recipe_table, result_summary, summary_table
from jaxgraph.cli.written_file import check_writable
from jaxgraph.graph import Graph
from jaxgraph.layout.manifest import MODES, TOPOLOGIES
from jaxgraph.partition import Partition, orders, partition
from jaxgraph.partition.metis import BALANCES
from jaxgraph.partition.registry import check_names, costless_methods

__all__ = ["TrainOptions", "run_train"]

# The library's own lists are in modules that import jax.
DTYPES = ("float32", "bfloat16", "float16", "float64")
IMPLEMENTATIONS = ("mosaic_gpu", "cpu", "xla")
NORMS = ("none", "batch", "layer")

_model_option = partial(typer.Option, rich_help_panel="Model")
_device_option = partial(typer.Option, rich_help_panel="Devices")
_training_option = partial(typer.Option, rich_help_panel="Training")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(GraphOptions):
    """The options of `jaxgraph train`; None leaves the choice to the recipe."""

    model: Annotated[
        str, _model_option(help=f"One of {', '.join(MODELS)}."), OneOf(tuple(MODELS))
    ] = "gcn"
    hidden: Annotated[
        int | None, _model_option(help="Width of hidden layers, per head."), Number(least=1)
    ] = None
    layers: Annotated[int | None, _model_option(help="Number of layers."), Number(least=1)] = None
    heads: Annotated[int | None, _model_option(help="Attention heads."), Number(least=1)] = None
    dropout: Annotated[
        float | None,
        _model_option(help="Dropout rate, from 0 to below 1."),
        Number(least=0, below=1),
    ] = None
    norm: Annotated[str | None, _model_option(help="none, batch or layer."), OneOf(NORMS)] = None
    normalize: Annotated[
        bool | None,
        _model_option(
            "--normalize/--raw",
            help="Divide each node's features by their sum, or leave them unchanged.",
        ),
    ] = None
    dtype: Annotated[
        str,
        _model_option(
            help="Type of activations and messages: float32, bfloat16, float16 or float64."
        ),
        OneOf(DTYPES),
    ] = "float32"
    parts: Annotated[
        int,
        _device_option(help="Parts, one a device; emulated on CPU where there are fewer devices."),
        Number(least=1),
    ] = 1
    mode: Annotated[
        str,
        _device_option(
            help="sar (one remote part at a time), domain (all at once), p3 (features by column) "
            "or auto, which is that of them that a plan predicts to be fastest."
        ),
        OneOf((*MODES, "p3", "auto")),
    ] = "sar"
    rest: Annotated[
        str | None,
        _device_option(help="Mode p3: how layers after the first run, domain or sar."),
        OneOf(MODES),
    ] = None
    topology: Annotated[
        str | None,
        _device_option(help="Mode p3: edges of the first layer, replicated or pushed."),
        OneOf(TOPOLOGIES),
    ] = None
    chunks: Annotated[
        int | None,
        _device_option(help="Mode p3: chunks of rows in which activations are reduced."),
        Number(least=1),
    ] = None
    feature_budget: Annotated[
        int | None,
        _device_option(
            help="Mode p3: bytes of feature columns and edges of the first layer on a device; a "
            "slice for every device where not given.",
        ),
        Number(least=1),
    ] = None
    prefetch: Annotated[
        bool, _device_option("--prefetch", help="Fetch the next part while aggregating.")
    ] = False
    implementation: Annotated[
        str | None,
        _device_option(
            help="Kernels: cpu, mosaic_gpu or xla; the fastest that can be used where not given."
        ),
        OneOf(IMPLEMENTATIONS),
    ] = None
    partitioner: Annotated[
        str,
        _device_option(help="metis, hash, random, equal-vertices or equal-edges."),
        OneOf(costless_methods()),
    ] = "metis"
    balance: Annotated[
        str, _device_option(help="Balance of METIS: nodes, edges or labels."), OneOf(BALANCES)
    ] = "nodes"
    order: Annotated[
        str | None,
        _device_option(
            help="Order of nodes in memory, for speed: rcm, degree or metis; as given where not "
            "given."
        ),
        OneOf(orders()),
    ] = None
    epochs: Annotated[
        int | None, _training_option(help="Passes over the graph, at most."), Number(least=1)
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
        if self.json is not None and self.json == self.predictions:
            raise ValueError(f"--predictions: {self.json} is the file of --json; expected another.")
        if self.heads is not None and recipe(self.dataset, self.model).heads is None:
            raise ValueError(f"--heads: {self.model} has no attention heads.")
        for name in ("rest", "topology", "chunks", "feature_budget"):
            if self.mode != "p3" and getattr(self, name) is not None:
                raise ValueError(
                    f"{option_name(name)}: for --mode p3 only; the mode is {self.mode}."
                )
        if self.prefetch and "sar" not in (self.mode, self.rest):
            need = "--mode p3 --rest sar" if self.mode == "p3" else "--mode sar"
            raise ValueError(f"--prefetch: layers of mode {self.mode} have none; use {need}.")
        if self.repartition is not None and self.mode == "p3":
            raise ValueError("--repartition: layers of mode p3 are not measured; use --mode sar.")
        check_names(self.partitioner, self.balance, order=self.order)


def run_train(options: TrainOptions) -> None:
    """Train a model on a graph that is sharded over devices.

    Ctrl-C and SIGTERM end it after the current epoch, with the summary of the epochs so far.
    """
    check_writable("--json", options.json)
    check_writable("--predictions", options.predictions)
    with Signals() as signals:
        settings, given = _settings(options)
        graph = prepared(settings, load_graph(options))
        _check_trainable(graph, options.mode)
        parts = partition(
            graph,
            options.parts,
            method=options.partitioner,
            seed=options.seed,
            balance=options.balance,
            order=options.order,
        )
        output = Output()
        if options.mode == "auto":
            signals.compilation_begins()
            options = _planned(options, settings, graph)
            output.print(f"mode: {options.mode}{' with prefetch' if options.prefetch else ''}")
        chosen = {"source": settings.source, "split": split_summary(options), "given": given}
        output.print(recipe_table(graph.name, asdict(settings), chosen))
        result = _train(options, settings, graph, parts, output, signals) | {"recipe": chosen}
        try:
            if options.json is not None:
                write_json(options.json, result)
        finally:
            output.print(summary_table(result))
        if result["diverged"] is not None:
            raise FloatingPointError(result["diverged"])
    if signals.received is not None:
        raise typer.Exit(Interrupted(signals.received).status)


def _settings(options: TrainOptions) -> tuple[Recipe, list[str]]:
    """The recipe with the values of options, and the names of the settings given as options."""
    given = {
        field.name: value
        for field in fields(Recipe)
        if (value := getattr(options, field.name, None)) is not None
    }
    defaults = recipe(options.dataset, given.pop("model"))
    settings = replace(defaults, **given)
    if options.degree_features and options.normalize is None:
        # One feature per node, which division by its sum would make 1.
        settings = replace(settings, normalize=False)
    return settings, list(given)


def _planned(options: TrainOptions, settings: Recipe, graph: Graph) -> TrainOptions:
    """The options with the mode that is predicted to be fastest, and its settings."""
    import optax

    from jaxgraph.planner import choose

    mesh, model = mesh_of(options.parts), build_model(settings, graph, options.seed)
    plan = choose(
        model,
        graph,
        mesh,
        optax.adam(settings.lr),
        methods=(options.partitioner,),
        compile=False,
    )
    return replace(options, **plan.shard_options())


def _check_trainable(graph: Graph, mode: str) -> None:
    if graph.labels is None:
        raise ValueError(f"{graph.name} has no labels; training needs a class for each node.")
    if graph.train_mask is None or graph.val_mask is None:
        raise ValueError(
            f"{graph.name} has no training and validation nodes; --labels-per-class 20 draws them."
        )
    if mode == "p3" and graph.nodes is None:
        raise ValueError(
            f"--mode p3: {graph.name} has no features, whose columns it splits; --degree-features "
            "makes some."
        )


def _train(
    options: TrainOptions,
    settings: Recipe,
    graph: Graph,
    parts: Partition,
    output: Output,
    signals: Signals,
) -> dict[str, Any]:
    """Trains, writes predictions, and returns the result to show and write."""
    signals.compilation_begins()
    # Imported late, so that a wrong name or a missing file is reported without waiting for jax.
    import jax
    import optax

    from jaxgraph import parallel, train

    if options.dtype == "float64":
        # The command owns the process.
        jax.config.update("jax_enable_x64", True)
    model = build_model(settings, graph, options.seed, options.dtype)
    mesh = mesh_of(options.parts)
    sharded = parallel.shard(
        graph,
        parts,
        mesh,
        mode=options.mode,
        prefetch=options.prefetch,
        implementation=options.implementation,
        node_dtype=None if graph.nodes is None else options.dtype,
        rest=options.rest,
        topology=options.topology,
        chunks=options.chunks,
        feature_budget=options.feature_budget,
    )
    optimizer = optax.chain(
        optax.add_decayed_weights(settings.weight_decay), optax.adam(settings.lr)
    )
    task = train.NodeClassification(label_smoothing=options.label_smoothing)
    if options.class_weights == "balanced":
        task = train.NodeClassification.balanced(graph, label_smoothing=options.label_smoothing)
    learning = {"source": graph, "repartition": "auto"} if options.repartition else {}
    outcome = _fit(
        settings, options.seed, model, sharded, optimizer, task, output, signals, learning
    )
    if outcome.diverged is not None and not outcome.history.records:
        raise FloatingPointError(outcome.diverged)
    if options.predictions is not None:
        write_predictions(options.predictions, graph, train.predict(model, sharded))
    values = {name: value for name, value in asdict(settings).items() if name != "source"}
    return {
        "versions": versions(),
        "options": asdict(options) | values,
        "graph": graph_summary(graph),
        "interrupted": outcome.interrupted,
        "diverged": outcome.diverged,
        **result_summary(outcome.history),
        **cost_summary(outcome.epoch, sharded),
    }


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """The outcome of training.

    Args:
        history: The history of the epochs that have ended.
        epoch: The compiled program of an epoch.
        interrupted: Whether a signal arrived before the last epoch.
        diverged: The loss that became NaN or infinite, with advice, or None.
    """

    history: Any
    epoch: Any
    interrupted: bool = False
    diverged: str | None = None


def _fit(
    settings: Recipe,
    seed: int,
    model: Any,
    sharded: Any,
    optimizer: Any,
    task: Any,
    output: Output,
    signals: Signals,
    learning: dict[str, Any],
) -> _Outcome:
    from jaxgraph import train

    programs: list[Any] = []

    def begin(compiled: Sequence[Any]) -> None:
        programs.extend(compiled)
        signals.epochs_begin()

    with EpochBar(settings.epochs, output) as bar:

        def end_epoch(record: EpochRecord) -> None:
            bar.update(record)
            signals.epoch_ended()

        try:
            history = train.fit(
                model,
                sharded,
                optimizer,
                epochs=settings.epochs,
                seed=seed,
                task=task,
                patience=settings.patience or None,
                on_epoch=end_epoch,
                on_compile=begin,
                **learning,
            )
        except train.TrainingInterrupted as error:
            cut = len(error.history.records) < settings.epochs
            return _Outcome(history=error.history, epoch=programs[0], interrupted=cut)
        except train.DivergenceError as error:
            advice = "Use a smaller --lr; JAX_DEBUG_NANS=1 in the environment shows where it starts"
            message = f"{error.loss}. {advice}."
            return _Outcome(history=error.history, epoch=programs[0], diverged=message)
    return _Outcome(history=history, epoch=programs[0])
