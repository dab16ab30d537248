"""Cora, Citeseer and Pubmed in the files and with the split of Planetoid."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from jaxgraph import transforms
from jaxgraph.datasets.files import BrokenFileError, find_file, reading, require_file
from jaxgraph.datasets.restricted_pickle import load_pickle
from jaxgraph.graph import Graph

__all__ = ["NAMES", "load_planetoid"]

NAMES = ("cora", "citeseer", "pubmed")

_ORIGIN = "the folder data/ of github.com/kimiyoung/planetoid"
_NUM_VALIDATION = 500


def load_planetoid(name: str, folder: Path) -> Graph:
    """Reads a citation network with its public split of 20 training nodes of each class.

    Edges are made undirected; repeated edges and self-loops are removed. Nodes that the files leave
    out (15 of Citeseer) have features of zero, label -1 and are in no mask. Features are those of
    the files, 0 and 1 or (Pubmed) TF-IDF, as PyTorch Geometric reads them; the papers' recipes
    divide each row by its sum, which is ``transforms.normalize_features``. Pubmed without its file
    ``ind.pubmed.allx`` comes without features.

    Args:
        name: "cora", "citeseer" or "pubmed".
        folder: holds ``planetoid/ind.<name>.*``, or the files themselves.

    Returns:
        The graph, with features, classes and the three masks.

    Raises:
        ValueError: a file is missing or broken, asks for a forbidden type, or does not fit the
            others.

    References:
        Yang, Cohen and Salakhutdinov, "Revisiting Semi-Supervised Learning with Graph Embeddings",
        ICML 2016; Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional
        Networks", ICLR 2017, section 5.1.
    """
    paths = {part: _path(folder, name, part) for part in ("y", "ally", "ty", "graph", "test.index")}
    with reading(paths["test.index"], "a list of node ids"):
        test_ids = np.array(paths["test.index"].read_text().split(), np.int64)
        if test_ids.size == 0:
            raise ValueError("it holds no id")
    neighbours = _loaded(paths["graph"], Mapping)
    one_hot = {part: _loaded(paths[part], np.ndarray) for part in ("y", "ally", "ty")}
    num_nodes = len(neighbours)
    _check_test_ids(paths["test.index"], test_ids, one_hot["ally"].shape[0], num_nodes)
    labels = np.full(num_nodes, -1, np.int32)
    labels[: one_hot["ally"].shape[0]] = one_hot["ally"].argmax(axis=1)
    labels[test_ids] = _rows_of(one_hot["ty"], test_ids.size, paths["ty"]).argmax(axis=1)
    senders, receivers = _edges(neighbours, paths["graph"])
    num_train = one_hot["y"].shape[0]
    graph = Graph.from_edges(
        senders,
        receivers,
        num_nodes=num_nodes,
        nodes=_features(name, folder, one_hot["ally"].shape[0], test_ids, num_nodes),
        labels=labels,
        train_mask=_mask(slice(num_train), num_nodes),
        val_mask=_mask(slice(num_train, num_train + _NUM_VALIDATION), num_nodes),
        test_mask=_mask(test_ids, num_nodes),
        name=name,
    )
    return transforms.to_undirected(transforms.remove_self_loops(graph))


def _path(folder: Path, name: str, part: str) -> Path:
    return require_file(folder, f"planetoid/ind.{name}.{part}", origin=_ORIGIN)


def _loaded(path: Path, expected: type) -> Any:
    value = load_pickle(path)
    if not isinstance(value, expected):
        raise BrokenFileError(
            f"{path}: holds a {type(value).__name__}; expected a {expected.__name__}. Is it named "
            "after another of the files?"
        )
    return value


def _check_test_ids(path: Path, test_ids: np.ndarray, first: int, num_nodes: int) -> None:
    # Test nodes follow the others; Citeseer leaves gaps among them.
    distinct = np.unique(test_ids).size == test_ids.size
    if not distinct or test_ids.min() < first or test_ids.max() >= num_nodes:
        raise BrokenFileError(
            f"{path}: ids run from {test_ids.min()} to {test_ids.max()}; expected distinct ids "
            f"from {first} (the rows of ally) to {num_nodes - 1} (the nodes of graph). The files "
            "must be of one data set."
        )


def _rows_of(matrix: Any, num_rows: int, path: Path) -> Any:
    if matrix.shape[0] != num_rows:
        raise BrokenFileError(
            f"{path}: has {matrix.shape[0]} rows; expected {num_rows}. The files must be of one "
            "data set."
        )
    return matrix


def _edges(neighbours: Mapping[int, list[int]], path: Path) -> tuple[np.ndarray, np.ndarray]:
    with reading(path, "lists of neighbours by node"):
        ids = np.fromiter(neighbours.keys(), np.int64, len(neighbours))
        degrees = np.fromiter(map(len, neighbours.values()), np.int64, len(neighbours))
        entries = itertools.chain.from_iterable(neighbours.values())
        return np.repeat(ids, degrees), np.fromiter(entries, np.int64, int(degrees.sum()))


def _features(
    name: str, folder: Path, num_others: int, test_ids: np.ndarray, num_nodes: int
) -> np.ndarray | None:
    if name == "pubmed" and find_file(folder, "planetoid/ind.pubmed.allx") is None:
        return None
    parts = {part: _path(folder, name, part) for part in ("allx", "tx")}
    others = _rows_of(_loaded(parts["allx"], sp.csr_matrix), num_others, parts["allx"])
    test = _rows_of(_loaded(parts["tx"], sp.csr_matrix), test_ids.size, parts["tx"])
    if test.shape[1] != others.shape[1]:
        raise BrokenFileError(
            f"{parts['tx']}: has {test.shape[1]} columns and {parts['allx'].name} "
            f"{others.shape[1]}; the files must be of one data set."
        )
    features = np.zeros((num_nodes, others.shape[1]), np.float32)
    features[:num_others] = others.toarray()
    features[test_ids] = test.toarray()
    return features


def _mask(ids: np.ndarray | slice, num_nodes: int) -> np.ndarray:
    mask = np.zeros(num_nodes, bool)
    mask[ids] = True
    return mask
