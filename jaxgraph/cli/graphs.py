"""The graph that the options of a command name."""

import ast
from typing import Any

import typer

from jaxgraph import datasets, transforms
from jaxgraph.cli.command import option_name
from jaxgraph.cli.display import Output
from jaxgraph.cli.options import GraphOptions
from jaxgraph.datasets import gnn_benchmark
from jaxgraph.datasets.registry import TYPED_NAMES, is_file_name
from jaxgraph.graph import Graph
from jaxgraph.graph_facts import GraphFacts, TypedFacts
from jaxgraph.layout.schema import EDGE_DATA
from jaxgraph.typed_graph import TypedGraph


def load_typed(options: GraphOptions) -> Graph | TypedGraph:
    """Reads or generates the graph, as `load_graph` does; it may have types."""
    name = str(options.dataset).lower().replace("_", "-")
    if name not in TYPED_NAMES:
        return load_graph(options)
    transforming = ["undirected", "degree_features", "labels_per_class", "ignore_edge_data"]
    transforming.append("node_data")
    given = [option_name(x) for x, value in options.named(*transforming).items() if value]
    if given:
        raise ValueError(
            f"{', '.join(given)}: not for {name}, whose edges have types; leave it out."
        )
    return datasets.load(name, data_dir=options.data_dir, **reader_options(options))


def load_graph(options: GraphOptions) -> Graph:
    """Reads or generates the graph, then applies the requested transforms."""
    assert options.dataset is not None
    given = options.named("num_nodes", "num_classes", "num_features", "degree", "relabel")
    given["node_data"] = options.node_data
    given["weights"] = weights_of(options.weight_column)
    given = {name: value for name, value in given.items() if value is not None}
    if options.dataset.lower().replace("_", "-") in gnn_benchmark.NAMES:
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
    for text in options.option or ():
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


def graph_summary(facts: GraphFacts | TypedFacts) -> dict[str, Any]:
    """The name of a graph, and its counts: nodes, edges, features, classes, nodes of each mask."""
    if isinstance(facts, TypedFacts):
        totals = {"name": facts.name, "nodes": facts.num_nodes, "edges": facts.num_edges}
        nodes = {name: each.num_nodes for name, each in facts.node_sets.items()}
        return totals | nodes | {name: each.num_edges for name, each in facts.edge_sets.items()}
    counts = {name: getattr(facts, f"num_{name}") for name in ("nodes", "edges", "features")}
    return {"name": facts.name, **counts, "classes": facts.num_classes, **facts.splits}
