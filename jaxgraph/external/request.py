"""The request of a caller: a file of edges, how to read it, and how to cut it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from jaxgraph.datasets.edge_columns import Choices
from jaxgraph.partition.assignment import checked_num_parts

_KINDS = {
    "num_nodes": int,
    "separator": str,
    "header": bool,
    "counts": bool,
    "relabel": bool,
    "name": str,
    "split": str,
}
METHODS = ("hash", "equal-vertices", "equal-edges", "given")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request(Choices):
    """A graph in files, and the parts that it is to be cut into.

    Attributes:
      source: a list of edges (``.csv``, ``.tsv``, ``.txt``, each perhaps with ``.gz``;
        ``.parquet``; ``.npy`` as for ``read_edge_list``), or a folder of the Open
        Graph Benchmark.
      num_parts: number of parts.
      method: "hash", "equal-vertices", "equal-edges" or "given".
      assignment: for "given": an ``.npy`` file of the part of each node, int [num_nodes].
      seed: of the hash.
      mode: "sar" or "domain".
      node_data: a folder of ``.npy`` files named as the arguments of ``Graph.from_edges`` that have
        a row per node: nodes, labels, train_mask, val_mask, test_mask. A file ``ids.npy`` holds the
        id of each row, where ids are names or not rows.
      undirected: whether the reverse of every edge is added, and repeated edges removed.
      degree_features: whether log(1 + in-degree) becomes the features.
      normalize: whether each node's features are divided by their sum.
      ignore_edge_data: whether weights and features of edges are dropped.
      num_nodes, separator, header, counts, columns, weights, relabel, name: as for
        `jaxgraph.datasets.read_edge_list`.
      split: of a folder of the benchmark: the folder in ``split``.
    """

    source: Path
    num_parts: int
    method: str = "hash"
    assignment: Path | None = None
    seed: int = 0
    mode: str = "sar"
    node_data: Path | None = None
    undirected: bool = False
    degree_features: bool = False
    normalize: bool = False
    ignore_edge_data: bool = False
    name: str | None = None
    split: str | None = None

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if value is not None and type(value) is not kind:
                raise ValueError(f"{name}: got {value!r}; expected a value of type {kind.__name__}")
        if self.num_nodes is not None and self.num_nodes < 1:
            raise ValueError(f"num_nodes: got {self.num_nodes}; expected at least 1")
        checked_num_parts(self.num_parts)
        if self.method not in METHODS:
            raise ValueError(
                f"method: got {self.method!r}; a graph that is not in memory is cut by one of "
                f"{', '.join(METHODS)}. For others leave out the limit of memory"
            )
        if self.mode not in ("sar", "domain"):
            raise ValueError(
                f"mode={self.mode!r} is not for graphs that are not in memory: parts for mode p3 "
                "hold the edges of the whole graph. Take sar or domain, or leave out the limit"
            )
        if (self.method == "given") != (self.assignment is not None):
            raise ValueError(
                f"assignment: got {self.assignment} for method {self.method!r}; expected a file of "
                "the part of each node for method 'given', and none for others"
            )
        if self.undirected and self.method == "equal-edges":
            raise ValueError(
                "method: equal-edges counts the edges of every node before repeated ones are "
                "removed; with undirected take hash or equal-vertices"
            )
        if self.degree_features and self.normalize:
            raise ValueError("degree_features: normalize would make every feature 1; leave one out")
