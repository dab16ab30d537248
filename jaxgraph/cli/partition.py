"""`jaxgraph partition`: assigns nodes to parts and reports the quality."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table

from jaxgraph.cli.display import StepBar, byte_text, second_text, two_columns
from jaxgraph.cli.graph_options import (
    GraphOptions,
    described,
    graph_summary,
    load_graph,
    split_summary,
)
from jaxgraph.cli.interruption import Signals
from jaxgraph.cli.json_file import write_json
from jaxgraph.cli.large_options import LargeOptions, request_of
from jaxgraph.cli.limits import Number, OneOf, option_name
from jaxgraph.cli.mode_options import ModeOptions, check_features
from jaxgraph.cli.output import Output
from jaxgraph.cli.recipes import prepared, recipe
from jaxgraph.external import partition_file
from jaxgraph.graph import Graph
from jaxgraph.graph_facts import facts_of
from jaxgraph.layout.part_files import PartFolder
from jaxgraph.layout.part_writing import check_target
from jaxgraph.partition import Partition, PartitionReport, partition, report
from jaxgraph.partition.metis import BALANCES, OBJECTIVES
from jaxgraph.partition.registry import check_names, costless_methods
from jaxgraph.written_file import check_writable

__all__ = ["PartitionOptions", "run_partition"]

_option = partial(typer.Option, rich_help_panel="Partition")


@dataclass(frozen=True, kw_only=True)
class PartitionOptions(LargeOptions):
    """The options of `jaxgraph partition`."""

    parts: Annotated[int, _option(help="Number of parts."), Number(least=1)]
    method: Annotated[
        str,
        _option(
            help="metis, hash, random, equal-vertices or equal-edges; with --memory-limit hash, "
            "equal-vertices, equal-edges or given."
        ),
        OneOf((*costless_methods(), "given")),
    ] = "metis"
    balance: Annotated[
        str, _option(help="Balance of METIS: nodes, edges or labels."), OneOf(BALANCES)
    ] = "nodes"
    objective: Annotated[
        str, _option(help="Objective of METIS: cut or volume."), OneOf(OBJECTIVES)
    ] = "cut"
    json: Annotated[Path | None, _option(help="Write the report to this file.")] = None
    out: Annotated[
        Path | None,
        _option(
            help="Write the parts into this folder, for `jaxgraph train --partition`; options of "
            "devices and of features say how. It is new, empty or holds parts, which are replaced."
        ),
    ] = None

    def __post_init__(self) -> None:
        """Checks the options, alone and together."""
        super().__post_init__()
        if self.memory_limit is not None:
            if self.out is None:
                raise ValueError("--memory-limit: for parts that are written; add --out FOLDER.")
            if (self.balance, self.objective) != ("nodes", "cut"):
                raise ValueError(
                    "--balance, --objective: of METIS, which needs the graph in memory."
                )
            request_of(self)
            return
        if self.method == "given":
            raise ValueError("--method given: reads an assignment; add --memory-limit, as 2GB.")
        check_names(self.method, self.balance, self.objective, order=self.order)
        for field in fields(ModeOptions):
            is_more = field.name not in GraphOptions.__dataclass_fields__
            if is_more and self.out is None and getattr(self, field.name) is not None:
                name = "normalize/--raw" if field.name == "normalize" else field.name
                raise ValueError(
                    f"{option_name(name)}: for parts that are written; add --out FOLDER."
                )


def run_partition(options: PartitionOptions) -> None:
    """Partition a graph, print the quality of the result, and write the parts."""
    check_writable("--json", options.json)
    if options.out is not None:
        check_target(options.out)
    if options.memory_limit is not None and options.out is not None:
        with Signals():
            contents, shown = _in_bounded_memory(options, options.out, options.memory_limit)
        _tell(options, contents, shown)
        return
    with Signals():
        graph = load_graph(options)
        facts = facts_of(graph)
        check_features(options.mode, facts)
        started = time.perf_counter()
        parts = partition(
            graph,
            options.parts,
            method=options.method,
            seed=options.seed,
            balance=options.balance,
            objective=options.objective,
            order=options.order,
        )
        seconds = time.perf_counter() - started
        quality = report(graph, parts)
        summary = graph_summary(facts)
        contents = {"graph": summary, "seconds": seconds, "partition": quality.to_dict()}
        shown: list[RenderableType] = [
            two_columns("Graph", summary),
            _part_table(quality),
            two_columns("Partition", _totals(quality) | {"time": second_text(seconds)}),
        ]
        if options.out is not None:
            contents["written"] = written = _write(options, options.out, graph, parts)
            shown.append(two_columns("Parts on disk", _written_rows(written)))
    _tell(options, contents, shown)


def _tell(
    options: PartitionOptions, contents: Mapping[str, Any], shown: list[RenderableType]
) -> None:
    """Writes and prints the report."""
    try:
        if options.json is not None:
            write_json(options.json, contents)
    finally:
        Output().print(Group(*shown))


def _in_bounded_memory(
    options: PartitionOptions, out: Path, limit: str
) -> tuple[dict[str, Any], list[RenderableType]]:
    """Cuts a graph that is not read into memory, and returns the report and what to print."""
    started, output = time.perf_counter(), Output()
    with StepBar(output) as bar:
        found = partition_file(
            request_of(options),
            out,
            memory_limit=limit,
            dataset=options.dataset,
            split=split_summary(options),
            on_progress=bar.update,
        )
    seconds = time.perf_counter() - started
    summary, quality = graph_summary(found.folder.graph), found.report
    written = _figures_of(found.folder, out, seconds)
    contents = {"graph": summary, "seconds": seconds, "partition": quality.to_dict()}
    return contents | {"written": written}, [
        two_columns("Graph", summary),
        _part_table(quality),
        two_columns("Partition", _totals(quality)),
        two_columns("Parts on disk", _written_rows(written)),
    ]


def _write(options: PartitionOptions, out: Path, graph: Graph, parts: Partition) -> dict[str, Any]:
    """Writes the parts, and returns the figures of the report about them."""
    # All models of a data set prepare its features alike.
    settings = recipe(options.dataset, "gcn")
    given = False if options.degree_features else settings.normalize
    given = given if options.normalize is None else options.normalize
    settings = replace(settings, normalize=given)
    graph = prepared(settings, graph)
    started = time.perf_counter()
    # Imported late, so that a report alone does not wait for jax.
    from jaxgraph.parallel import write_parts

    folder = write_parts(
        graph,
        parts,
        out,
        options.mode or "sar",
        rest=options.rest,
        topology=options.topology,
        chunks=options.chunks,
        feature_budget=options.feature_budget,
        facts=described(options, graph, normalized=settings.normalize),
    )
    return _figures_of(folder, out, time.perf_counter() - started)


def _figures_of(folder: PartFolder, out: Path, seconds: float) -> dict[str, Any]:
    files = folder.files.values()
    return {
        "folder": str(out),
        "mode": folder.mode,
        "normalized": folder.graph.normalized,
        "files": len(files),
        "bytes": sum(file.bytes for file in files),
        "seconds": seconds,
    }


def _written_rows(written: Mapping[str, Any]) -> dict[str, Any]:
    features = "rows divided by their sum" if written["normalized"] else "as read"
    return {
        "folder": written["folder"],
        "mode": written["mode"],
        "features": features,
        "size": f"{byte_text(written['bytes'])} in {written['files']} files",
        "time": second_text(written["seconds"]),
    }


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
