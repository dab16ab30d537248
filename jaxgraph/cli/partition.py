"""`jaxgraph partition`: assigns nodes to parts and reports the quality."""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table

from jaxgraph.cli.display import second_text, two_columns
from jaxgraph.cli.graph_options import GraphOptions, graph_summary, load_graph
from jaxgraph.cli.json_file import write_json
from jaxgraph.cli.limits import Number, OneOf
from jaxgraph.cli.output import Output
from jaxgraph.partition import PartitionReport, partition, report
from jaxgraph.partition.metis import BALANCES, OBJECTIVES
from jaxgraph.partition.registry import check_names, costless_methods
from jaxgraph.written_file import check_writable

__all__ = ["PartitionOptions", "run_partition"]

_option = partial(typer.Option, rich_help_panel="Partition")


@dataclass(frozen=True, kw_only=True)
class PartitionOptions(GraphOptions):
    """The options of `jaxgraph partition`."""

    parts: Annotated[int, _option(help="Number of parts."), Number(least=1)]
    method: Annotated[
        str,
        _option(help="metis, hash, random, equal-vertices or equal-edges."),
        OneOf(costless_methods()),
    ] = "metis"
    balance: Annotated[
        str, _option(help="Balance of METIS: nodes, edges or labels."), OneOf(BALANCES)
    ] = "nodes"
    objective: Annotated[
        str, _option(help="Objective of METIS: cut or volume."), OneOf(OBJECTIVES)
    ] = "cut"
    json: Annotated[Path | None, _option(help="Write the report to this file.")] = None

    def __post_init__(self) -> None:
        """Checks the options, alone and together."""
        super().__post_init__()
        check_names(self.method, self.balance, self.objective)


def run_partition(options: PartitionOptions) -> None:
    """Partition a graph and print the quality of the result."""
    check_writable("--json", options.json)
    graph = load_graph(options)
    started = time.perf_counter()
    parts = partition(
        graph,
        options.parts,
        method=options.method,
        seed=options.seed,
        balance=options.balance,
        objective=options.objective,
    )
    seconds = time.perf_counter() - started
    quality = report(graph, parts)
    shown = Group(
        two_columns("Graph", graph_summary(graph)),
        _part_table(quality),
        two_columns("Partition", _totals(quality) | {"time": second_text(seconds)}),
    )
    contents = {"graph": graph_summary(graph), "seconds": seconds, "partition": quality.to_dict()}
    try:
        if options.json is not None:
            write_json(options.json, contents)
    finally:
        Output().print(shown)


def _part_table(quality: PartitionReport) -> Table:
    table = Table(title=f"{quality.num_parts} parts by {quality.method}")
    columns = {
        "part": range(quality.num_parts),
        "nodes": quality.nodes,
        "edges": quality.edges,
        "training labels": quality.labelled,
        "halo rows": quality.halo_rows,
    }
    for name in columns:
        table.add_column(name, justify="right")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*(f"{int(value):,}" for value in row))
    return table


def _totals(quality: PartitionReport) -> dict[str, Any]:
    return {
        "edge cut": f"{quality.edge_cut:,} ({quality.edge_cut_share:.2%} of the edges)",
        "halo rows": f"{quality.halo_total:,}",
        "replication of nodes": quality.replication,
        "largest part / mean: nodes": quality.node_balance,
        "largest part / mean: edges": quality.edge_balance,
        "largest part / mean: training labels": quality.label_balance,
        "largest part / mean: halo rows": quality.halo_balance,
        "padding of an exchange of equal shapes": quality.exchange_padding,
    }
