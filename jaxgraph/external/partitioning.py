"""Cuts a graph in files into the parts of a folder, step by step, in bounded memory."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import resource
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np

from jaxgraph import byte_amounts
from jaxgraph.datasets.edge_keys import Rows
from jaxgraph.datasets.edge_list import naming
from jaxgraph.datasets.files import AmbiguousFileError, BrokenFileError
from jaxgraph.datasets.node_ids import Numbering
from jaxgraph.external.limits import Amounts, amounts_of, check_limit
from jaxgraph.external.node_files import NodeFiles, row_bytes, split_nodes
from jaxgraph.external.ordering import NodeFacts, OrderedFiles, count_nodes, order_parts
from jaxgraph.external.part_source import FileParts
from jaxgraph.external.request import Request
from jaxgraph.external.sources import Found, files_of, number_source, read_source
from jaxgraph.external.splitting import Buckets, assign, split_edges, without_repeats
from jaxgraph.external.work import Work
from jaxgraph.graph_facts import GraphFacts
from jaxgraph.layout.index_range import check_sizes
from jaxgraph.layout.part_files import PartFolder
from jaxgraph.layout.part_writing import check_target, write_source
from jaxgraph.partition.report import PartitionReport, report_of_counts
from jaxgraph.written_file import alone_in

__all__ = ["Partitioned", "Progress", "partition_file"]

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
            return _Run(request, root, work, amounts, on_progress).parts(dataset, split)
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


@dataclasses.dataclass(frozen=True)
class _Run:
    """One run over the steps of a request."""

    request: Request
    root: Path
    work: Work
    amounts: Amounts
    on_progress: Progress

    def parts(self, dataset: str | None, split: str | None) -> Partitioned:
        """Makes the parts."""
        request, amounts = self.request, self.amounts
        with naming(request.source):
            found = read_source(self.work, request, amounts, self._progress("read"))
            self._progress("number")(0, 0)
            numbering = number_source(self.work, request, found, amounts)
            check_sizes({"num_nodes": numbering.num_nodes})
            self._check_data(found, numbering.num_nodes)
            part = assign(request, found.edges, numbering, amounts.edges)
            buckets = self._buckets(found, numbering, part)
        nodes = dict(found.nodes)
        names = numbering.names
        del numbering
        counts = np.bincount(part, minlength=request.num_parts)
        widest = row_bytes(nodes) * int(counts.max())
        check_limit(amounts.limit, len(part), list(buckets.counts), widest)
        facts = count_nodes(buckets, part, amounts.edges)
        of_nodes = self._split_nodes(nodes, part, facts)
        of_parts = self._progress("order")
        ordered = order_parts(self.work, buckets, facts.order, request.mode, of_parts)
        return self._written(found, facts, buckets, of_nodes, ordered, names, dataset, split)

    def _progress(self, step: str) -> Callable[[int, int], object]:
        return lambda done, total: self.on_progress(step, done, total)

    def _check_data(self, found: Found, num_nodes: int) -> None:
        for name, rows in found.nodes.items():
            if rows.shape[0] != num_nodes:
                raise ValueError(
                    f"{name}: has {rows.shape[0]} rows, and the graph {num_nodes} nodes; expected "
                    "one for each"
                )
        if self.request.undirected and found.edges.data:
            raise ValueError(
                f"undirected: edges have {', '.join(found.edges.data)}, which two equal edges may "
                "contradict; drop them with ignore_edge_data (--ignore-edge-data)"
            )

    def _buckets(self, found: Found, numbering: Numbering, part: np.ndarray) -> Buckets:
        request = self.request
        buckets = split_edges(
            self.work,
            found.edges,
            numbering,
            part,
            num_parts=request.num_parts,
            undirected=request.undirected,
            chunk=self.amounts.edges,
            on_progress=self._progress("split"),
        )
        check_sizes({f"edges that end in part {i}": n for i, n in enumerate(buckets.counts)})
        if request.undirected:
            return without_repeats(self.work, buckets, len(part))
        return buckets

    def _split_nodes(self, nodes: dict[str, Rows], part: np.ndarray, facts: NodeFacts) -> NodeFiles:
        if self.request.degree_features:
            degrees = np.log1p(facts.degrees["in_degree"])[:, None]
            nodes = {**nodes, "nodes": degrees}
        return split_nodes(
            self.work,
            nodes,
            part,
            self.request.num_parts,
            self.amounts,
            normalize=self.request.normalize,
            on_progress=self._progress("nodes"),
        )

    def _written(
        self,
        found: Found,
        facts: NodeFacts,
        buckets: Buckets,
        nodes: NodeFiles,
        ordered: OrderedFiles,
        names: np.ndarray | None,
        dataset: str | None,
        split: str | None,
    ) -> Partitioned:
        request, counted = self.request, nodes.facts
        source = FileParts.of(request.mode, ordered, buckets, nodes, facts)
        manifest = source.manifest
        of_classes = counted.get("train_class_counts")
        if of_classes is not None:
            of_classes = tuple(of_classes + [0] * (manifest.num_classes - len(of_classes)))
        of_graph = GraphFacts(
            name=request.name or request.source.name.split(".")[0],
            num_nodes=len(facts.order.part),
            num_edges=sum(buckets.counts),
            num_features=nodes.kinds["nodes"][0][0] if "nodes" in nodes.kinds else 0,
            num_classes=manifest.num_classes,
            multilabel=manifest.multilabel,
            edge_features=buckets.data["edges"][0][0] if "edges" in buckets.data else 0,
            mean_log_degree=facts.mean_log_degree,
            splits=counted["splits"],
            train_class_counts=of_classes,
            dataset=dataset,
            normalized=request.normalize and "nodes" in nodes.kinds,
            split=split,
        )
        progress, parts = self._progress("write"), request.num_parts
        folder = write_source(
            source,
            self.root,
            of_graph,
            node_names=names,
            on_part=lambda index: progress(index + 1, parts),
        )
        extents = np.diff(facts.order.part_ptr), np.asarray(buckets.counts)
        labelled = np.asarray(counted["labelled"])
        halo = source.halo
        report = report_of_counts(request.method, *extents, labelled, halo, facts.edge_cut)
        return Partitioned(folder, report)
