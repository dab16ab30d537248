"""`jaxgraph partition`: assigns nodes to parts, reports the quality, and writes the parts."""

import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table

from jaxgraph.byte_amounts import bytes_of
from jaxgraph.cli.display import StepBar, byte_text, second_text, two_columns
from jaxgraph.cli.graphs import (
    check_features,
    described,
    graph_summary,
    load_graph,
    reader_options,
    split_summary,
    weights_of,
)
from jaxgraph.cli.json_file import write_json
from jaxgraph.cli.option import REQUIRED, option
from jaxgraph.cli.options import DATASET, PARTITIONERS, GraphOptions, PartsOptions
from jaxgraph.cli.output import Output
from jaxgraph.cli.recipes import recipe
from jaxgraph.datasets import ogb
from jaxgraph.datasets.files import data_folder
from jaxgraph.external import Request, partition_file
from jaxgraph.external.request import METHODS
from jaxgraph.graph_facts import facts_of
from jaxgraph.layout.part_files import PartFolder
from jaxgraph.layout.part_writing import check_target
from jaxgraph.partition import PartitionReport, partition, report
from jaxgraph.partition.metis import BALANCES, OBJECTIVES
from jaxgraph.partition.registry import check_names
from jaxgraph.transforms import normalize_features
from jaxgraph.written_file import check_writable

__all__ = ["PartitionOptions", "run_partition"]

_OF_WRITING = {each.name for each in fields(PartsOptions)}
_OF_WRITING -= {"order", *(each.name for each in fields(GraphOptions))}
_IN_MEMORY = ("labels_per_class", "num_classes", "num_features", "degree", "order")
_READ = ("separator", "header", "counts", "columns", "num_nodes", "name", "split", "undirected")
"""Options of readers that apply to files that are not read into memory."""


@dataclass(frozen=True, kw_only=True)
class PartitionOptions(PartsOptions):
    """The options of `jaxgraph partition`."""

    dataset: str = option("Graph", DATASET, REQUIRED)
    parts: int = option("Partition", "Number of parts.", REQUIRED, least=1)
    partitioner: str = option(
        "Partition",
        "Partitioner; with --process-memory none that needs the graph in memory",
        "metis",
        choices=(*PARTITIONERS, "given"),
    )
    balance: str = option("Partition", "Balance of METIS", "nodes", choices=BALANCES)
    objective: str = option("Partition", "Objective of METIS", "cut", choices=OBJECTIVES)
    json: Path | None = option("Partition", "Write the report to this file.")
    out: Path | None = option(
        "Partition",
        "Write the parts into this folder, for `jaxgraph train --partition`; options of devices "
        "and of features say how. It is new, empty or holds parts, which are replaced.",
    )
    process_memory: str | None = option(
        "Graphs larger than memory",
        "Cut a file of edges (.csv, .csv.gz, .tsv, .txt, .parquet, .npy) or an OGB folder without "
        "reading it into memory; the process takes at most so much, as 2GB. A run that is killed "
        "continues where it was.",
    )
    assignment: Path | None = option(
        "Graphs larger than memory", "File .npy of the part of each node, for a given partition."
    )
    node_data: Path | None = option(
        "Graphs larger than memory",
        "Folder of nodes.npy (features), labels.npy, train_mask.npy, val_mask.npy, test_mask.npy; "
        "and ids.npy, the id of each row, where ids are names.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names(
            "hash" if self.partitioner == "given" else self.partitioner,
            self.balance,
            self.objective,
        )
        if self.out is None:
            names = [*_OF_WRITING, "process_memory"]
            self.refuse(sorted(names), "for parts that are written; add --out FOLDER.")
        if self.process_memory is None:
            names = ["assignment", "node_data"]
            names += ["partitioner"] if self.partitioner == "given" else []
            self.refuse(names, "for a graph that is not in memory; add --process-memory 2GB.")
            return
        bytes_of("--process-memory", self.process_memory)
        self.refuse(_IN_MEMORY, "needs the graph in memory; leave it or --process-memory out.")
        if self.partitioner not in METHODS:
            raise ValueError(
                f"--partitioner: {self.partitioner} needs the graph in memory; take one of "
                f"{', '.join(METHODS)}, or leave --process-memory out."
            )

    @property
    def divides(self) -> bool:
        """Whether the features of each node are divided by their sum."""
        if self.normalize is not None:
            return self.normalize
        # All models of a data set prepare its features alike.
        return not self.degree_features and recipe(self.dataset, "gcn").normalize


def run_partition(options: PartitionOptions) -> None:
    """Partition a graph, print the quality of the result, and write the parts."""
    check_writable("--json", options.json)
    if options.out is not None:
        check_target(options.out)
    cut = _from_memory if options.process_memory is None else _from_files
    contents, quality, folder = cut(options)
    shown = [
        two_columns("Graph", contents["graph"]),
        _part_table(quality),
        two_columns("Partition", _totals(quality) | {"time": second_text(contents["seconds"])}),
    ]
    contents["partition"] = quality.to_dict()
    if folder is not None:
        files = folder.files.values()
        features = "rows divided by their sum" if folder.graph.normalized else "as read"
        size = sum(file.bytes for file in files)
        written = {"folder": str(options.out), "mode": folder.mode}
        figures = {"normalized": folder.graph.normalized, "files": len(files), "bytes": size}
        contents["written"] = written | figures
        written |= {"features": features, "size": f"{byte_text(size)} in {len(files)} files"}
        shown.append(two_columns("Parts on disk", written))
    try:
        if options.json is not None:
            write_json(options.json, contents)
    finally:
        Output().print(Group(*shown))


_Cut = tuple[dict[str, Any], PartitionReport, PartFolder | None]


def _from_memory(options: PartitionOptions) -> _Cut:
    graph = load_graph(options)
    facts = facts_of(graph)
    check_features(options.mode, facts)
    names = ("seed", "balance", "objective", "order")
    how = {name: getattr(options, name) for name in names}
    started = time.perf_counter()
    parts = partition(graph, options.parts, options.partitioner, **how)
    contents = {"graph": graph_summary(facts), "seconds": time.perf_counter() - started}
    quality, folder = report(graph, parts), None
    if options.out is not None:
        # Imported late, so that a report alone does not wait for jax.
        from jaxgraph.parallel import write_parts

        if options.divides and graph.nodes is not None:
            graph = normalize_features(graph)
        of_p3 = {name: getattr(options, name) for name in ("rest", "topology", "chunks")}
        facts = described(options, graph, normalized=options.divides)
        mode = options.mode or "sar"
        folder = write_parts(graph, parts, options.out, mode, facts=facts, **of_p3)
    return contents, quality, folder


def _from_files(options: PartitionOptions) -> _Cut:
    """Cuts a graph that is not read into memory."""
    assert options.out is not None and options.process_memory is not None
    started, request = time.perf_counter(), _request_of(options)
    with StepBar(Output()) as bar:
        found = partition_file(
            request,
            options.out,
            memory_limit=options.process_memory,
            dataset=options.dataset,
            split=split_summary(options),
            on_progress=bar.update,
        )
    seconds = time.perf_counter() - started
    contents = {"graph": graph_summary(found.folder.graph), "seconds": seconds}
    return contents, found.report, found.folder


def _request_of(options: PartitionOptions) -> Request:
    """The request that options stand for; ValueError where one does not apply."""
    given: dict[str, Any] = {"num_nodes": options.num_nodes, **reader_options(options)}
    unknown = given.keys() - set(_READ)
    if unknown:
        raise ValueError(
            f"--option: {', '.join(unknown)} does not apply with --process-memory; known: "
            f"{', '.join(_READ)}."
        )
    known, one_direction = options.dataset.lower().replace("_", "-"), False
    if known in ogb.NAMES:
        source, one_direction = ogb.find_ogb(known, data_folder(options.data_dir))
        given.setdefault("name", known)
    else:
        folder = Path() if options.data_dir is None else options.data_dir.expanduser()
        source = folder / options.dataset
        if not source.exists():
            raise ValueError(
                f"--dataset: there is no file or folder {source}; with --process-memory expected a "
                f"file of edges, a folder of OGB, or one of {', '.join(ogb.NAMES)}."
            )
    undirected = given.pop("undirected", None)
    undirected = one_direction if undirected is None else undirected
    names = ("assignment", "seed", "node_data", "degree_features", "ignore_edge_data", "relabel")
    given |= {name: getattr(options, name) for name in names}
    return Request(
        source=source,
        num_parts=options.parts,
        method=options.partitioner,
        mode=options.mode or "sar",
        undirected=bool(undirected) or options.undirected,
        normalize=options.divides,
        weights=weights_of(options.weight_column),
        **given,
    )


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
