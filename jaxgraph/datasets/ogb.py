"""Node property prediction of the Open Graph Benchmark, from its folders on disk."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxgraph import transforms
from jaxgraph.datasets.edge_keys import Rows, StoredEdges, ends_of
from jaxgraph.datasets.files import (
    AmbiguousFileError,
    BrokenFileError,
    MissingFileError,
    find_file,
    reading,
    require_file,
)
from jaxgraph.datasets.limits import opened
from jaxgraph.datasets.npz import load_npz
from jaxgraph.datasets.number_tables import parse_table
from jaxgraph.graph import Graph
from jaxgraph.typed_graph import TypedGraph

# By name: the folder, and whether the files hold only one direction of undirected edges.
_FOLDERS = {
    "ogbn-arxiv": ("ogbn_arxiv", False),
    "ogbn-products": ("ogbn_products", True),
    "ogbn-proteins": ("ogbn_proteins", True),
    "ogbn-papers100m": ("ogbn_papers100M", False),
}
NAMES = tuple(_FOLDERS)

_ORIGIN = "the archive of the data set at ogb.stanford.edu"
MEMBERS = ("edge_index", "num_nodes_list", "num_edges_list", "node_feat", "edge_feat")
_MOST_CLASSES = 2**31
_BLOCK = 1 << 26
_SPLIT_FILES = {"train_mask": "train", "val_mask": "valid", "test_mask": "test"}


def load_ogb(
    name: str, folder: Path, *, undirected: bool | None = None, split: str | None = None
) -> Graph:
    """Reads a data set of the Open Graph Benchmark.

    Args:
        name: "ogbn-arxiv", "ogbn-products", "ogbn-proteins" or "ogbn-papers100m".
        folder: holds the data set's folder (such as ``ogbn_arxiv``), or is that folder.
        undirected: whether the reverse of every edge is added; None: as the benchmark does, yes for
            products and proteins, no for the citation graphs, which are directed.
        split: the folder in ``split``; None takes the only one.

    Returns:
        The graph, with its features, edge features and labels, and the three masks.

    Raises:
        ValueError: as ``read_ogb_folder``.

    References:
        Hu et al., "Open Graph Benchmark: Datasets for Machine Learning on Graphs", NeurIPS 2020,
        section 4.
    """
    found, one_direction = find_ogb(name, folder)
    return read_ogb_folder(
        found,
        undirected=one_direction if undirected is None else undirected,
        split=split,
        name=name,
    )


def find_ogb(name: str, folder: Path) -> tuple[Path, bool]:
    """Finds the folder of a data set."""
    folder_name, one_direction = _FOLDERS[name]
    inner = folder / folder_name
    return inner if inner.is_dir() else folder, one_direction


def read_ogb_folder(
    folder: Path, *, undirected: bool = False, split: str | None = None, name: str | None = None
) -> Graph:
    """Reads a folder in the format of OGB's node property prediction.

    The text form is ``raw/edge.csv.gz``, ``num-node-list``, ``num-edge-list``, ``node-label`` and,
    where there are any, ``node-feat`` and ``edge-feat``; the binary form is ``raw/data.npz`` and
    ``raw/node-label.npz``. Both have ``split/<name>/train.csv.gz``, ``valid`` and ``test``.

    Args:
        folder: the folder that holds ``raw`` and ``split``.
        undirected: whether the reverse of every edge is added, and repeated edges removed.
        split: the folder in ``split``; None takes the only one.
        name: of the graph; None takes the folder's.

    Returns:
        The graph; one column of labels becomes classes (-1 where it is NaN), several multi-label.

    Raises:
        ValueError: a file is missing or broken, or the folder holds several graphs.
    """
    folder = Path(folder)
    edges, num_nodes, nodes = contents_of(folder, split, table=_csv, archive=_members)
    senders, receivers = edges.ends.read(0, edges.num_edges)
    arrays: dict[str, Any] = {key: rows[:] for key, rows in {**nodes, **edges.data}.items()}
    with reading(folder, "a graph of the Open Graph Benchmark"):
        graph = Graph.from_edges(
            senders, receivers, num_nodes=num_nodes, name=name or folder.name, **arrays
        )
    return transforms.to_undirected(graph) if undirected else graph


def load_ogb_typed(
    name: str, folder: Path, *, inverses: bool = True, split: str | None = None
) -> TypedGraph:
    """Reads a data set of the Open Graph Benchmark with several sets of nodes and edges.

    In ``raw`` there are ``num-node-dict.csv.gz``, ``nodetype-has-feat`` and ``nodetype-has-label``,
    ``node-feat/<set>/node-feat``, ``node-label/<set>/node-label``, ``triplet-type-list``, and
    ``edge`` and ``num-edge-list`` in ``relations/<senders>___<name>___<receivers>``. Sets with
    labels have a split: ``split/<split>/<set>/train``, ``valid`` and ``test``. Other files are not
    read, such as the years of papers, and ``edge_reltype``, which numbers the relations.

    Args:
        name: "ogbn-mag", or that of another data set in these files.
        folder: holds the data set's folder (such as ``ogbn_mag``), or is that folder.
        inverses: whether each set of edges has its inverse too, which
            ``jaxgraph.transforms.with_inverses`` adds. The benchmark has none.
        split: the folder in ``split``; None takes the only one.

    Returns:
        The graph. Features, labels and masks of ogbn-mag are those of the papers.

    Raises:
        ValueError: a file is missing or broken, or the folder holds several graphs.

    References:
        Hu et al., "Open Graph Benchmark: Datasets for Machine Learning on Graphs", NeurIPS 2020,
        section 4.
    """
    inner = folder / name.replace("-", "_")
    folder = inner if inner.is_dir() else folder
    with reading(folder, "a heterogeneous graph of the Open Graph Benchmark"):
        graph = TypedGraph(_node_sets(folder, split), _edge_sets(folder), name)
    return transforms.with_inverses(graph) if inverses else graph


def contents_of(
    folder: Path,
    split: str | None,
    *,
    table: Callable[[Path, Any], Rows],
    archive: Callable[[Path], Mapping[str, Rows]],
) -> tuple[StoredEdges, int, dict[str, Rows]]:
    """Finds the arrays of a folder, and compares their sizes."""
    binary = find_file(folder, "raw/data.npz")
    names = {"nodes": ("node-feat", "node_feat"), "edges": ("edge-feat", "edge_feat")}
    if binary is None:
        where = _raw(folder, "edge.csv.gz")
        counts = [_csv(_raw(folder, f"num-{x}-list.csv.gz"), np.int64) for x in ("node", "edge")]
        index = table(where, np.int64)
        paths = {key: find_file(folder, f"raw/{text}.csv.gz") for key, (text, _) in names.items()}
        found = {key: table(path, np.float32) for key, path in paths.items() if path}
    else:
        where, members = binary, archive(binary)
        for key in ("edge_index", "num_nodes_list", "num_edges_list"):
            if key not in members or members[key].dtype.kind not in "biuf":
                raise BrokenFileError(
                    f"{binary}: has no array {key} of numbers; it has {', '.join(members)}."
                )
        counts = [members[f"num_{x}_list"][:2] for x in ("nodes", "edges")]
        index = members["edge_index"]
        found = {key: members[name] for key, (_, name) in names.items() if name in members}
    num_nodes, num_edges = (_only_count(count, folder / "raw") for count in counts)
    by_edge = binary is None
    _check_index(index, (num_edges, 2) if by_edge else (2, num_edges), where)
    found["labels"] = _labels_of(folder, by_edge)
    for key, rows in found.items():
        wanted = num_edges if key == "edges" else num_nodes
        if rows.shape[0] != wanted:
            raise BrokenFileError(
                f"{folder / 'raw'}: has {key} of {rows.shape[0]} rows; expected {wanted}, as its "
                "counts say. Fetch the files again."
            )
    found |= _masks_of(folder, split, num_nodes)
    of_edges = {"edges": found.pop("edges")} if "edges" in found else {}
    ends = ends_of(index, by_edge=by_edge)
    edges = StoredEdges(num_edges, ends, False, of_edges, lambda edge: f"edge {edge}")
    return edges, num_nodes, found


def _members(path: Path) -> dict[str, Rows]:
    members = load_npz(path)
    return {key: _array(members, key, path) for key in MEMBERS if key in members}


def _array(members: Mapping[str, Any], name: str, path: Path) -> np.ndarray:
    value = members[name]
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        raise BrokenFileError(f"{path}: {name} is no array of numbers.")
    return value


def _raw(folder: Path, file_name: str) -> Path:
    return require_file(folder, f"raw/{file_name}", origin=_ORIGIN)


def _csv(path: Path, dtype: Any) -> np.ndarray:
    return np.concatenate(list(parse_table(path, dtype, _BLOCK)))


def _check_index(index: Rows, expected: tuple[int, int], path: Path) -> None:
    if index.shape != expected or index.dtype.kind not in "iu":
        raise BrokenFileError(
            f"{path}: its edges are {index.dtype} {list(index.shape)}; expected integers "
            f"{list(expected)}. Fetch the files again."
        )


def _only_count(counts: np.ndarray, path: Path) -> int:
    if counts.size != 1:
        raise BrokenFileError(
            f"{path}: declares {counts.size} graphs; expected one. Data sets of graph property "
            "prediction, which have many, cannot be read."
        )
    return int(counts.reshape(-1)[0])


def _labels(values: np.ndarray, path: Path) -> np.ndarray:
    if values.ndim == 2 and values.shape[1] > 1:
        return values
    column = values.reshape(-1)
    if column.dtype.kind == "f":
        unlabelled = np.isnan(column)
        classes = np.where(np.abs(column) < _MOST_CLASSES, column, -1).astype(np.int64)
        if not np.array_equal(classes[~unlabelled], column[~unlabelled]):
            raise BrokenFileError(f"{path}: has labels that are fractions; expected classes.")
        return classes
    return column


def _node_sets(folder: Path, split: str | None) -> dict[str, Any]:
    """The arguments of the sets of nodes of a folder."""
    features, labels = (_by_set(folder, f"nodetype-has-{table}") for table in ("feat", "label"))
    found: dict[str, Any] = {}
    for name, count in _by_set(folder, "num-node-dict").items():
        found[name] = {"num_nodes": count}
        if features.get(name):
            path = _raw(folder, f"node-feat/{name}/node-feat.csv.gz")
            found[name]["nodes"] = _csv(path, np.float32)
        if labels.get(name):
            path = _raw(folder, f"node-label/{name}/node-label.csv.gz")
            found[name]["labels"] = _labels(_csv(path, np.float64), path)
            found[name] |= _masks_of(folder, split, count, name)
    return found


def _edge_sets(folder: Path) -> dict[Any, Any]:
    """The arguments of the sets of edges of a folder."""
    found = {}
    for ends in _texts(_raw(folder, "triplet-type-list.csv.gz")):
        inner = f"relations/{'___'.join(ends)}"
        path = _raw(folder, f"{inner}/num-edge-list.csv.gz")
        count = _only_count(_csv(path, np.int64), path)
        path = _raw(folder, f"{inner}/edge.csv.gz")
        index = _csv(path, np.int64)
        _check_index(index, (count, 2), path)
        found[tuple(ends)] = {"senders": index[:, 0], "receivers": index[:, 1]}
    return found


def _by_set(folder: Path, table: str) -> dict[str, Any]:
    """The values of the sets of nodes in a table of one graph."""
    path = _raw(folder, f"{table}.csv.gz")
    with reading(path, "names of sets, and a row with their values in one graph"):
        names, row = _texts(path)
        return dict(zip(names, map(ast.literal_eval, row), strict=True))


def _texts(path: Path) -> list[list[str]]:
    """The cells of a small table of names."""
    with reading(path, "comma-separated names"), opened(path) as file:
        return [line.split(",") for line in file.read().decode("utf-8").split()]


def _labels_of(folder: Path, in_text: bool) -> np.ndarray:
    """The labels of a folder, as ``Graph`` takes them."""
    if in_text:
        path = _raw(folder, "node-label.csv.gz")
        return _labels(_csv(path, np.float64), path)
    path = _raw(folder, "node-label.npz")
    members = load_npz(path)
    if "node_label" not in members:
        raise BrokenFileError(f"{path}: has no array node_label.")
    return _labels(_array(members, "node_label", path), path)


def _masks_of(
    folder: Path, split: str | None, num_nodes: int, inner: str = ""
) -> dict[str, np.ndarray]:
    """The three masks of a split of a folder; None takes the only split."""
    path = folder / "split" / (split or _only_split(folder)) / inner
    masks = {}
    for mask_name, part in _SPLIT_FILES.items():
        ids_path = require_file(path, f"{part}.csv.gz", origin=_ORIGIN)
        ids = _csv(ids_path, np.int64).reshape(-1)
        if ids.min() < 0 or ids.max() >= num_nodes:
            raise BrokenFileError(
                f"{ids_path}: ids run from {ids.min()} to {ids.max()}; expected ids of the "
                f"{num_nodes} nodes."
            )
        masks[mask_name] = np.zeros(num_nodes, bool)
        masks[mask_name][ids] = True
    return masks


def _only_split(folder: Path) -> str:
    root = folder / "split"
    splits = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    if not splits:
        raise MissingFileError(
            f"{root}: holds no folder with a split; put one there from {_ORIGIN}."
        )
    if len(splits) > 1:
        raise AmbiguousFileError(
            f"split: {root} holds {', '.join(splits)}; pass one of these names."
        )
    return splits[0]
