"""Node property prediction of the Open Graph Benchmark, from its folders on disk."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxgraph import transforms
from jaxgraph.datasets.files import (
    BrokenFileError,
    MissingFileError,
    find_file,
    reading,
    require_file,
)
from jaxgraph.datasets.limits import opened_text
from jaxgraph.datasets.npz import load_npz
from jaxgraph.graph import Graph

__all__ = [
    "NAMES",
    "count_of",
    "find_ogb",
    "labels_of",
    "load_ogb",
    "masks_of",
    "read_ogb_folder",
]

# By name: the folder, and whether the files hold only one direction of undirected edges.
_FOLDERS = {
    "ogbn-arxiv": ("ogbn_arxiv", False),
    "ogbn-products": ("ogbn_products", True),
    "ogbn-proteins": ("ogbn_proteins", True),
    "ogbn-papers100m": ("ogbn_papers100M", False),
}
NAMES = tuple(_FOLDERS)

_ORIGIN = "the archive of the data set at ogb.stanford.edu"
_MOST_CLASSES = 2**31
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
    """Finds the folder of a data set.

    Args:
        name: one of ``NAMES``.
        folder: holds the data set's folder, or is that folder.

    Returns:
        Its folder, and whether its files hold only one direction of undirected edges.
    """
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
    binary = find_file(folder, "raw/data.npz")
    fields = _text_arrays(folder) if binary is None else _binary_arrays(folder, binary)
    if fields["labels"].shape[0] != fields["num_nodes"]:
        raise BrokenFileError(
            f"{folder / 'raw'}: has labels of {fields['labels'].shape[0]} nodes; expected "
            f"{fields['num_nodes']}, the declared number of nodes. Fetch the files again."
        )
    fields |= masks_of(folder, split, fields["num_nodes"])
    with reading(folder, "a graph of the Open Graph Benchmark"):
        graph = Graph.from_edges(**fields, name=name or folder.name)
    return transforms.to_undirected(graph) if undirected else graph


def _text_arrays(folder: Path) -> dict[str, Any]:
    edges = _csv(_raw(folder, "edge.csv.gz"), np.int64)
    if edges.shape[1] != 2:
        raise BrokenFileError(
            f"{folder / 'raw/edge.csv.gz'}: has {edges.shape[1]} columns; expected two."
        )
    optional = {"nodes": "node-feat.csv.gz", "edges": "edge-feat.csv.gz"}
    features: dict[str, Any] = {
        field: _csv(path, np.float32)
        for field, file_name in optional.items()
        if (path := find_file(folder, f"raw/{file_name}")) is not None
    }
    num_nodes, num_edges = (count_of(folder, kind) for kind in ("node", "edge"))
    if num_edges != edges.shape[0]:
        raise BrokenFileError(
            f"{folder / 'raw/edge.csv.gz'}: has {edges.shape[0]} edges; expected "
            f"{num_edges}, as num-edge-list.csv.gz says. Fetch the files again."
        )
    return {
        "senders": edges[:, 0],
        "receivers": edges[:, 1],
        "num_nodes": num_nodes,
        "labels": labels_of(folder),
        **features,
    }


def _binary_arrays(folder: Path, path: Path) -> dict[str, Any]:
    members = load_npz(path)
    missing = [k for k in ("edge_index", "num_nodes_list", "num_edges_list") if k not in members]
    if missing:
        raise BrokenFileError(f"{path}: has no array {missing[0]}; it has {', '.join(members)}.")
    edge_index = _array(members, "edge_index", path)
    num_edges = _only_count(_array(members, "num_edges_list", path), path)
    if edge_index.shape != (2, num_edges):
        raise BrokenFileError(
            f"{path}: edge_index is {list(edge_index.shape)}; expected [2, {num_edges}]."
        )
    return {
        "senders": edge_index[0],
        "receivers": edge_index[1],
        "num_nodes": _only_count(_array(members, "num_nodes_list", path), path),
        "nodes": members.get("node_feat"),
        "edges": members.get("edge_feat"),
        "labels": labels_of(folder),
    }


def _array(members: Mapping[str, Any], name: str, path: Path) -> np.ndarray:
    value = members[name]
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        raise BrokenFileError(f"{path}: {name} is no array of numbers.")
    return value


def _raw(folder: Path, file_name: str) -> Path:
    return require_file(folder, f"raw/{file_name}", origin=_ORIGIN)


def _csv(path: Path, dtype: Any) -> np.ndarray:
    with reading(path, "compressed comma-separated numbers"), warnings.catch_warnings():
        # NumPy only warns of a file without lines, and of fractional ids; here the file is broken.
        warnings.simplefilter("error")
        with opened_text(path) as stream:
            return np.loadtxt(stream, dtype=dtype, delimiter=",", ndmin=2)


def _only_count(counts: np.ndarray, path: Path) -> int:
    if counts.size != 1:
        raise BrokenFileError(
            f"{path}: declares {counts.size} graphs; expected one. Data sets of graph property "
            "prediction, which have many, cannot be read."
        )
    count = counts.reshape(-1)[0]
    if int(count) != count or count < 0:
        raise BrokenFileError(f"{path}: a number of nodes or edges is {count}.")
    return int(count)


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


def count_of(folder: Path, kind: str) -> int:
    """The number of nodes or edges (``kind``) that a folder in text declares."""
    path = _raw(folder, f"num-{kind}-list.csv.gz")
    return _only_count(_csv(path, np.int64), path)


def labels_of(folder: Path) -> np.ndarray:
    """The labels of a folder, in text or binary, as ``Graph`` takes them."""
    if find_file(folder, "raw/data.npz") is None:
        path = _raw(folder, "node-label.csv.gz")
        return _labels(_csv(path, np.float64), path)
    path = _raw(folder, "node-label.npz")
    members = load_npz(path)
    if "node_label" not in members:
        raise BrokenFileError(f"{path}: has no array node_label.")
    return _labels(_array(members, "node_label", path), path)


def masks_of(folder: Path, split: str | None, num_nodes: int) -> dict[str, np.ndarray]:
    """The three masks of a split of a folder; None takes the only split."""
    path = folder / "split" / (split or _only_split(folder))
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
        raise ValueError(f"split: {root} holds {', '.join(splits)}; pass one of these names.")
    return splits[0]
