"""Co-purchase and co-author graphs of the gnn-benchmark, from npz files of either key layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from jaxgraph import transforms
from jaxgraph.datasets.files import BrokenFileError, reading, require_file
from jaxgraph.datasets.limits import features_of
from jaxgraph.datasets.npz import load_npz
from jaxgraph.datasets.sparse import compressed_rows, places_of_entries
from jaxgraph.graph import Graph

# By name: the file in each collection (EdisonLeeeee/GraphData, then shchur/gnn-benchmark, from
# which PyTorch Geometric downloads, and DGL's).
_FILES = {
    "amazon-photo": (
        "amazon/amazon_photo.npz",
        "Photo/raw/amazon_electronics_photo.npz",
        "amazon_co_buy_photo/amazon_co_buy_photo.npz",
    ),
    "amazon-computers": (
        "amazon/amazon_computers.npz",
        "amazon/amazon_cs.npz",
        "Computers/raw/amazon_electronics_computers.npz",
        "amazon_co_buy_computer/amazon_co_buy_computer.npz",
    ),
    "coauthor-cs": (
        "coauthor/coauthor_cs.npz",
        "CS/raw/ms_academic_cs.npz",
        "coauthor_cs/coauthor_cs.npz",
    ),
    "coauthor-physics": (
        "coauthor/coauthor_phy.npz",
        "coauthor/coauthor_physics.npz",
        "Physics/raw/ms_academic_phy.npz",
        "coauthor_physics/coauthor_physics.npz",
    ),
}
NAMES = tuple(_FILES)
SPLIT = (20, 30)
"""Training and validation nodes of each class."""

_ORIGIN = "github.com/EdisonLeeeee/GraphData or github.com/shchur/gnn-benchmark"


def load_gnn_benchmark(name: str, folder: Path, *, split_seed: int = 0) -> Graph:
    """Reads a co-purchase or co-author graph, and draws a split.

    Edges are made undirected; self-loops are removed; a stored zero is no edge. Features are bags
    of words: counts, which the co-author files hold, become 1, as the authors and PyTorch Geometric
    (``read_npz``) do it.
    Rows are not normalised; ``transforms.normalize_features`` does that. All nodes stay, as in
    PyTorch Geometric. The authors keep the largest component alone, and the split is theirs: of
    each class it has 20 training and 30 validation nodes of that component, whose other nodes are
    test nodes.

    Args:
        name: "amazon-photo", "amazon-computers", "coauthor-cs" or "coauthor-physics".
        folder: holds the npz file, under its folder or directly.
        split_seed: the seed of the split.

    Returns:
        The graph, with classes, the three masks and features of 0 and 1, sparse where few are 1
        (in the co-author graphs).

    Raises:
        ValueError: the file is missing, broken, asks for a forbidden type, or lacks a key.

    References:
        Shchur et al., "Pitfalls of Graph Neural Network Evaluation", 2018, section 3.
    """
    path = require_file(folder, *_FILES[name], origin=_ORIGIN)
    members = load_npz(path)
    adjacency = _matrix(members, path, "adj_matrix", "adj")
    features = _matrix(members, path, "node_attr", "attr")
    labels = members.get("node_label" if "node_label" in members else "labels")
    if not isinstance(labels, np.ndarray) or labels.ndim != 1:
        raise BrokenFileError(
            f"{path}: has no array node_label or labels of one class per node; {_keys_of(members)}."
        )
    num_nodes = labels.shape[0]
    if adjacency.shape != (num_nodes, num_nodes):
        raise BrokenFileError(
            f"{path}: the adjacency matrix is {adjacency.shape}; expected {(num_nodes,) * 2} for "
            f"{num_nodes} labels."
        )
    with reading(path, "a graph with features and classes"):
        graph = Graph.from_edges(
            *places_of_entries(adjacency),
            num_nodes=num_nodes,
            nodes=features_of(_without_counts(features), path),
            labels=labels,
            name=name,
        )
    graph = transforms.to_undirected(transforms.remove_self_loops(graph))
    return draw_split(graph, split_seed)


def draw_split(graph: Graph, seed: int) -> Graph:
    """Draws the split of ``load_gnn_benchmark``."""
    among = transforms.in_largest_component(graph)
    return transforms.random_split(graph, *SPLIT, among=among, seed=seed)


def _matrix(members: Mapping[str, Any], path: Path, whole: str, prefix: str) -> sp.csr_array:
    """Reads a sparse matrix, pickled as ``whole`` or stored in four arrays named ``prefix``_."""
    value = members.get(whole)
    if isinstance(value, sp.csr_array):
        return value
    parts = [f"{prefix}_{part}" for part in ("data", "indices", "indptr", "shape")]
    if not all(isinstance(members.get(part), np.ndarray) for part in parts):
        raise BrokenFileError(
            f"{path}: has neither a CSR matrix {whole} nor arrays {', '.join(parts)}; "
            f"{_keys_of(members)}."
        )
    with reading(path, f"a CSR matrix of {', '.join(parts)}"):
        return compressed_rows(*(members[part] for part in parts))


def _without_counts(features: sp.csr_array) -> sp.csr_array:
    bags = features.copy()
    bags.sum_duplicates()
    bags.data[bags.data > 0] = 1
    return bags


def _keys_of(members: Mapping[str, Any]) -> str:
    return f"its keys are {', '.join(sorted(members))[:200] or '(none)'}"
