"""Cuts a graph in files into the parts of a folder, step by step, in bounded memory."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import resource
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np

from jaxgraph import byte_amounts
from jaxgraph.datasets.edge_list import naming
from jaxgraph.datasets.files import AmbiguousFileError, BrokenFileError
from jaxgraph.external.limits import Amounts, amounts_of, check_limit
from jaxgraph.external.node_files import row_bytes, split_nodes
from jaxgraph.external.ordering import count_nodes, order_parts
from jaxgraph.external.part_source import FileParts
from jaxgraph.external.request import Request
from jaxgraph.external.sources import Found, files_of, number_source, read_source
from jaxgraph.external.splitting import assign, split_edges, without_repeats
from jaxgraph.external.work import Work
from jaxgraph.graph_facts import GraphFacts
from jaxgraph.layout.index_range import check_sizes
from jaxgraph.layout.part_files import PartFolder
from jaxgraph.layout.part_writing import check_target, write_source
from jaxgraph.partition.report import PartitionReport, report_of_counts
from jaxgraph.written_file import alone_in

Progress = Callable[[str, int, int], object]
"""Called with a step, how much of it is done, and all of it (0: not known)."""


_OTHER_FILES = 24
"""Files that the program has open beside those of the parts, at most."""


@dataclasses.dataclass(frozen=True)
class Partitioned:
    """The result of `partition_file`.

    Attributes:
      folder: the parts, opened.
      report: the quality of the partition.
    """

    folder: PartFolder
    report: PartitionReport


def partition_file(
    request: Request,
    folder: str | os.PathLike[str],
    *,
    memory_limit: int | str,
    dataset: str | None = None,
    split: str | None = None,
    on_progress: Progress = lambda step, done, total: None,
) -> Partitioned:
    """Cuts a graph in files into parts, without ever holding it.

    The folder holds what `jaxgraph.parallel.write_parts` writes of the same graph and assignment.
    A run that is killed leaves its finished steps in the folder, beside the parts that were there
    before; the same request continues from them.

    Args:
      request: the files, and the parts that they are cut into.
      folder: a new or empty folder, or one that holds parts, which are replaced in the end.
      memory_limit: resident memory that the process may take, in bytes or as "2GB". An edge takes
        some of it while its chunk or its part is processed, a node always.
      dataset, split: for reports, as `GraphFacts` holds them.
      on_progress: called with the name of a step, how much of it is done, and all of it.

    Returns:
      The folder, and the report.

    Raises:
      ValueError: a file is missing, broken or ambiguous; an option does not fit it; the limit is
        too small for the nodes or the edges of one part; or the folder holds something else.
      OSError: the folder could not be written.
    """
    amounts = amounts_of(byte_amounts.bytes_of("memory_limit", memory_limit))
    _check_open_files(request.num_parts)
    root = check_target(folder)
    name, is_new = f"work-{_fingerprint(request)}", not root.exists()
    try:
        root.mkdir(exist_ok=True)
        work = Work(root / name)
        work.folder.mkdir(exist_ok=True)
        with alone_in(work.folder):
            return _parts(request, work, amounts, on_progress, dataset=dataset, split=split)
    except (AmbiguousFileError, BrokenFileError):
        # The mended file, or another option, is another request: nothing would continue from this.
        shutil.rmtree(root if is_new else root / name, ignore_errors=True)
        raise
    except OSError as error:
        # Errors of files that are read, and of the parts at last, have messages of their own.
        if isinstance(error, ValueError) or not error.strerror:
            raise
        raise OSError(
            f"{root} could not be written ({error.strerror.lower()}); parts that were there are "
            "unchanged, and the same request continues what was done."
        ) from error


def _check_open_files(num_parts: int) -> None:
    """Checks that the process may hold the files that are open at once; ValueError if not."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A part is mapped once for each of its two orders; the rest are those of the program.
    needed = 2 * num_parts + _OTHER_FILES
    if limit not in (resource.RLIM_INFINITY, -1) and limit < needed:
        raise ValueError(
            f"num_parts: {num_parts} parts need {needed} open files, and the limit is {limit}; "
            f"raise it with ulimit -n {needed}, or take {max((limit - _OTHER_FILES) // 2, 1)} "
            "parts at most"
        )


def _fingerprint(request: Request) -> str:
    """Names the work of a request: another request, or changed files, begin anew."""
    # The limit may be another one: positions in files do not depend on how much is read at once.
    # Hashes of names depend on the version of Polars.
    told = [repr(request), version("polars")]
    for path in files_of(request):
        facts = path.stat()
        told.append(f"{path.resolve()} {facts.st_size} {facts.st_mtime_ns}")
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:32]


def _parts(
    request: Request, work: Work, amounts: Amounts, on_progress: Progress, **told: str | None
) -> Partitioned:
    """Makes the parts of a request; `told` are facts for reports."""

    def progress(step: str) -> Callable[[int, int], object]:
        return partial(on_progress, step)

    with naming(request.source):
        found = read_source(work, request, amounts, progress("read"))
        progress("number")(0, 0)
        numbering = number_source(work, request, found, amounts)
        check_sizes({"num_nodes": numbering.num_nodes})
        _check_data(request, found, numbering.num_nodes)
        part = assign(request, found.edges, numbering, amounts.edges)
        buckets = split_edges(
            work, request, found.edges, numbering, part, amounts.edges, progress("split")
        )
    check_sizes({f"edges that end in part {i}": n for i, n in enumerate(buckets.counts)})
    if request.undirected:
        buckets = without_repeats(work, buckets, len(part))
    nodes, names = dict(found.nodes), numbering.names
    del numbering
    widest = row_bytes(nodes) * int(np.bincount(part).max())
    check_limit(amounts.limit, len(part), list(buckets.counts), widest)
    facts = count_nodes(buckets, part, amounts.edges)
    if request.degree_features:
        nodes["nodes"] = np.log1p(facts.degrees["in_degree"])[:, None]
    of_nodes = split_nodes(work, request, nodes, part, amounts, progress("nodes"))
    ordered = order_parts(work, buckets, facts.order, request.mode, progress("order"))
    source = FileParts.of(request.mode, ordered, buckets, of_nodes, facts)
    folder = write_source(
        source,
        work.folder.parent,
        _graph_facts(request, source, told),
        node_names=names,
        on_part=lambda index: on_progress("write", index + 1, request.num_parts),
    )
    extents = np.diff(facts.order.part_ptr), np.asarray(buckets.counts)
    labelled = np.asarray(of_nodes.facts["labelled"])
    report = report_of_counts(request.method, *extents, labelled, source.halo, facts.edge_cut)
    return Partitioned(folder, report)


def _check_data(request: Request, found: Found, num_nodes: int) -> None:
    for name, rows in found.nodes.items():
        if rows.shape[0] != num_nodes:
            raise ValueError(
                f"{name}: has {rows.shape[0]} rows, and the graph {num_nodes} nodes; expected "
                "one for each"
            )
    if request.undirected and found.edges.data:
        raise ValueError(
            f"undirected: edges have {', '.join(found.edges.data)}, which two equal edges may "
            "contradict; drop them with ignore_edge_data (--ignore-edge-data)"
        )


def _graph_facts(request: Request, source: FileParts, told: Mapping[str, Any]) -> GraphFacts:
    manifest, nodes = source.manifest, source.nodes
    of_classes = nodes.facts.get("train_class_counts")
    if of_classes is not None:
        of_classes = tuple(of_classes + [0] * (manifest.num_classes - len(of_classes)))
    of_edges = source.buckets.data
    return GraphFacts(
        name=request.name or request.source.name.split(".")[0],
        num_nodes=len(source.order.part),
        num_edges=sum(source.buckets.counts),
        num_features=nodes.kinds["nodes"][0][0] if "nodes" in nodes.kinds else 0,
        num_classes=manifest.num_classes,
        multilabel=manifest.multilabel,
        edge_features=of_edges["edges"][0][0] if "edges" in of_edges else 0,
        mean_log_degree=source.facts.mean_log_degree,
        splits=nodes.facts["splits"],
        train_class_counts=of_classes,
        normalized=request.normalize and "nodes" in nodes.kinds,
        num_edge_types=manifest.num_edge_types,
        **told,
    )
