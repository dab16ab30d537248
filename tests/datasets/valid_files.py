"""Small valid files of every supported format, from which the tests of damaged files start."""

from __future__ import annotations

import gzip
import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse as sp

from jaxgraph import datasets
from jaxgraph.graph import Graph

__all__ = ["FORMATS", "Format"]


@dataclass(frozen=True)
class Format:
    """A data set in files.

    Args:
        read: reads the graph from the folder of the files.
        files: the content of each file, by its path in the folder.
        kinds: the names that mutations use for the content, by the end of the path; "text" for
          others.
    """

    read: Callable[[Path], Graph]
    files: Mapping[str, bytes]
    kinds: Mapping[str, str] = field(
        default_factory=lambda: {key: key.strip(".") for key in (".npz", ".npy", ".mat", ".gz")}
    )

    def kind(self, path: str) -> str:
        """Returns the name that mutations use for the content of a file."""
        return next((kind for end, kind in self.kinds.items() if path.endswith(end)), "text")


_NODES = 60
_SENDERS = np.arange(_NODES).repeat(2)
_RECEIVERS = (_SENDERS + np.tile([1, 7], _NODES)) % _NODES
_ADJACENCY = sp.csr_matrix((np.ones(2 * _NODES, np.float32), (_SENDERS, _RECEIVERS)))
_FEATURES = sp.csr_matrix((np.arange(_NODES * 3) % 4).reshape(-1, 3).astype(np.float32))
_LABELS = np.zeros(_NODES, np.int32)


def _planetoid(protocol: int) -> Format:
    others, nodes = 503, 506
    one_hot = np.eye(2, dtype=np.int32)[np.arange(nodes) % 2]
    features = sp.csr_matrix((np.arange(nodes * 2) % 3).reshape(-1, 2).astype(np.float32))
    parts: dict[str, Any] = {
        "x": features[:2],
        "allx": features[:others],
        "tx": features[:3],
        "y": one_hot[:2],
        "ally": one_hot[:others],
        "ty": one_hot[:3],
        "graph": {node: [(node + 1) % nodes, (node - 1) % nodes] for node in range(nodes)},
    }
    files = {f"ind.cora.{name}": pickle.dumps(value, protocol) for name, value in parts.items()}
    return Format(
        lambda folder: datasets.load_planetoid("cora", folder),
        files | {"ind.cora.test.index": b"505\n503\n504\n"},
        {f".{name}": "pickle" for name in parts},
    )


def _boxed(value: Any) -> np.ndarray:
    box = np.empty((), object)
    box[()] = value
    return box


def _saved(save: Callable[..., None], **arrays: Any) -> bytes:
    stream = io.BytesIO()
    save(stream, **arrays)
    return stream.getvalue()


def _gnn_benchmark(save: Callable[..., None], **arrays: Any) -> Format:
    return Format(
        lambda folder: datasets.load_gnn_benchmark("amazon-photo", folder),
        {"amazon_photo.npz": _saved(save, **arrays)},
    )


def _compressed_rows(prefix: str, matrix: sp.csr_matrix) -> dict[str, Any]:
    parts = ("data", "indices", "indptr", "shape")
    return {f"{prefix}_{part}": getattr(matrix, part) for part in parts}


def _matlab(compressed: bool) -> Format:
    stream = io.BytesIO()
    group = sp.csc_matrix(np.eye(_NODES, 4))
    matrices = {"note": "text", "network": sp.csc_matrix(_ADJACENCY), "group": group}
    scipy.io.savemat(stream, matrices, do_compression=compressed)
    return Format(
        lambda folder: datasets.load_matlab("blogcatalog", folder),
        {"blogcatalog.mat": stream.getvalue()},
    )


def _lines(table: Any, separator: str = ",", form: str = "%d") -> bytes:
    stream = io.BytesIO()
    np.savetxt(stream, np.asarray(table), delimiter=separator, fmt=form)
    return stream.getvalue()


_EDGES = np.stack([_SENDERS, _RECEIVERS], axis=1)
_SPLIT = {
    f"split/time/{part}.csv.gz": gzip.compress(_lines(ids))
    for part, ids in {"train": range(9), "valid": [10, 11], "test": [20, 30]}.items()
}


def _ogb(**files: bytes) -> Format:
    named = {
        name.replace("__", "/").replace("_gz", ".csv.gz"): file for name, file in files.items()
    }
    return Format(lambda folder: datasets.read_ogb_folder(folder), named | _SPLIT)


def _edge_list(name: str, content: bytes) -> Format:
    return Format(lambda folder: datasets.read_edge_list(folder / name), {name: content})


def _weighted(separator: str) -> bytes:
    return _lines(np.c_[_EDGES, np.linspace(0, 1, len(_EDGES))], separator, "%.9g")


FORMATS: Mapping[str, Format] = {
    **{f"planetoid, protocol {protocol}": _planetoid(protocol) for protocol in (0, 2, 5)},
    "gnn-benchmark, pickled": _gnn_benchmark(
        np.savez_compressed,
        adj_matrix=_boxed(_ADJACENCY),
        node_attr=_boxed(_FEATURES),
        node_label=_LABELS,
        metadata=_boxed({"class_names": ["a"]}),
    ),
    "gnn-benchmark, plain": _gnn_benchmark(
        np.savez,
        **_compressed_rows("adj", _ADJACENCY),
        **_compressed_rows("attr", _FEATURES),
        labels=_LABELS,
    ),
    "MATLAB": _matlab(False),
    "MATLAB, compressed": _matlab(True),
    "OGB, text": _ogb(
        raw__edge_gz=gzip.compress(_lines(_EDGES)),
        **{
            "raw__node-feat_gz": gzip.compress(_lines(_FEATURES.toarray(), form="%.3g")),
            "raw__node-label_gz": gzip.compress(_lines(_LABELS)),
            "raw__num-node-list_gz": gzip.compress(_lines([_NODES])),
            "raw__num-edge-list_gz": gzip.compress(_lines([len(_EDGES)])),
        },
    ),
    "OGB, binary": _ogb(
        **{
            "raw__data.npz": _saved(
                np.savez_compressed,
                edge_index=_EDGES.T,
                node_feat=_FEATURES.toarray(),
                num_nodes_list=np.array([_NODES]),
                num_edges_list=np.array([len(_EDGES)]),
            ),
            "raw__node-label.npz": _saved(np.savez, node_label=_LABELS[:, None] * 1.0),
        }
    ),
    "edges, csv": _edge_list("edges.csv", b"source,target\n" + _lines(_EDGES)),
    "edges, csv with weights": _edge_list("edges.csv", _weighted(",")),
    "edges, tsv": _edge_list("edges.tsv", _weighted("\t")),
    "edges, SNAP": _edge_list(
        "edges.txt", b"# Nodes: 60 Edges: 120\n# FromNodeId\tToNodeId\n" + _lines(_EDGES, "\t")
    ),
    "edges, csv.gz": _edge_list("edges.csv.gz", gzip.compress(_lines(_EDGES))),
    "edges, npy": _edge_list("edges.npy", _saved(lambda f: np.save(f, _EDGES))),
    "edges, npz": _edge_list(
        "edges.npz",
        _saved(
            np.savez,
            senders=_SENDERS,
            receivers=_RECEIVERS,
            nodes=_FEATURES.toarray(),
            labels=_LABELS,
            num_nodes=_NODES,
            train_mask=np.arange(_NODES) < 9,
            name="saved",
        ),
    ),
    "edges, MatrixMarket": _edge_list(
        "edges.mtx",
        b"%%MatrixMarket matrix coordinate pattern general\n% comment\n60 60 120\n"
        + _lines(_EDGES + 1, " "),
    ),
    "edges, METIS": _edge_list(
        "edges.graph",
        b"% comment\n60 60\n"
        + _lines([[(i + 1) % 60 + 1, (i - 1) % 60 + 1] for i in range(60)], " "),
    ),
}
"""The data sets by name. A new format is one more entry."""
