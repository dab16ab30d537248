"""Sets of graphs to classify, in the text files of TU Dortmund."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from jaxgraph import transforms
from jaxgraph.datasets.files import BrokenFileError, MissingFileError, reading, require_file
from jaxgraph.datasets.limits import check_expansion, dense
from jaxgraph.datasets.number_tables import parse_text
from jaxgraph.graph import Graph
from jaxgraph.graph_batches import grouped
from jaxgraph.kinds import kind_of
from jaxgraph.typed_graph import TypedGraph

_FILES: Mapping[str, str] = MappingProxyType(
    {
        "mutag": "MUTAG",
        "ptc-mr": "PTC_MR",
        "proteins": "PROTEINS",
        "enzymes": "ENZYMES",
        "nci1": "NCI1",
        "imdb-binary": "IMDB-BINARY",
        "imdb-multi": "IMDB-MULTI",
    }
)
NAMES = tuple(_FILES)
_ORIGIN = "the archive of the data set at graphlearning.io"
_NEEDED = ("A", "graph_indicator", "graph_labels")
_KINDS = (*_NEEDED, "node_labels", "node_attributes", "edge_labels", "edge_attributes")


class _Table(NamedTuple):
    """The numbers of a text, [lines, numbers of a line], and its path."""

    path: Path
    values: np.ndarray


def load_tu(
    name: str,
    folder: str | os.PathLike[str],
    *,
    edge_data: bool = True,
    degree_features: bool = True,
) -> TypedGraph:
    """Reads graphs with a class each, into one graph as `Graph.batch` makes it.

    Features of nodes are one-hot labels of nodes, then attributes. Without both they are one-hot
    degrees, as in the paper. Repeated edges are removed.

    Args:
        name: "mutag", "ptc-mr", "proteins", "enzymes", "nci1", "imdb-binary" or "imdb-multi", or
            that of another data set in this format, as its files spell it.
        folder: holds ``<NAME>.zip`` or the unpacked folder ``<NAME>``, under ``tu/`` or directly;
            or is that folder.
        edge_data: False leaves labels and attributes of edges out, for layers such as GIN's, which
            refuse to ignore them.
        degree_features: False: nodes without labels and attributes have the feature 1, as in the
            paper for Reddit, whose degrees are many.

    Returns:
        The graph, without masks, which ``jaxgraph.transforms.folds`` and ``random_split`` draw.
        Classes are in the order of their numbers in the file. Labels of edges are ``edge_type``,
        and attributes of edges ``edges``, of the set "edge".

    Raises:
        ValueError: a file is missing or broken, or does not fit the others.

    References:
        Morris et al., "TUDataset: A collection of benchmark datasets for learning with graphs",
        2020; Xu et al., "How powerful are graph neural networks?", 2019, section 7.
    """
    if not isinstance(name, str):
        raise ValueError(
            f"name is {kind_of(name)}; expected load_tu(name, folder), such as 'mutag'."
        )
    file_name = _FILES.get(name.lower().replace("_", "-"), name)
    inner = f"{file_name}/{file_name}_A.txt"
    places = (f"tu/{file_name}.zip", f"tu/{inner}", inner)
    found = require_file(Path(folder), *places, origin=_ORIGIN)
    place = found if found.suffix == ".zip" else found.parent
    kinds = [kind for kind in _KINDS if edge_data or not kind.startswith("edge")]
    tables = _tables(place, file_name, kinds)
    classes = _rows(tables, "graph_labels", columns=1)
    graph_ids = _graph_ids(tables, len(classes))
    senders, receivers = _ends(tables, graph_ids)
    edge_type = _rows(tables, "edge_labels", per="A", columns=1)
    with reading(place, "graphs of TU Dortmund"):
        union = Graph.from_edges(
            senders,
            receivers,
            num_nodes=len(graph_ids),
            edges=_rows(tables, "edge_attributes", per="A"),
            edge_type=None if edge_type is None else _in_order(edge_type),
            name=name,
        )
        union = transforms.remove_duplicate_edges(union)
        union = union.replace(nodes=_features(tables, union, degree_features))
        return grouped(union, graph_ids, labels=_in_order(classes))


def _tables(place: Path, name: str, kinds: list[str]) -> dict[str, _Table]:
    """The tables of an archive, or of a folder, of some kinds."""
    paths = {kind: place / f"{name}_{kind}.txt" for kind in kinds}
    texts = _contents(paths) if place.is_dir() else _unpacked(place, paths)
    for kind in _NEEDED:
        if kind not in texts:
            raise MissingFileError(f"{paths[kind]}: no such file. Put it there from {_ORIGIN}.")
    tables = {}
    for kind, text in texts.items():
        with reading(paths[kind], "comma-separated numbers"):
            dtype = np.float64 if kind.endswith("attributes") else np.int64
            tables[kind] = _Table(paths[kind], parse_text(text, dtype))
    return tables


def _contents(paths: Mapping[str, Path]) -> dict[str, bytes]:
    """The texts that are files."""
    found = {}
    for kind, path in paths.items():
        if path.is_file():
            with reading(path, "text"):
                found[kind] = path.read_bytes()
    return found


def _unpacked(archive: Path, paths: Mapping[str, Path]) -> dict[str, bytes]:
    """The texts that are in an archive, whatever folder there they are in."""
    kinds = {path.name: kind for kind, path in paths.items()}
    with reading(archive, "a zip archive"), zipfile.ZipFile(archive) as file:
        check_expansion(archive, sum(member.file_size for member in file.infolist()))
        found = {}
        for member in file.infolist():
            kind = kinds.get(PurePosixPath(member.filename).name)
            if kind is None:
                continue
            if kind in found:
                raise ValueError(f"it holds {paths[kind].name} twice")
            with file.open(member) as stream:
                # Read past the end: an archive compares its checksum only there.
                found[kind] = stream.read(member.file_size + 1)
        return found


def _rows(
    tables: Mapping[str, _Table], kind: str, *, per: str | None = None, columns: int | None = None
) -> Any:
    """The numbers of a table with a line for each of another; None without the table."""
    if kind not in tables:
        return None
    path, values = tables[kind]
    lines = tables[per or kind]
    if values.shape != (len(lines.values), columns or values.shape[1]):
        raise BrokenFileError(
            f"{path}: has {values.shape[0]} lines of {values.shape[1]} numbers; expected "
            f"{len(lines.values)} lines of {columns or 'some'}"
            + (f", one for each of {lines.path.name}" if per else "")
        )
    return values[:, 0] if columns == 1 else values


def _graph_ids(tables: Mapping[str, _Table], count: int) -> np.ndarray:
    """The graph of each node, from 0."""
    found = _rows(tables, "graph_indicator", columns=1)
    present = np.unique(found)
    if not np.array_equal(present, np.arange(1, count + 1)):
        raise BrokenFileError(
            f"{tables['graph_indicator'].path}: has nodes of {len(present)} graphs, from "
            f"{present[0]} to {present[-1]}; expected some of each from 1 to {count}, the lines of "
            f"{tables['graph_labels'].path.name}"
        )
    return found - 1


def _ends(tables: Mapping[str, _Table], graph_ids: np.ndarray) -> np.ndarray:
    """The two ends of each edge, from 0, int [2, num_edges]."""
    pairs, path = _rows(tables, "A", columns=2), tables["A"].path
    outside = np.flatnonzero(((pairs < 1) | (pairs > len(graph_ids))).any(axis=1))
    if outside.size:
        raise BrokenFileError(
            f"{path}: line {outside[0] + 1} has the nodes {pairs[outside[0]].tolist()}; expected "
            f"nodes from 1 to {len(graph_ids)}, the lines of {tables['graph_indicator'].path.name}"
        )
    graphs = graph_ids[pairs - 1]
    crossing = np.flatnonzero(graphs[:, 0] != graphs[:, 1])
    if crossing.size:
        sender, receiver = graphs[crossing[0]] + 1
        raise BrokenFileError(
            f"{path}: line {crossing[0] + 1} goes from graph {sender} to graph {receiver}; "
            "expected edges inside of graphs"
        )
    return pairs.T - 1


def _features(tables: Mapping[str, _Table], union: Graph, degrees: bool) -> np.ndarray:
    """The features of the nodes: labels and attributes, or else degrees or ones."""
    labels = _rows(tables, "node_labels", per="graph_indicator")
    attributes = _rows(tables, "node_attributes", per="graph_indicator")
    if labels is None and attributes is None:
        labels = union.in_degrees()[:, None] if degrees else np.ones((union.num_nodes, 1), int)
    columns = [] if labels is None else [_one_hot(each) for each in labels.T]
    return np.concatenate([*columns, *([] if attributes is None else [attributes])], axis=1)


def _one_hot(numbers: np.ndarray) -> np.ndarray:
    """A column for each number that there is, in ascending order."""
    entries = np.ones(len(numbers), np.float32), (np.arange(len(numbers)), _in_order(numbers))
    return dense(sp.csr_array(entries))


def _in_order(numbers: np.ndarray) -> np.ndarray:
    """The place of each number among those that there are, in ascending order."""
    return np.unique(numbers, return_inverse=True)[1]
