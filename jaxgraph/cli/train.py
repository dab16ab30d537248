"""`jaxgraph train`: partitions a graph, shards it over devices and trains a model on it."""

from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from jaxgraph.cli.devices import mesh_of
from jaxgraph.cli.display import EpochBar
from jaxgraph.cli.graph_options import GraphOptions, graph_summary, load_graph, split_summary
from jaxgraph.cli.info import versions
from jaxgraph.cli.json_file import check_writable, write_json
from jaxgraph.cli.recipes import Recipe, build_model, prepared, recipe
from jaxgraph.cli.summary import cost_summary, recipe_table, result_summary, summary_table
from jaxgraph.graph import Graph
from jaxgraph.partition import Partition, partition

__all__ = ["TrainOptions", "run_train"]

_model_option = partial(typer.Option, rich_help_panel="Model")
_device_option = partial(typer.Option, rich_help_panel="Devices")
_training_option = partial(typer.Option, rich_help_panel="Training")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(GraphOptions):
    """The options of `jaxgraph train`; None leaves the choice to the recipe."""

    model: Annotated[str, _model_option(help="gcn, sage, gat, gatv2, gin or deepgcn.")] = "gcn"
    hidden: Annotated[
        int | None, _model_option(help="Width of hidden layers, per head.", min=1)
    ] = None
    layers: Annotated[int | None, _model_option(help="Number of layers.", min=1)] = None
    heads: Annotated[int | None, _model_option(help="Attention heads.", min=1)] = None
    dropout: Annotated[float | None, _model_option(help="Dropout rate.")] = None
    norm: Annotated[str | None, _model_option(help="none, batch or layer.")] = None
    normalize_features: Annotated[
        bool | None,
        _model_option(
            "--normalize-features/--raw-features",
            help="Divide each node's features by their sum, or take them as they are.",
        ),
    ] = None
    dtype: Annotated[
        str, _model_option(help="Type of activations and messages: float32, bfloat16 or float16.")
    ] = "float32"
    parts: Annotated[
        int,
        _device_option(
            help="Parts, one a device; emulated on CPU where there are fewer devices.", min=1
        ),
    ] = 1
    mode: Annotated[
        str,
        _device_option(
            help="sar (one remote part at a time), domain (all at once) or p3 (features by column)."
        ),
    ] = "sar"
    rest: Annotated[
        str | None, _device_option(help="Mode p3: how layers behind the first run, domain or sar.")
    ] = None
    topology: Annotated[
        str | None,
        _device_option(help="Mode p3: edges of the first layer, replicated or pushed."),
    ] = None
    chunks: Annotated[
        int | None,
        _device_option(help="Mode p3: chunks of rows in which activations are reduced.", min=1),
    ] = None
    feature_budget: Annotated[
        int | None,
        _device_option(
            help="Mode p3: bytes of feature columns and edges of the first layer on a device; a "
            "slice for every device where not given.",
            min=1,
        ),
    ] = None
    prefetch: Annotated[
        bool, _device_option("--prefetch", help="Fetch the next part while aggregating.")
    ] = False
    implementation: Annotated[
        str | None,
        _device_option(help="Kernels: cpu or xla; the fastest that can be used where not given."),
    ] = None
    partitioner: Annotated[
        str, _device_option(help="metis, hash, random, equal-vertices or equal-edges.")
    ] = "metis"
    balance: Annotated[str, _device_option(help="What METIS balances: nodes, edges or labels.")] = (
        "nodes"
    )
    order: Annotated[
        str | None,
        _device_option(
            help="How nodes stand in memory, for speed: rcm, degree or metis; as given where not "
            "given."
        ),
    ] = None
    epochs: Annotated[
        int | None, _training_option(help="Passes over the graph, at most.", min=1)
    ] = None
    lr: Annotated[float | None, _training_option(help="Step size of Adam.")] = None
    weight_decay: Annotated[float | None, _training_option(help="L2 penalty.")] = None
    patience: Annotated[
        int | None,
        _training_option(
            help="Stop so many epochs after the best validation loss; 0: never.", min=0
        ),
    ] = None
    json: Annotated[
        Path | None, _training_option(help="Write the summary and the history to this file.")
    ] = None


def run_train(options: TrainOptions) -> None:
    """Train a model on a graph that is sharded over devices."""
    check_writable(options.json)
    settings, given = _settings(options)
    graph = prepared(settings, load_graph(options))
    _check_trainable(graph)
    parts = partition(
        graph,
        options.parts,
        method=options.partitioner,
        seed=options.seed,
        balance=options.balance,
        order=options.order,
    )
    console = Console()
    chosen = {"source": settings.source, "split": split_summary(options), "given": given}
    console.print(recipe_table(graph.name, asdict(settings), chosen))
    result = _train(options, settings, graph, parts, console) | {"recipe": chosen}
    console.print(summary_table(result))
    if options.json is not None:
        write_json(options.json, result)


def _settings(options: TrainOptions) -> tuple[Recipe, list[str]]:
    """The recipe, with the values of the command line, and the names of those."""
    given = {
        field.name: value
        for field in fields(Recipe)
        if (value := getattr(options, field.name, None)) is not None
    }
    defaults = recipe(options.dataset, given.pop("model"))
    if "heads" in given and defaults.heads is None:
        raise ValueError(f"--heads: {options.model} has no attention heads.")
    settings = replace(defaults, **given)
    if options.degree_features and options.normalize_features is None:
        # One number a node, which its sum would make 1.
        settings = replace(settings, normalize_features=False)
    return settings, list(given)


def _values(settings: Recipe) -> dict[str, Any]:
    return {name: value for name, value in asdict(settings).items() if name != "source"}


def _check_trainable(graph: Graph) -> None:
    if graph.labels is None:
        raise ValueError(f"{graph.name} has no labels; training needs a class for each node.")
    if graph.train_mask is None or graph.val_mask is None:
        raise ValueError(
            f"{graph.name} has no training and validation nodes; --labels-per-class 20 draws them."
        )


def _train(
    options: TrainOptions, settings: Recipe, graph: Graph, parts: Partition, console: Console
) -> dict[str, Any]:
    # Imported late, so that a wrong name or a missing file is reported without waiting for jax.
    import optax

    from jaxgraph import parallel, train

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
    compiled: list[Any] = []
    with EpochBar(settings.epochs, console) as bar:
        history = train.fit(
            model,
            sharded,
            optimizer,
            epochs=settings.epochs,
            seed=options.seed,
            patience=settings.patience or None,
            on_epoch=bar.update,
            on_compile=compiled.extend,
        )
    (epoch,) = compiled
    return {
        "versions": versions(),
        "options": asdict(options) | _values(settings),
        "graph": graph_summary(graph),
        **result_summary(history, train.evaluate(model, sharded)),
        **cost_summary(epoch, sharded),
    }
