"""Multi-label graphs from MATLAB files: BlogCatalog, and the protein interactions of node2vec."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import scipy.io
import scipy.sparse as sp

from jaxgraph import transforms
from jaxgraph.datasets.files import BrokenFileError, reading, require_file
from jaxgraph.graph import Graph

__all__ = ["NAMES", "load_matlab"]

# By name: the file, and a public place of it.
_FILES = {
    "blogcatalog": ("blogcatalog/blogcatalog.mat", "github.com/phanein/deepwalk, example_graphs/"),
    "ppi": ("node2vec-ppi/Homo_sapiens.mat", "snap.stanford.edu/node2vec"),
}
NAMES = tuple(_FILES)


def load_matlab(
    name: str,
    folder: Path,
    *,
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2),
    split_seed: int = 0,
) -> Graph:
    """Reads a multi-label graph without features, and draws a split.

    Edges are kept as published: both directions of each, with the self-loops of "ppi".

    Args:
        name: "blogcatalog" or "ppi" (of node2vec, not of GraphSAGE).
        folder: holds the MATLAB file, under its folder or directly.
        fractions: the shares of nodes for training, validation and test.
        split_seed: the seed of the split.

    Returns:
        The graph, with labels float32 [num_nodes, num_labels] and the three masks.

    Raises:
        ValueError: the file is missing or broken, or lacks a matrix ``network`` or ``group``.

    References:
        Tang and Liu, "Relational Learning via Latent Social Dimensions", KDD 2009 (BlogCatalog);
        Grover and Leskovec, "node2vec", KDD 2016 (PPI).
    """
    file_name, origin = _FILES[name]
    path = require_file(folder, file_name, origin=origin)
    members = _members(path)
    for key in ("network", "group"):
        if not sp.issparse(members.get(key)):
            raise BrokenFileError(
                f"{path}: has no sparse matrix {key!r}, which the graph is read from."
            )
    network = sp.coo_array(members["network"])
    labels = sp.csr_array(members["group"]).toarray()
    with reading(path, "a multi-label graph"):
        graph = Graph.from_edges(
            network.row, network.col, num_nodes=labels.shape[0], labels=labels, name=name
        )
    return transforms.random_split(graph, fractions=fractions, seed=split_seed)


def _members(path: Path) -> dict[str, Any]:
    with (
        reading(path, "a MATLAB 5 file"),
        path.open("rb") as stream,
        warnings.catch_warnings(),
    ):
        # scipy tells that it will return sparse arrays one day; here either will do.
        warnings.filterwarnings("ignore", message=".*spmatrix", category=DeprecationWarning)
        return scipy.io.loadmat(stream, variable_names=["network", "group"])
