"""The options that name a graph, and the graph that they name."""

import ast
import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from jaxgraph import datasets, transforms
from jaxgraph.cli.limits import Number, check_limits, option_name
from jaxgraph.cli.output import Output
from jaxgraph.datasets import gnn_benchmark
from jaxgraph.datasets.registry import is_file_name
from jaxgraph.graph import Graph
from jaxgraph.graph_facts import GraphFacts, facts_of
from jaxgraph.layout.manifest import EDGE_DATA
from jaxgraph.seeds import NUM_SEEDS

__all__ = [
    "GraphOptions",
    "described",
    "graph_summary",
    "load_graph",
    "named_value",
    "split_summary",
    "weights_of",
]

_option = partial(typer.Option, rich_help_panel="Graph")
_generator_option = partial(typer.Option, rich_help_panel="Generated graphs")


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """Options that choose a graph, to read or to generate, and prepare it for use."""

    dataset: Annotated[
        str,
        _option(
            help="Name of a dataset; `jaxgraph datasets` lists them; or a file: .csv, .tsv, .txt, "
            ".mtx, .graph, .parquet, .npy, .npz."
        ),
    ]
    data_dir: Annotated[
        Path | None, _option(help="Folder of the data; not needed for built-in sets.")
    ] = None
    seed: Annotated[
        int,
        _option(
            help="Seed of the split, where the dataset has none of its own, of the partition, of "
            "the initial parameters and of dropout."
        ),
        Number(least=0, below=NUM_SEEDS),
    ] = 0
    undirected: Annotated[bool, _option("--undirected", help="Add the reverse of every edge.")] = (
        False
    )
    degree_features: Annotated[
        bool, _option("--degree-features", help="Use log(1 + degree) as features.")
    ] = False
    ignore_edge_data: Annotated[
        bool,
        _option(
            "--ignore-edge-data",
            help="Drop weights, features and types of edges. Else gcn, sage and gin use weights; "
            "gat, gatv2 and gine features; and a model refuses what it does not use.",
        ),
    ] = False
    labels_per_class: Annotated[
        int | None,
        _option(help="Draw a split with so many training nodes per class."),
        Number(least=1),
    ] = None
    val_per_class: Annotated[
        int, _option(help="Validation nodes per class of the drawn split."), Number(least=1)
    ] = 30
    weight_column: Annotated[
        str | None,
        _option(help="File: name or number (from 0) of the column of weights, or none."),
    ] = None
    relabel: Annotated[
        bool | None,
        _option(
            "--relabel/--no-relabel",
            help="File: renumber ids, or use them as rows. Names are always renumbered.",
        ),
    ] = None
    option: Annotated[
        list[str],
        _option(help="NAME=VALUE, another option of the dataset, as split_seed=1; repeatable."),
    ] = field(default_factory=list)
    num_nodes: Annotated[
        int | None, _generator_option(help="Nodes to generate."), Number(least=1)
    ] = None
    num_classes: Annotated[
        int | None, _generator_option(help="Classes, or communities."), Number(least=1)
    ] = None
    num_features: Annotated[
        int | None, _generator_option(help="Features of a node."), Number(least=0)
    ] = None
    degree: Annotated[float | None, _generator_option(help="Mean degree."), Number(least=0)] = None

    def __post_init__(self) -> None:
        """Checks every option alone, in the words of the command line."""
        check_limits(self)
        folder = self.data_dir
        if folder is not None and not folder.expanduser().is_dir():
            raise ValueError(f"--data-dir: {folder} is no folder; expected one with the data.")
        if folder is not None and not os.access(folder.expanduser(), os.R_OK | os.X_OK):
            raise ValueError(
                f"--data-dir: {folder} cannot be read: no permission to list its files."
            )


def load_graph(options: GraphOptions) -> Graph:
    """Reads or generates the graph, then applies the requested transforms.

    Args:
        options: Which graph, and which transforms.

    Returns:
        The graph.

    Raises:
        ValueError: The name is unknown, a file is missing or broken, or a transform does not apply.
    """
    generated = {
        name: value
        for name in ("num_nodes", "num_classes", "num_features", "degree")
        if (value := getattr(options, name)) is not None
    }
    further = dict(named_value(text) for text in options.option)
    of_file = _file_options(options)
    if _draws_split(options):
        further = {"split_seed": options.seed} | further
    try:
        graph = datasets.load(
            options.dataset, data_dir=options.data_dir, **generated | of_file | further
        )
    except TypeError as error:
        # Only these arrive untyped: typer has checked the types of all other options.
        if not options.option:
            raise
        raise ValueError(f"--option: a value of {further} has the wrong type: {error}") from error
    if options.ignore_edge_data:
        graph = _without_edge_data(graph)
    if options.undirected:
        graph = transforms.to_undirected(graph)
    if options.degree_features:
        graph = transforms.degree_features(graph)
    if options.labels_per_class is not None:
        graph = transforms.random_split(
            graph, options.labels_per_class, options.val_per_class, seed=options.seed
        )
    return graph


def described(options: GraphOptions, graph: Graph, *, normalized: bool) -> GraphFacts:
    """Counts the facts of a graph, and adds where it comes from.

    Args:
        options: The options by which it was read.
        graph: The graph, its features prepared.
        normalized: Whether its features, if it has any, were divided by their sum.

    Returns:
        The facts.
    """
    return facts_of(
        graph,
        dataset=options.dataset,
        normalized=normalized and graph.nodes is not None,
        split=split_summary(options),
    )


def split_summary(options: GraphOptions) -> str:
    """Names the source of training, validation and test nodes.

    Args:
        options: The options given to `load_graph`.

    Returns:
        A phrase, with the seed of a drawn split.
    """
    train, val, seed = options.labels_per_class, options.val_per_class, options.seed
    origin = "drawn"
    if train is None and _draws_split(options):
        given = dict(named_value(text) for text in options.option)
        train, val, seed = *gnn_benchmark.SPLIT, given.get("split_seed", seed)
        origin = "drawn from the largest component"
    if train is None:
        return "that of the dataset"
    return f"{origin}: {train} training and {val} validation nodes of each class, seed {seed}"


def _draws_split(options: GraphOptions) -> bool:
    return options.dataset.lower().replace("_", "-") in gnn_benchmark.NAMES


def _file_options(options: GraphOptions) -> dict[str, Any]:
    given = {"weight_column": options.weight_column, "relabel": options.relabel}
    if not is_file_name(options.dataset, options.data_dir):
        for name, value in given.items():
            if value is not None:
                raise ValueError(
                    f"{option_name(name)}: {options.dataset} is no file; expected one, as "
                    "edges.csv."
                )
        return {}
    return {
        "weights": weights_of(options.weight_column),
        "relabel": options.relabel,
        "on_report": _print_report,
    }


def weights_of(column: str | None) -> int | str | bool | None:
    """Reads `--weight-column` as the argument `weights` of a reader."""
    if column is not None and column.isdecimal():
        return int(column)
    return {"none": False, None: None}.get(column, column)


def _print_report(report: datasets.ReadReport) -> None:
    Output().print(str(report), markup=False, highlight=False, soft_wrap=True)


def _without_edge_data(graph: Graph) -> Graph:
    names = [n for n in EDGE_DATA if getattr(graph, n) is not None]
    if names:
        typer.echo(f"{graph.name}: ignoring {', '.join(names)} of its edges.", err=True)
    return graph.replace(**dict.fromkeys(names))


def named_value(text: str) -> tuple[str, Any]:
    """Reads the NAME=VALUE of `--option`; ValueError where it is none."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError(f"--option: got {text!r}; expected NAME=VALUE, as split_seed=1.")
    try:
        return name, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return name, value


def graph_summary(facts: GraphFacts) -> dict[str, Any]:
    """Summarises a graph by its name and its counts.

    Args:
        facts: The facts of the graph.

    Returns:
        Name and counts: nodes, edges, features, classes, nodes in each mask.
    """
    return {
        "name": facts.name,
        "nodes": facts.num_nodes,
        "edges": facts.num_edges,
        "features": facts.num_features,
        "classes": facts.num_classes,
        **{name: facts.splits[name] for name in ("train", "val", "test") if name in facts.splits},
    }
