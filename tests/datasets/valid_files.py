"""Small valid files of every supported format, from which the tests of damaged files start."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import scipy.sparse as sp

from jaxgraph import datasets
from jaxgraph.graph import Graph
from jaxgraph.typed_graph import TypedGraph
from tests.datasets.test_gnn_benchmark import pickled_layout, plain_layout
from tests.datasets.test_matlab import write as write_matlab
from tests.datasets.test_ogb import write_binary_form, write_text_form
from tests.datasets.test_ogb_typed import write_typed
from tests.datasets.test_planetoid import write_small
from tests.datasets.test_tu import pack
from tests.datasets.test_tu import write as write_tu

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

    read: Callable[[Path], Graph | TypedGraph]
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
_EDGES = np.stack([_SENDERS, _RECEIVERS], axis=1)
_ADJACENCY = sp.csc_matrix((np.ones(2 * _NODES), (_SENDERS, _RECEIVERS)))
_FEATURES = (np.arange(_NODES * 3) % 4).reshape(-1, 3).astype(np.float32)
_LABELS = np.zeros(_NODES, np.int32)


def _written(write: Callable[[Path], Any]) -> dict[str, bytes]:
    """The content of the files that a test writes into a folder."""
    with TemporaryDirectory() as folder:
        write(Path(folder))
        found = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def _planetoid(protocol: int) -> Format:
    files = _written(lambda folder: write_small(folder, protocol))
    kinds = {Path(path).suffix: "pickle" for path in files if not path.endswith("index")}
    return Format(lambda folder: datasets.load_planetoid("pubmed", folder), files, kinds)


def _saved(save: Callable[..., None], **arrays: Any) -> bytes:
    stream = io.BytesIO()
    save(stream, **arrays)
    return stream.getvalue()


def _gnn_benchmark(save: Callable[..., None], layout: dict[str, Any]) -> Format:
    return Format(
        lambda folder: datasets.load_gnn_benchmark("amazon-photo", folder),
        {"amazon_photo.npz": _saved(save, **layout)},
    )


def _matlab(compressed: bool) -> Format:
    matrices = {"note": "text", "network": _ADJACENCY, "group": sp.csc_matrix(np.eye(_NODES, 4))}
    return Format(
        lambda folder: datasets.load_matlab("blogcatalog", folder),
        _written(lambda folder: write_matlab(folder, compressed=compressed, **matrices)),
    )


def _ogb(write: Callable[..., Any], **arrays: Any) -> Format:
    arrays |= {"labels": _LABELS}
    return Format(datasets.read_ogb_folder, _written(lambda folder: write(folder, **arrays)))


def _lines(table: Any, separator: str = ",", form: str = "%d") -> bytes:
    stream = io.BytesIO()
    np.savetxt(stream, np.asarray(table), delimiter=separator, fmt=form)
    return stream.getvalue()


def _edge_list(name: str, content: bytes) -> Format:
    return Format(lambda folder: datasets.read_edge_list(folder / name), {name: content})


def _weighted(separator: str) -> bytes:
    return _lines(np.c_[_EDGES, np.linspace(0, 1, len(_EDGES))], separator, "%.9g")


def _load_small(folder: Path) -> TypedGraph:
    return datasets.load_tu("Small", folder)


def _write_tu(folder: Path) -> None:
    """Two graphs, with everything that nodes and edges can have."""
    graphs = np.arange(_NODES) >= _NODES // 2
    inside = np.flatnonzero(graphs[_SENDERS] == graphs[_RECEIVERS])
    both = np.r_[_EDGES[inside], _EDGES[inside, ::-1]] + 1
    tables = {
        "A": _lines(both, ", "),
        "graph_indicator": _lines(graphs + 1),
        "graph_labels": b"-1\n1\n",
        "node_labels": _lines(np.arange(_NODES) % 5),
        "node_attributes": _lines(_FEATURES, ", ", "%.2f"),
        "edge_labels": _lines(np.zeros(len(both))),
        "edge_attributes": _lines(np.ones(len(both)), form="%.1f"),
    }
    write_tu(folder, **{kind: text.decode() for kind, text in tables.items()})


def _pack_tu(folder: Path) -> None:
    with TemporaryDirectory() as unpacked:
        _write_tu(Path(unpacked))
        pack(Path(unpacked), folder / "Small.zip")


FORMATS: Mapping[str, Format] = {
    **{f"planetoid, protocol {protocol}": _planetoid(protocol) for protocol in (0, 2, 5)},
    "gnn-benchmark, pickled": _gnn_benchmark(np.savez_compressed, pickled_layout()),
    "gnn-benchmark, plain": _gnn_benchmark(np.savez, plain_layout()),
    "MATLAB": _matlab(False),
    "MATLAB, compressed": _matlab(True),
    "OGB, text": _ogb(
        write_text_form,
        edges=_EDGES,
        features=_FEATURES,
        num_nodes=[_NODES],
        num_edges=[len(_EDGES)],
    ),
    "OGB, binary": _ogb(
        write_binary_form,
        edge_index=_EDGES.T,
        node_feat=_FEATURES,
        node_year=None,
        num_nodes_list=np.array([_NODES]),
        num_edges_list=np.array([len(_EDGES)]),
    ),
    "OGB, typed": Format(
        lambda folder: datasets.load_ogb_typed("ogbn-mag", folder),
        _written(lambda folder: write_typed(folder, _NODES, _EDGES)),
    ),
    "TU": Format(_load_small, _written(_write_tu), {}),
    "TU, packed": Format(_load_small, _written(_pack_tu), {".zip": "npz"}),
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
            nodes=_FEATURES,
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
