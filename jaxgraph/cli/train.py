"""`jaxgraph train`: partitions a graph, shards it over devices and trains a model on it."""

from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from jaxgraph.cli.devices import mesh_of
from jaxgraph.cli.display import EpochBar
from jaxgraph.cli.graph_options import GraphOptions, graph_summary, load_graph
from jaxgraph.cli.info import versions
from jaxgraph.cli.json_file import check_writable, write_json
from jaxgraph.cli.recipes import Recipe, build_model, recipe
from jaxgraph.cli.summary import cost_summary, result_summary, summary_table
from jaxgraph.graph import Graph
from jaxgraph.partition import Partition, partition

__all__ = ["TrainOptions", "run_train"]

_model_option = partial(typer.Option, rich_help_panel="Model")
_device_option = partial(typer.Option, rich_help_panel="Devices")
_training_option = partial(typer.Option, rich_help_panel="Training")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(GraphOptions):
    """The options of `jaxgraph train`; None leaves the choice to the model's recipe."""

    model: Annotated[str, _model_option(help="gcn, sage, gat, gatv2, gin or deepgcn.")] = "gcn"
    hidden: Annotated[
        int | None, _model_option(help="Width of hidden layers, per head.", min=1)
    ] = None
    layers: Annotated[int | None, _model_option(help="Number of layers.", min=1)] = None
    heads: Annotated[int | None, _model_option(help="Attention heads.", min=1)] = None
    dropout: Annotated[float | None, _model_option(help="Dropout rate.")] = None
    norm: Annotated[str | None, _model_option(help="none, batch or layer.")] = None
    dtype: Annotated[
        str,
        _model_option(
            help="Type of activations and messages: float32, bfloat16, float16 or float64."
        ),
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
    epochs: Annotated[int, _training_option(help="Passes over the graph.", min=1)] = 200
    lr: Annotated[float | None, _training_option(help="Step size of Adam.")] = None
    weight_decay: Annotated[float | None, _training_option(help="L2 penalty.")] = None
    patience: Annotated[
        int | None,
        _training_option(help="Stop so many epochs after the best validation loss.", min=1),
    ] = None
    json: Annotated[
        Path | None, _training_option(help="Write the summary and the history to this file.")
    ] = None


def run_train(options: TrainOptions) -> None:
    """Train a model on a graph that is sharded over devices."""
    check_writable(options.json)
    settings = _settings(options)
    graph = load_graph(options)
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
    result = _train(options, settings, graph, parts, console)
    console.print(summary_table(result))
    if options.json is not None:
        write_json(options.json, result)


def _settings(options: TrainOptions) -> Recipe:
    """The recipe of the model, with what the command line says otherwise."""
    given = {
        field.name: value
        for field in fields(Recipe)
        if (value := getattr(options, field.name, None)) is not None
    }
    defaults = recipe(options.model)
    if "heads" in given and defaults.heads is None:
        raise ValueError(f"--heads: {options.model} has no attention heads.")
    return replace(defaults, **given)


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
    import jax
    import optax

    from jaxgraph import parallel, train

    if options.dtype == "float64":
        # The process is the command's own.
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
    compiled: list[Any] = []
    with EpochBar(options.epochs, console) as bar:
        history = train.fit(
            model,
            sharded,
            optimizer,
            epochs=options.epochs,
            seed=options.seed,
            patience=options.patience,
            on_epoch=bar.update,
            on_compile=compiled.extend,
        )
    (epoch,) = compiled
    return {
        "versions": versions(),
        "options": asdict(options) | asdict(settings),
        "graph": graph_summary(graph),
        **result_summary(history, train.evaluate(model, sharded)),
        **cost_summary(epoch, sharded),
    }
