"""Epochs of PyTorch Geometric's GCN for `benchmarks.sparse_features`, without importing jaxgraph.

    PYTHON benchmarks/peers/pyg_sparse_features.py GRAPH.npz HIDDEN

GRAPH.npz holds `senders`, `receivers` int [edges]; the features' `data`, `indices`, `indptr` in CSR
and their `shape`; `labels` int [nodes] and `mask` bool [nodes]. Each line of the standard input is
a JSON list of the dropout and "dense" or "sparse": one epoch of training is made so, and its
seconds go to the standard output.
"""
# pyright: reportMissingImports=false

import functools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch_geometric.nn as pyg
from torch.nn import functional


class GCN(torch.nn.Module):
    """Two layers, with dropout before each."""

    def __init__(self, sizes: tuple[int, int, int], dropout: float) -> None:
        super().__init__()
        self.first = pyg.GCNConv(*sizes[:2], cached=True)
        self.second = pyg.GCNConv(*sizes[1:], cached=True)
        self.dropout = dropout

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        h = self.first(self._dropped(x), adjacency).relu()
        return self.second(functional.dropout(h, self.dropout), adjacency)

    def _dropped(self, x: torch.Tensor) -> torch.Tensor:
        if x.layout == torch.strided:
            return functional.dropout(x, self.dropout)
        values = functional.dropout(x.values(), self.dropout)
        return torch.sparse_csr_tensor(x.crow_indices(), x.col_indices(), values, x.shape)


def main(path: str, hidden: str) -> None:
    """Reads the graph, and makes epochs as it is told."""
    graph = np.load(path)
    arrays = [torch.from_numpy(graph[name]) for name in ("indptr", "indices", "data")]
    sparse = torch.sparse_csr_tensor(*arrays, tuple(graph["shape"].tolist()))
    features = {"sparse": sparse, "dense": sparse.to_dense()}
    labels = torch.from_numpy(graph["labels"].astype(np.int64))
    mask = torch.from_numpy(graph["mask"])
    edges = torch.from_numpy(np.stack([graph["receivers"], graph["senders"]]).astype(np.int64))
    shape, ones = (len(labels), len(labels)), torch.ones(edges.shape[1])
    adjacency = torch.sparse_coo_tensor(edges, ones, shape).coalesce().to_sparse_csr()
    sizes = (sparse.shape[1], int(hidden), int(labels.max()) + 1)

    @functools.cache
    def training(dropout: float, name: str) -> Callable[[], Any]:
        torch.manual_seed(0)
        model, x = GCN(sizes, dropout), features[name]
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

        def epoch() -> None:
            optimizer.zero_grad()
            functional.cross_entropy(model(x, adjacency)[mask], labels[mask]).backward()
            optimizer.step()

        return epoch

    for line in sys.stdin:
        epoch = training(*json.loads(line))
        start = time.perf_counter()
        epoch()
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
