"""The files of a request, opened: how its edges are read, and the arrays of its nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from jaxgraph.datasets.edge_columns import choose_columns
from jaxgraph.datasets.files import (
    BrokenFileError,
    MissingFileError,
    UnfitOptionError,
    reading,
)
from jaxgraph.datasets.npz import check_pairs
from jaxgraph.datasets.table_edges import not_flat
from jaxgraph.datasets.text_edges import (
    check_first_edge,
    check_unnamed_weights,
    is_empty_column,
    nodes_and_edges,
    refuse_first_names,
)
from jaxgraph.datasets.text_layout import Layout, find_layout
from jaxgraph.external.edge_files import ParquetFile, TextFile, polars
from jaxgraph.external.file_rows import FileRows, npy_rows
from jaxgraph.external.keys import StoredEdges, ends_of, read_keys
from jaxgraph.external.limits import Amounts
from jaxgraph.external.node_files import Rows, node_data_of
from jaxgraph.external.ogb_files import read_ogb
from jaxgraph.external.request import Request
from jaxgraph.external.work import Work

__all__ = ["Found", "files_of", "read_source"]

_TEXT = (".csv", ".tsv", ".txt", ".edges", ".edgelist")
Progress = Callable[[int, int], object]


@dataclasses.dataclass(frozen=True)
class Found:
    """The edges of a request in binary files, and the arrays of its nodes.

    Attributes:
      edges: all edges.
      id_dtype: of whole ids.
      num_nodes: as the caller or the file declares it, or None.
      nodes: arrays of nodes by name.
      ids: the id of each row of them, or None.
      name: of the graph.
      may_be_sparse: whether nearly all nodes may have no edge.
    """

    edges: StoredEdges
    id_dtype: np.dtype
    num_nodes: int | None
    nodes: Mapping[str, Rows]
    ids: FileRows | None
    name: str
    may_be_sparse: bool


def files_of(request: Request) -> list[Path]:
    """All files that a request reads, to notice when one changes.

    Raises:
      MissingFileError: one is not there.
    """
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
    """Reads the edges of a request into binary files, and opens the arrays of its nodes.

    Args:
      work: the folder of the run.
      request: what the caller asks for.
      amounts: how much is read at once.
      on_progress: called with what is read and what there is.

    Returns:
      The edges, and the arrays.

    Raises:
      ValueError: a file is missing, broken or ambiguous, or an option does not fit it.
    """
    path, name = request.source, request.name or request.source.name.split(".")[0]
    nodes: dict[str, Rows] = {}
    if request.node_data is not None:
        nodes |= node_data_of(request.node_data)
    ids = nodes.pop("ids", None)
    assert ids is None or isinstance(ids, FileRows)
    num_nodes = request.num_nodes
    if path.is_dir():
        _check_unused(request, "a folder of the Open Graph Benchmark", ())
        of_folder = read_ogb(work, path, request, amounts, on_progress)
        edges, id_dtype = of_folder.edges, np.dtype(np.int64)
        num_nodes, nodes = of_folder.num_nodes, {**of_folder.nodes, **nodes}
        name = request.name or of_folder.name
    elif path.suffix.lower() == ".npy":
        _check_unused(request, "an npy file", ("relabel",))
        edges, id_dtype = _from_npy(path)
    elif path.suffix.lower() == ".parquet":
        _check_unused(request, "a Parquet file", ("relabel", "columns", "weights"))
        edges, id_dtype = _from_parquet(work, request, amounts, on_progress)
    elif path.name.lower().removesuffix(".gz").endswith(_TEXT):
        edges, declared = _from_text(work, request, amounts, on_progress)
        id_dtype, num_nodes = np.dtype(np.int64), num_nodes if declared is None else declared
    else:
        raise UnfitOptionError(
            f"{path}: cannot be read with a limit of memory; expected {', '.join(_TEXT)} (or one "
            "of them with .gz), .parquet, .npy or a folder of the Open Graph Benchmark"
        )
    may_be_sparse = request.relabel is False or bool(nodes)
    if nodes and num_nodes is None:
        num_nodes = next(iter(nodes.values())).shape[0]
    if request.ignore_edge_data:
        edges = dataclasses.replace(edges, data={})
    return Found(edges, id_dtype, num_nodes, nodes, ids, name, may_be_sparse)


def _check_unused(request: Request, kind: str, used: tuple[str, ...]) -> None:
    for name in ("separator", "header", "counts", "columns", "weights", "relabel"):
        if getattr(request, name) is not None and name not in used:
            raise UnfitOptionError(
                f"{name}: got {getattr(request, name)!r}, and {kind} leaves no such choice"
            )


def _from_npy(path: Path) -> tuple[StoredEdges, np.dtype]:
    rows, fortran = npy_rows(path)
    check_pairs(rows.shape, lambda: rows.read(0, 2))
    if rows.dtype.kind not in "iu":
        raise BrokenFileError(f"{path}: holds {rows.dtype}; expected integers")
    ends, count = ends_of(rows, by_edge=rows.shape[1] == 2, fortran=fortran)
    edges = StoredEdges(count, ends, False, {}, {}, lambda edge: f"{path}: edge {edge}")
    return edges, rows.dtype


def _from_parquet(
    work: Work, request: Request, amounts: Amounts, on_progress: Progress
) -> tuple[StoredEdges, np.dtype]:
    pl, path = polars(), request.source
    try:
        schema = pl.read_parquet_schema(path)
        length = int(pl.scan_parquet(path).select(pl.len()).collect().item())
    except (pl.exceptions.PolarsError, OSError) as error:
        raise BrokenFileError(f"{path}: cannot be read as Parquet ({error})") from error
    names = tuple(schema)
    chosen = choose_columns(names, len(names), columns=request.columns, weights=request.weights)
    wanted = [names[chosen.sender], names[chosen.receiver]]
    kinds = [schema[name] for name in wanted]
    if chosen.weight is not None:
        wanted.append(names[chosen.weight])
    for name in wanted:
        if schema[name].is_nested():
            raise not_flat(f"column {name!r} holds {schema[name]}", name)
    file = ParquetFile(path, tuple(wanted), length, amounts.edges)
    edges = read_keys(
        work,
        file,
        relabel=request.relabel,
        has_weights=chosen.weight is not None,
        on_progress=on_progress,
    )
    dtype = np.dtype(np.int64)
    if all(kind.is_integer() for kind in kinds):
        dtype = np.result_type(*(pl.Series([], dtype=kind).to_numpy().dtype for kind in kinds))
    return edges, dtype if dtype.kind in "iu" else np.dtype(np.int64)


def _from_text(
    work: Work, request: Request, amounts: Amounts, on_progress: Progress
) -> tuple[StoredEdges, int | None]:
    path = request.source
    with reading(path, "a list of edges"):
        layout = find_layout(
            path, separator=request.separator, header=request.header, counts=request.counts
        )
    columns = choose_columns(
        layout.names, layout.num_columns, columns=request.columns, weights=request.weights
    )
    third = columns.weight
    if third is not None and not columns.is_weight_named and is_empty_column(path, layout, third):
        columns = dataclasses.replace(columns, weight=None)
    edges = read_keys(
        work,
        TextFile(path, layout, columns, amounts.block),
        relabel=request.relabel,
        has_weights=columns.weight is not None,
        on_progress=on_progress,
    )
    if edges.num_edges == 0:
        raise BrokenFileError(f"{path}: no line of numbers or names; expected an edge on each line")
    facts = edges.facts
    if columns.weight is not None:
        check_unnamed_weights(layout, columns, facts["whole_weights"], facts["times"])
    if edges.are_texts:
        if layout.is_header_unsure and not facts["first_again"]:
            refuse_first_names(layout)
        return edges, None
    return edges, _declared_nodes(path, layout, request.counts, edges)


def _declared_nodes(
    path: Path, layout: Layout, counts: bool | None, edges: StoredEdges
) -> int | None:
    """The nodes that a line of counts declares; a first edge that may be one is refused."""
    facts = edges.facts
    if layout.counts is None:
        if counts is None and layout.names is None and "largest" in facts:
            first = (facts["first"][0], facts["first"][1])
            weight = facts["first_weight"]
            check_first_edge(first, weight, edges.num_edges, facts["smallest"], facts["largest"])
        return None
    nodes, num_edges = nodes_and_edges(layout.counts, edges.num_edges)
    if num_edges not in (None, edges.num_edges):
        raise BrokenFileError(
            f"{path}: its first line declares {num_edges} edges and {edges.num_edges} follow"
        )
    return nodes
