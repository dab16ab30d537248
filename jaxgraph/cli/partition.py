"""`jaxgraph partition`: assigns nodes to parts, reports the quality, and writes the parts."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table

from jaxgraph.cli.command import REQUIRED, of_graph, option
from jaxgraph.cli.display import Output, StepBar, byte_text, second_text, two_columns
from jaxgraph.cli.graphs import (
    graph_summary,
    load_typed,
    reader_options,
    weights_of,
)
from jaxgraph.cli.options import PARTITIONERS, PartsOptions
from jaxgraph.cli.recipes import recipe
from jaxgraph.cli.result_files import write_json
from jaxgraph.datasets import ogb
from jaxgraph.datasets.files import data_folder
from jaxgraph.external import Request, partition_file
from jaxgraph.graph import Graph
from jaxgraph.graph_facts import GraphFacts, TypedFacts, facts_of, facts_of_typed
from jaxgraph.layout.part_files import PartFolder
from jaxgraph.layout.part_writing import check_target
from jaxgraph.partition import PartitionReport, partition, report
from jaxgraph.transforms import normalize_features
from jaxgraph.typed_graph import TypedGraph
from jaxgraph.written_file import check_writable

_OF_WRITING = ("mode", "rest", "topology", "chunks", "normalize", "process_memory")
_IN_MEMORY = ("labels_per_class", "num_classes", "num_features", "degree", "order")
_READ = ("separator", "header", "counts", "columns", "num_nodes", "name", "split", "undirected")
"""Options of readers that apply to files that are not read into memory."""


@dataclass(frozen=True, kw_only=True)
class PartitionOptions(PartsOptions):
    """The options of `jaxgraph partition`."""

    dataset: str = of_graph("Name of a dataset or a file, as for `jaxgraph train`.", REQUIRED)
    parts: int = option("Number of parts.", REQUIRED, least=1)
    partitioner: str = option("Partitioner", "metis", choices=(*PARTITIONERS, "given"))
    json: Path | None = option("Write the report to this file.")
    out: Path | None = option(
        "Write the parts into this folder, for `jaxgraph train --partition`. It is new, empty or "
        "holds parts, which are replaced."
    )
    process_memory: str | None = option(
        "Cut a file of edges (.csv, .csv.gz, .tsv, .txt, .parquet, .npy) or an OGB folder without "
        "reading it into memory; the process takes at most so much, as 2GB. A run that is killed "
        "continues after its last whole step."
    )
    assignment: Path | None = option("File .npy of the part of each node, for a given partition.")
    node_data: Path | None = option(
        "A table of nodes, as for `jaxgraph train`; with --process-memory a folder of nodes.npy "
        "(features), labels.npy, train_mask.npy, val_mask.npy, test_mask.npy; and ids.npy, the id "
        "of each row, where ids are names."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.out is None:
            self.refuse(_OF_WRITING, "for parts that are written; add --out FOLDER.")
        if self.process_memory is None:
            reason = "for a graph that is not in memory; add --process-memory 2GB."
            self.refuse(["assignment"], reason)
        else:
            self.refuse(_IN_MEMORY, "needs the graph in memory; leave it or --process-memory out.")

    @property
    def divides(self) -> bool:
        """True where the features of each node are divided by their sum."""
        if self.normalize is not None:
            return self.normalize
        # All models of a data set prepare its features alike.
        return not self.degree_features and recipe(self.dataset, "gcn").normalize


def run_partition(options: PartitionOptions) -> None:
    """Partition a graph, print the quality of the result, and write the parts."""
    check_writable("--json", options.json)
    if options.out is not None:
        check_target(options.out)
    started = time.perf_counter()
    cut = _from_memory if options.process_memory is None else _from_files
    facts, quality, folder = cut(options)
    seconds = time.perf_counter() - started
    figures = quality.to_dict()
    contents = {"graph": graph_summary(facts), "seconds": seconds, "partition": figures}
    named = {name.replace("_", " "): value for name, value in figures.items() if value is not None}
    named.pop("halo pairs")
    of_sets = named.pop("set balance", {})
    named |= {f"{name} balance": value for name, value in of_sets.items()}
    of_parts = {name: value for name, value in named.items() if isinstance(value, list)}
    table = Table(*of_parts, title=f"{quality.num_parts} parts by {quality.method}")
    for row in zip(*of_parts.values(), strict=True):
        table.add_row(*(f"{value:,}" for value in row))
    totals = {name: value for name, value in named.items() if name not in of_parts}
    totals["time"] = second_text(seconds)
    shown = [two_columns("Graph", contents["graph"]), table, two_columns("Partition", totals)]
    if folder is not None:
        size = sum(file.bytes for file in folder.files.values())
        written = {"folder": str(options.out), "mode": folder.mode, "files": len(folder.files)}
        written["normalized"] = getattr(folder.graph, "normalized", False)
        contents["written"] = written | {"bytes": size}
        shown.append(two_columns("Parts on disk", written | {"size": byte_text(size)}))
    try:
        if options.json is not None:
            write_json(options.json, contents)
    finally:
        Output().print(Group(*shown))


_Cut = tuple[GraphFacts | TypedFacts, PartitionReport, PartFolder | None]


def _from_memory(options: PartitionOptions) -> _Cut:
    graph, divides = load_typed(options), False
    if isinstance(graph, TypedGraph):
        facts = facts_of_typed(graph, dataset=options.dataset)
    else:
        divides = options.divides and graph.nodes is not None
        facts = facts_of(graph, dataset=options.dataset, normalized=divides)
    how = options.named("seed", "order")
    parts = partition(graph, options.parts, options.partitioner, **how)
    quality = report(graph, parts)
    if options.out is None:
        return facts, quality, None
    # Imported late, so that a report alone does not wait for jax.
    from jaxgraph.parallel import write_parts

    if divides and isinstance(graph, Graph):
        graph = normalize_features(graph)
    how = options.named("rest", "topology", "chunks")
    folder = write_parts(graph, parts, options.out, options.mode or "sar", facts=facts, **how)
    return facts, quality, folder


def _from_files(options: PartitionOptions) -> _Cut:
    """Cuts a graph that is not read into memory."""
    assert options.out is not None and options.process_memory is not None
    request = _request_of(options)
    with StepBar(Output()) as bar:
        found = partition_file(
            request,
            options.out,
            memory_limit=options.process_memory,
            dataset=options.dataset,
            on_progress=bar.update,
        )
    return found.folder.graph, found.report, found.folder


def _request_of(options: PartitionOptions) -> Request:
    """The request that options stand for; ValueError where one does not apply."""
    given: dict[str, Any] = {"num_nodes": options.num_nodes, **reader_options(options)}
    unknown = given.keys() - set(_READ)
    if unknown:
        raise ValueError(
            f"--option: {', '.join(unknown)} does not apply with --process-memory; known: "
            f"{', '.join(_READ)}."
        )
    source = (options.data_dir or Path()).expanduser() / options.dataset
    known = options.dataset.lower().replace("_", "-")
    if known in ogb.NAMES:
        source, one_direction = ogb.find_ogb(known, data_folder(options.data_dir))
        given = {"name": known, "undirected": one_direction} | given
    elif not source.exists():
        raise ValueError(
            f"--dataset: there is no file or folder {source}; with --process-memory expected a "
            f"file of edges, a folder of OGB, or one of {', '.join(ogb.NAMES)}."
        )
    names = ("assignment", "seed", "node_data", "degree_features", "ignore_edge_data", "relabel")
    given |= options.named(*names)
    given["undirected"] = bool(given.get("undirected")) or options.undirected
    return Request(
        source=source,
        num_parts=options.parts,
        method=options.partitioner,
        mode=options.mode or "sar",
        normalize=options.divides,
        weights=weights_of(options.weight_column),
        **given,
    )
