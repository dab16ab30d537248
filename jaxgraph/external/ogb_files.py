"""A folder of the Open Graph Benchmark: text is parsed in blocks, an archive copied by member."""

from __future__ import annotations

import dataclasses
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from jaxgraph.datasets.edge_columns import EdgeColumns
from jaxgraph.datasets.files import BrokenFileError, find_file, require_file
from jaxgraph.datasets.ogb import count_of, labels_of, masks_of
from jaxgraph.datasets.text_layout import Layout
from jaxgraph.external.edge_files import TextFile, polars, text_blocks
from jaxgraph.external.file_rows import FileRows, npy_rows
from jaxgraph.external.keys import StoredEdges, ends_of, read_keys
from jaxgraph.external.limits import Amounts
from jaxgraph.external.node_files import ArrayRows, Rows
from jaxgraph.external.request import Request
from jaxgraph.external.work import GrowingFiles, Work

__all__ = ["OgbFolder", "read_ogb"]

_ORIGIN = "the archive of the data set at ogb.stanford.edu"
_PAIRS = Layout(",", None, 2, 0, 0, None, None, ("", ""), False)
_MEMBERS = ("edge_index", "num_nodes_list", "num_edges_list", "node_feat", "edge_feat")
_COPIED = 1 << 24
Progress = Callable[[int, int], object]


@dataclasses.dataclass(frozen=True)
class OgbFolder:
    """The contents of a folder of the benchmark.

    Attributes:
      edges: all edges.
      num_nodes: of the graph.
      nodes: features, labels and masks.
      name: of the graph.
    """

    edges: StoredEdges
    num_nodes: int
    nodes: Mapping[str, Rows]
    name: str


def read_ogb(
    work: Work, folder: Path, request: Request, amounts: Amounts, on_progress: Progress
) -> OgbFolder:
    """Reads a folder in the format of `jaxgraph.datasets.read_ogb_folder`.

    Args:
      work: the folder of the run.
      folder: holds ``raw`` and ``split``.
      request: names the split.
      amounts: how much is read at once.
      on_progress: called with the bytes that are read and all, of one file after the other.

    Returns:
      Its contents.

    Raises:
      ValueError: a file is missing or broken.
    """
    binary = find_file(folder, "raw/data.npz")
    if binary is None:
        edges, num_nodes, nodes = _from_text(work, folder, amounts, on_progress)
    else:
        edges, num_nodes, nodes = _from_archive(work, folder, binary, on_progress)
    labels = labels_of(folder)
    if len(labels) != num_nodes:
        raise BrokenFileError(
            f"{folder / 'raw'}: has labels of {len(labels)} nodes; expected {num_nodes}, the "
            "declared number of nodes. Fetch the files again."
        )
    nodes["labels"] = ArrayRows(labels)
    nodes |= {k: ArrayRows(mask) for k, mask in masks_of(folder, request.split, num_nodes).items()}
    return OgbFolder(edges, num_nodes, nodes, folder.name)


def _from_text(
    work: Work, folder: Path, amounts: Amounts, on_progress: Progress
) -> tuple[StoredEdges, int, dict[str, Rows]]:
    num_nodes, num_edges = (count_of(folder, kind) for kind in ("node", "edge"))
    path = require_file(folder, "raw/edge.csv.gz", origin=_ORIGIN)
    source = TextFile(path, _PAIRS, EdgeColumns(0, 1), amounts.block)
    edges = read_keys(work, source, relabel=False, has_weights=False, on_progress=on_progress)
    nodes: dict[str, Rows] = {}
    features = find_file(folder, "raw/node-feat.csv.gz")
    if features is not None:
        nodes["nodes"] = _table(work, "node-feat", features, amounts, on_progress)
    of_edges = find_file(folder, "raw/edge-feat.csv.gz")
    if of_edges is not None:
        rows = _table(work, "edge-feat", of_edges, amounts, on_progress)
        edges = dataclasses.replace(edges, data={"edges": rows})
    _check_lengths(folder, edges, num_edges, nodes, num_nodes)
    return edges, num_nodes, nodes


def _table(work: Work, step: str, path: Path, amounts: Amounts, on_progress: Progress) -> FileRows:
    """Parses a text of numbers, block by block, into a file of float32."""
    pl, files = polars(), GrowingFiles(work, step)
    facts = {"position": 0, "rows": 0, "columns": None} | files.facts
    if not facts.get("done"):
        for block, position in text_blocks(path, 0, facts["position"], amounts.block):
            if facts["columns"] is None:
                facts["columns"] = block.partition(b"\n")[0].count(b",") + 1
            names = [f"c{column}" for column in range(facts["columns"])]
            try:
                table = pl.read_csv(
                    block, has_header=False, schema=dict.fromkeys(names, pl.Float64)
                )
            except pl.exceptions.PolarsError as error:
                reason = str(error).partition("\n")[0]
                raise BrokenFileError(f"{path}: row {facts['rows']} or later: {reason}") from error
            if sum(table.null_count().row(0)):
                raise BrokenFileError(f"{path}: a number is missing from row {facts['rows']} on")
            files.add("values", table.to_numpy().astype(np.float32))
            facts |= {"position": position, "rows": facts["rows"] + len(table)}
            files.record(**facts)
            on_progress(facts["rows"], 0)
        files.record(**facts, done=True)
    shape = (facts["rows"], facts["columns"] or 0)
    return FileRows(files.folder / "values", np.dtype(np.float32), shape)


def _from_archive(
    work: Work, folder: Path, archive: Path, on_progress: Progress
) -> tuple[StoredEdges, int, dict[str, Rows]]:
    found, by_column = _members(work, archive, on_progress)
    for name in ("edge_index", "num_nodes_list", "num_edges_list"):
        if name not in found:
            raise BrokenFileError(f"{archive}: has no array {name}; it has {', '.join(found)}.")
    counts = [found[f"num_{kind}s_list"] for kind in ("node", "edge")]
    if any(rows.shape not in ((1,), (1, 1)) for rows in counts):
        raise BrokenFileError(f"{archive}: declares {len(counts[0])} graphs; expected one.")
    num_nodes, num_edges = (int(rows.read(0, 1).reshape(-1)[0]) for rows in counts)
    index = found["edge_index"]
    if index.shape != (2, num_edges) or index.dtype.kind not in "iu":
        raise BrokenFileError(
            f"{archive}: edge_index is {list(index.shape)}; expected integers [2, {num_edges}]."
        )
    ends, _ = ends_of(index, by_edge=False, fortran="edge_index" in by_column)
    if by_column - {"edge_index"}:
        raise BrokenFileError(f"{archive}: {max(by_column)} is stored by column; expected by row.")
    data = {"edges": found["edge_feat"]} if "edge_feat" in found else {}
    place = f"{archive}: edge "
    edges = StoredEdges(num_edges, ends, False, data, {}, lambda edge: f"{place}{edge}")
    nodes: dict[str, Rows] = {"nodes": found["node_feat"]} if "node_feat" in found else {}
    _check_lengths(folder, edges, num_edges, nodes, num_nodes)
    return edges, num_nodes, nodes


def _members(
    work: Work, archive: Path, on_progress: Progress
) -> tuple[dict[str, FileRows], set[str]]:
    """Copies the arrays of an archive into files, each once; some may be stored by column."""
    folder, found, by_column = work.files_of("archive"), {}, set()
    try:
        with zipfile.ZipFile(archive) as opened:
            for member in opened.infolist():
                name = member.filename.removesuffix(".npy")
                if name not in _MEMBERS:
                    continue
                target = folder / f"{name}.npy"
                # A whole copy has a name of its own: a killed run begins this member again.
                if not target.exists():
                    partial = folder / f"{name}.partial"
                    with opened.open(member) as stream, partial.open("wb") as file:
                        while some := stream.read(_COPIED):
                            file.write(some)
                            on_progress(file.tell(), member.file_size)
                    partial.rename(target)
                with target.open("rb") as file:
                    if np.lib.format.read_magic(file) != (1, 0):
                        continue
                    _, _, dtype = np.lib.format.read_array_header_1_0(file)
                if dtype.kind in "biuf":
                    rows, fortran = npy_rows(target)
                    found[name] = rows
                    if fortran and min(rows.shape) > 1:
                        by_column.add(name)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise BrokenFileError(f"{archive}: cannot be read as an archive ({error})") from error
    return found, by_column


def _check_lengths(
    folder: Path, edges: StoredEdges, num_edges: int, nodes: Mapping[str, Rows], num_nodes: int
) -> None:
    lengths = {"edges": (edges.num_edges, num_edges)}
    lengths |= {name: (rows.shape[0], num_edges) for name, rows in edges.data.items()}
    lengths |= {name: (rows.shape[0], num_nodes) for name, rows in nodes.items()}
    for name, (found, expected) in lengths.items():
        if found != expected:
            raise BrokenFileError(
                f"{folder / 'raw'}: has {found} rows of {name}; expected {expected}, as its counts "
                "say. Fetch the files again."
            )
