"""The graph that the options of a command name."""

import ast
from typing import Any

import typer

from jaxgraph import datasets, transforms
from jaxgraph.cli.options import GraphOptions
from jaxgraph.cli.output import Output
from jaxgraph.datasets import gnn_benchmark
from jaxgraph.datasets.registry import is_file_name
from jaxgraph.graph import Graph
from jaxgraph.graph_facts import GraphFacts, facts_of
from jaxgraph.layout.manifest import EDGE_DATA

__all__ = [
    "check_features",
    "described",
    "graph_summary",
    "load_graph",
    "reader_options",
    "split_summary",
    "weights_of",
]


def load_graph(options: GraphOptions) -> Graph:
    """Reads or generates the graph, then applies the requested transforms.

    Raises:
        ValueError: The name is unknown, a file is missing or broken, or a transform does not apply.
    """
    assert options.dataset is not None
    names = ("num_nodes", "num_classes", "num_features", "degree", "relabel")
    given: dict[str, Any] = {name: getattr(options, name) for name in names}
    given["weights"] = weights_of(options.weight_column)
    given = {name: value for name, value in given.items() if value is not None}
    if _draws_split(options):
        given["split_seed"] = options.seed
    if is_file_name(options.dataset, options.data_dir):
        given["on_report"] = _print_report
    further = reader_options(options)
    try:
        graph = datasets.load(options.dataset, data_dir=options.data_dir, **given | further)
    except TypeError as error:
        # Only these arrive untyped: typer has checked the types of all other options.
        if not further:
            raise
        raise ValueError(f"--option: a value of {further} has the wrong type: {error}") from error
    names = [name for name in EDGE_DATA if getattr(graph, name) is not None]
    if options.ignore_edge_data and names:
        typer.echo(f"{graph.name}: ignoring {', '.join(names)} of its edges.", err=True)
        graph = graph.replace(**dict.fromkeys(names))
    if options.undirected:
        graph = transforms.to_undirected(graph)
    if options.degree_features:
        graph = transforms.degree_features(graph)
    if options.labels_per_class is not None:
        split = (options.labels_per_class, options.val_per_class)
        graph = transforms.random_split(graph, *split, seed=options.seed)
    return graph


def reader_options(options: GraphOptions) -> dict[str, Any]:
    """Reads every NAME=VALUE of `--option`; ValueError where one is none."""
    found = {}
    for text in options.option:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ValueError(f"--option: got {text!r}; expected NAME=VALUE, as split_seed=1.")
        try:
            found[name] = ast.literal_eval(value)
        except (SyntaxError, ValueError):
            found[name] = value
    return found


def weights_of(column: str | None) -> int | str | bool | None:
    """Reads `--weight-column` as the argument `weights` of a reader."""
    if column is not None and column.isdecimal():
        return int(column)
    return {"none": False, None: None}.get(column, column)


def _print_report(report: datasets.ReadReport) -> None:
    Output().print(str(report), markup=False, highlight=False, soft_wrap=True)


def _draws_split(options: GraphOptions) -> bool:
    return str(options.dataset).lower().replace("_", "-") in gnn_benchmark.NAMES


def split_summary(options: GraphOptions) -> str:
    """Names the source of training, validation and test nodes, with the seed of a drawn split."""
    train, val, seed = options.labels_per_class, options.val_per_class, options.seed
    origin = "drawn"
    if train is None and _draws_split(options):
        train, val = gnn_benchmark.SPLIT
        seed = reader_options(options).get("split_seed", seed)
        origin = "drawn from the largest component"
    if train is None:
        return "that of the dataset"
    return f"{origin}: {train} training and {val} validation nodes of each class, seed {seed}"


def described(options: GraphOptions, graph: Graph, *, normalized: bool) -> GraphFacts:
    """Counts the facts of a graph, and adds where it comes from.

    Args:
        options: The options by which it was read.
        graph: The graph, its features prepared.
        normalized: Whether its features, if it has any, were divided by their sum.
    """
    is_normalized = normalized and graph.nodes is not None
    origin = {"dataset": options.dataset, "split": split_summary(options)}
    return facts_of(graph, normalized=is_normalized, **origin)


def check_features(mode: str | None, facts: GraphFacts) -> None:
    """Raises ValueError where mode p3 is to split the columns of features that are not there."""
    if mode == "p3" and not facts.num_features:
        raise ValueError(
            f"--mode p3: {facts.name} has no features, whose columns it splits; --degree-features "
            "makes some."
        )


def graph_summary(facts: GraphFacts) -> dict[str, Any]:
    """The name of a graph, and its counts: nodes, edges, features, classes, nodes of each mask."""
    counts = {name: getattr(facts, f"num_{name}") for name in ("nodes", "edges", "features")}
    return {"name": facts.name, **counts, "classes": facts.num_classes, **facts.splits}
