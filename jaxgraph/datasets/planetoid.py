"""Cora, Citeseer and Pubmed in the files and with the split of Planetoid."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from jaxgraph import transforms
from jaxgraph.datasets.files import BrokenFileError, reading, require_file
from jaxgraph.datasets.limits import features_of
from jaxgraph.datasets.untrusted import Data, Lists, load_pickles
from jaxgraph.graph import Graph

NAMES = ("cora", "citeseer", "pubmed")

_ORIGIN = "the folder data/ of github.com/kimiyoung/planetoid"
_NUM_VALIDATION = 500
_OF_ONE_SET = "The files must be of one data set."
_FEATURE_FILES = ("x", "allx", "tx")
_ID = re.compile(r"[0-9]{1,18}")


def load_planetoid(name: str, folder: Path, *, features: bool = True) -> Graph:
    """Reads a citation network with its public split of 20 training nodes of each class.

    Edges are made undirected; repeated edges and self-loops are removed. Nodes that the files leave
    out (15 of Citeseer) have zero features and label -1, and are in no mask. A row of labels
    without a class gives label -1, too; it is refused if its node is in the split. Features are
    those of the files, 0 and 1 or (Pubmed) TF-IDF, as in PyTorch Geometric; the papers divide each
    row by its sum (``transforms.normalize_features``).

    Args:
        name: "cora", "citeseer" or "pubmed".
        folder: holds ``planetoid/ind.<name>.*``, or the files themselves.
        features: False reads only the graph, the classes and the split, without the files ``x``,
            ``tx`` and ``allx``.

    Returns:
        The graph, with features (sparse where most are 0), classes and the three masks.

    Raises:
        ValueError: a file is missing or broken, asks for a forbidden type, or does not fit the
            others.

    References:
        Yang, Cohen and Salakhutdinov, "Revisiting Semi-Supervised Learning with Graph Embeddings",
        ICML 2016; Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional
        Networks", ICLR 2017, section 5.1.
    """
    parts = ("y", "ally", "ty", "graph", *(_FEATURE_FILES if features else ()))
    paths = {part: _path(folder, name, part) for part in parts}
    index = _path(folder, name, "test.index")
    test_ids = _test_ids(index)
    files = _Files(paths, load_pickles(paths))
    neighbours = files.of_kind("graph", Lists, "dictionary")
    num_nodes = neighbours.keys.size
    classes = _classes_of_rows(files)
    num_train, num_others = len(classes["y"]), len(classes["ally"])
    # Test nodes follow the others; Citeseer leaves gaps among them.
    distinct = np.unique(test_ids).size == test_ids.size
    if not distinct or test_ids.min() < num_others or test_ids.max() >= num_nodes:
        raise BrokenFileError(
            f"{index}: ids run from {test_ids.min()} to {test_ids.max()}; expected distinct ids "
            f"from {num_others} (the rows of ally) to {num_nodes - 1} (the nodes of graph). "
            f"{_OF_ONE_SET}"
        )
    files.check_rows("ty", len(classes["ty"]), test_ids.size)
    if num_train + _NUM_VALIDATION > num_others:
        raise BrokenFileError(
            f"{paths['ally']}: has {num_others} rows; expected {num_train + _NUM_VALIDATION} or "
            f"more: {num_train} training nodes, and {_NUM_VALIDATION} to validate."
        )
    labels = np.full(num_nodes, -1, np.int32)
    labels[:num_others] = classes["ally"]
    labels[test_ids] = classes["ty"]
    senders, receivers = _edges(neighbours, paths["graph"])
    with reading(folder / f"ind.{name}.*", "a citation network"):
        graph = Graph.from_edges(
            senders,
            receivers,
            num_nodes=num_nodes,
            nodes=_features(files, num_train, num_others, test_ids, num_nodes)
            if features
            else None,
            labels=labels,
            train_mask=_mask(slice(num_train), num_nodes),
            val_mask=_mask(slice(num_train, num_train + _NUM_VALIDATION), num_nodes),
            test_mask=_mask(test_ids, num_nodes),
            name=name,
        )
    return transforms.to_undirected(transforms.remove_self_loops(graph))


@dataclass(frozen=True)
class _Files:
    paths: Mapping[str, Path]
    read: Mapping[str, Data]

    def of_kind(self, part: str, expected: type, called: str) -> Any:
        value = self.read[part]
        if not isinstance(value, expected):
            raise BrokenFileError(
                f"{self.paths[part]}: holds a {type(value).__name__}; expected a {called}. Is it "
                "named after another of the files?"
            )
        return value

    def check_rows(self, part: str, num_rows: int, expected: int) -> None:
        if num_rows != expected:
            raise BrokenFileError(
                f"{self.paths[part]}: has {num_rows} rows; expected {expected}. {_OF_ONE_SET}"
            )


def _path(folder: Path, name: str, part: str) -> Path:
    origin = _ORIGIN
    if part in _FEATURE_FILES:
        origin += " (features=False reads the graph, the classes and the split without it)"
    return require_file(folder, f"planetoid/ind.{name}.{part}", origin=origin)


def _test_ids(path: Path) -> np.ndarray:
    with reading(path, "a list of node ids"):
        words = path.read_text(encoding="ascii").split()
        wrong = next((word for word in words if not _ID.fullmatch(word)), None)
        if wrong is not None or not words:
            raise ValueError("it holds no id" if wrong is None else f"{wrong[:40]!r} is no id")
        return np.array(words, np.int64)


def _classes_of_rows(files: _Files) -> dict[str, np.ndarray]:
    """Returns the class of each row of the label files, -1 where a row has none."""
    one_hot = {part: files.of_kind(part, np.ndarray, "matrix") for part in ("ally", "y", "ty")}
    for part, rows in one_hot.items():
        with reading(files.paths[part], "one-hot rows of labels"):
            if rows.ndim != 2 or rows.dtype.kind not in "biuf" or not rows.size:
                raise ValueError(f"shape {list(rows.shape)} of {rows.dtype}")
            if not np.isin(rows, (0, 1)).all() or (np.count_nonzero(rows, axis=1) > 1).any():
                raise ValueError("a row has more than a single 1")
            if rows.shape[1] != one_hot["ally"].shape[1]:
                raise ValueError(f"it has {rows.shape[1]} classes, and ally another number")
    train = one_hot["y"]
    if not np.array_equal(train, one_hot["ally"][: len(train)]):
        raise BrokenFileError(
            f"{files.paths['y']}: its rows are not the first of ally. {_OF_ONE_SET}"
        )
    return {
        part: np.where(rows.any(axis=1), rows.argmax(axis=1), -1) for part, rows in one_hot.items()
    }


def _edges(neighbours: Lists, path: Path) -> tuple[np.ndarray, np.ndarray]:
    with reading(path, "lists of neighbours by node"):
        num_nodes, receivers = neighbours.keys.size, neighbours.values
        if not np.array_equal(np.sort(neighbours.keys), np.arange(num_nodes)):
            raise ValueError(f"its {num_nodes} nodes are not numbered from 0")
        if receivers.size and not 0 <= receivers.min() <= receivers.max() < num_nodes:
            raise ValueError(
                f"neighbours run from {receivers.min()} to {receivers.max()}; expected nodes from "
                f"0 to {num_nodes - 1}"
            )
        return np.repeat(neighbours.keys, neighbours.lengths), receivers


def _features(
    files: _Files, num_train: int, num_others: int, test_ids: np.ndarray, num_nodes: int
) -> np.ndarray | sp.csr_array:
    """Returns the rows of all nodes: of ``allx``, and of ``tx`` for the ids in ``test.index``."""
    rows = {"x": num_train, "allx": num_others, "tx": test_ids.size}
    found = {part: files.of_kind(part, sp.csr_array, "CSR matrix") for part in rows}
    columns = found["allx"].shape[1]
    for part, matrix in found.items():
        files.check_rows(part, matrix.shape[0], rows[part])
        if matrix.shape[1] != columns:
            raise BrokenFileError(
                f"{files.paths[part]}: has {matrix.shape[1]} columns and allx {columns}. "
                f"{_OF_ONE_SET}"
            )
    if (found["x"] != found["allx"][:num_train]).nnz:
        raise BrokenFileError(
            f"{files.paths['x']}: its rows are not the first of allx. {_OF_ONE_SET}"
        )
    # Nodes that no file has get the last row, zeros.
    stacked: Any = sp.vstack(
        [found["allx"], found["tx"], sp.csr_array((1, columns), dtype=np.float32)], format="csr"
    )
    row_of_node = np.full(num_nodes, num_others + test_ids.size)
    row_of_node[:num_others] = np.arange(num_others)
    row_of_node[test_ids] = num_others + np.arange(test_ids.size)
    with reading(files.paths["allx"], "features of nodes"):
        return features_of(stacked[row_of_node], files.paths["allx"])


def _mask(ids: np.ndarray | slice, num_nodes: int) -> np.ndarray:
    mask = np.zeros(num_nodes, bool)
    mask[ids] = True
    return mask
