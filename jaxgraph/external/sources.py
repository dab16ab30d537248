"""The files of a request, opened: how its edges are read, and the arrays of its nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxgraph.datasets.edge_files import EdgeFile
from jaxgraph.datasets.edge_keys import (
    HASH_SEED,
    Ends,
    Facts,
    Rows,
    StoredEdges,
    read_keys,
)
from jaxgraph.datasets.edge_list import open_edges
from jaxgraph.datasets.file_rows import FileRows
from jaxgraph.datasets.files import MissingFileError, UnfitOptionError, reading
from jaxgraph.datasets.node_ids import Numbering, number_nodes, polars
from jaxgraph.datasets.ogb import contents_of
from jaxgraph.external.limits import Amounts
from jaxgraph.external.node_files import node_data_of
from jaxgraph.external.ogb_files import archive_rows, table_rows
from jaxgraph.external.request import Request
from jaxgraph.external.work import StepFiles, Work

_TEXT = (".csv", ".tsv", ".txt", ".edges", ".edgelist")
_FORMS = {end + packed: "text" for end in _TEXT for packed in ("", ".gz")}
_FORMS |= {".parquet": "Parquet", ".npy": "npy"}
Progress = Callable[[int, int], object]


@dataclasses.dataclass(frozen=True)
class Found:
    """The edges of a request in binary files, and the arrays of its nodes.

    Attributes:
      edges: all edges.
      num_nodes: as the caller or the file declares it, or None.
      nodes: arrays of nodes by name.
      ids: the id of each row of them, or None.
    """

    edges: StoredEdges
    num_nodes: int | None
    nodes: Mapping[str, Rows]
    ids: FileRows | None


def files_of(request: Request) -> list[Path]:
    """All files that a request reads, to notice when one changes."""
    source, found = request.source, []
    if source.is_dir():
        found += [x for name in ("raw", "split") for x in (source / name).rglob("*") if x.is_file()]
    else:
        found.append(source)
    if request.node_data is not None:
        found += request.node_data.glob("*.npy")
    if request.assignment is not None:
        found.append(request.assignment)
    for path in found:
        if not path.is_file():
            raise MissingFileError(f"{path}: no such file")
    return sorted(found)


def read_source(work: Work, request: Request, amounts: Amounts, on_progress: Progress) -> Found:
    """Reads the edges of a request into binary files, and opens the arrays of its nodes."""
    path = request.source
    nodes: dict[str, Rows] = {}
    if request.node_data is not None:
        nodes |= node_data_of(request.node_data)
    ids = nodes.pop("ids", None)
    assert ids is None or isinstance(ids, FileRows)
    num_nodes = request.num_nodes
    if path.is_dir():
        request.check_unused("an OGB folder")
        edges, num_nodes, of_folder = contents_of(
            path,
            request.split,
            table=lambda file, dtype: table_rows(work, file, dtype, amounts.block, on_progress),
            archive=lambda file: archive_rows(work, file, on_progress),
        )
        nodes = {**of_folder, **nodes}
    else:
        form = next((form for end, form in _FORMS.items() if path.name.lower().endswith(end)), None)
        if form is None:
            raise UnfitOptionError(
                f"{path}: cannot be read with a limit of memory; expected {', '.join(_FORMS)} or a "
                "folder of the Open Graph Benchmark"
            )
        with reading(path, "a list of edges"):
            edges, _, declared = open_edges(
                path,
                form,
                request,
                lambda source: _stored(work, source, request, on_progress),
                block=amounts.block,
                rows=amounts.edges,
            )
        num_nodes = num_nodes if declared is None else declared
    if nodes and num_nodes is None:
        num_nodes = next(iter(nodes.values())).shape[0]
    if request.ignore_edge_data:
        edges = dataclasses.replace(edges, data={})
    return Found(edges, num_nodes, nodes, ids)


def _stored(
    work: Work, source: EdgeFile, request: Request, on_progress: Progress
) -> tuple[StoredEdges, Facts]:
    """Reads a file of edges once."""

    def make(files: StepFiles) -> dict[str, Any]:
        return dataclasses.asdict(read_keys(files, source, request.relabel, on_progress))

    folder, noted = work.step("read", make)
    facts = Facts(**noted)
    key = np.dtype(np.uint64 if facts.are_texts else np.int64)
    ends = [FileRows(folder / end, key, (facts.edges,)) for end in ("senders", "receivers")]
    weights = folder / "edge_weight"
    rows = FileRows(weights, np.dtype(np.float32), (facts.edges,))
    data = {"edge_weight": rows} if weights.exists() else {}
    names = polars().scan_parquet(folder / "*.parquet") if facts.are_texts else None
    edges = StoredEdges(
        facts.edges, Ends((ends[0], ends[1])), facts.are_texts, data, source.place, names
    )
    return edges, facts


def number_source(work: Work, request: Request, found: Found, amounts: Amounts) -> Numbering:
    """Numbers the nodes of a request."""
    edges = found.edges
    if found.ids is not None:
        return _number_of_ids(found.ids, are_texts=edges.are_texts)
    is_named = edges.are_texts or bool(request.relabel)
    if found.nodes and is_named:
        raise ValueError(
            f"node_data: {request.node_data} has no ids.npy, the id of each row; without it the "
            "rows of nodes with names are not known"
        )

    def numbered(folder: Path | None) -> Numbering:
        return number_nodes(
            edges,
            relabel=request.relabel,
            num_nodes=request.num_nodes if is_named else found.num_nodes,
            chunk=amounts.edges,
            names_at_once=amounts.names,
            folder=folder,
            may_be_sparse=request.relabel is False or bool(found.nodes),
        )

    if not is_named:
        return numbered(None)

    def make(files: StepFiles) -> dict[str, Any]:
        numbering = numbered(files.folder)
        for name in ("keys", "rows"):
            if (values := getattr(numbering, name)) is not None:
                np.save(files.folder / f"{name}.npy", values)
        return {}

    folder, _ = work.step("number", make)
    keys = np.load(folder / "keys.npy")
    rows = np.load(folder / "rows.npy") if edges.are_texts else None
    return Numbering(len(keys), keys, rows, np.load(folder / "names.npy", mmap_mode="r"))


def _number_of_ids(ids: FileRows, *, are_texts: bool) -> Numbering:
    """Numbers nodes by a given list of their ids, in the order of rows."""
    names = np.memmap(ids.path, ids.dtype, "r", ids.offset, ids.shape)
    if names.ndim != 1 or names.dtype.kind not in ("U" if are_texts else "iu"):
        expected = "texts" if are_texts else "integers"
        raise ValueError(
            f"{ids.path}: holds {names.dtype} {list(names.shape)}; expected {expected} [num_nodes],"
            " as the ids of edges are"
        )
    if are_texts:
        pl, step = polars(), 1 << 20
        some = (names[first : first + step].tolist() for first in range(0, len(names), step))
        keys = np.concatenate(
            [pl.Series(x, dtype=pl.String).hash(HASH_SEED).to_numpy() for x in some]
        )
    else:
        keys = np.array(names, np.int64)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    if (repeated := keys[1:] == keys[:-1]).any():
        name = names[order[int(np.argmax(repeated))]]
        raise ValueError(f"{ids.path}: the id {name!r} is repeated; expected one row for each node")
    return Numbering(len(names), keys, order.astype(np.int32), names)
