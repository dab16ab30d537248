"""Multi-label graphs from MATLAB files: BlogCatalog, and the protein interactions of node2vec."""

from __future__ import annotations

from pathlib import Path

from jaxgraph import transforms
from jaxgraph.datasets.files import BrokenFileError, reading, require_file
from jaxgraph.datasets.limits import dense
from jaxgraph.datasets.sparse import places_of_entries
from jaxgraph.datasets.untrusted import load_sparse
from jaxgraph.graph import Graph

# By name: the file, and a public source of it.
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

    Edges are kept as published: both directions of each, with the self-loops of "ppi". A stored
    zero is no edge.

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
    members = load_sparse(path)
    for key in ("network", "group"):
        if key not in members:
            raise BrokenFileError(
                f"{path}: has no sparse matrix {key!r}, which the graph is read from."
            )
    with reading(path, "a multi-label graph"):
        network, labels = members["network"], dense(members["group"])
        if network.shape != (len(labels), len(labels)):
            raise ValueError(
                f"'network' is {network.shape}; expected {(len(labels),) * 2} for the "
                f"{len(labels)} rows of 'group'"
            )
        graph = Graph.from_edges(
            *places_of_entries(network), num_nodes=len(labels), labels=labels, name=name
        )
    return transforms.random_split(graph, fractions=fractions, seed=split_seed)
