"""PyG: its own convolutions, each on the fastest representation of edges here."""
# pyright: reportMissingImports=false

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch_geometric import EdgeIndex
from torch_geometric import nn as pyg_nn
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import softmax, spmm

from benchmarks.cpu.inputs import Data, node_features
from benchmarks.cpu.libraries.torch_library import csr_tensor
from benchmarks.cpu.libraries.torch_training import (
    Convolution,
    prepare_attention,
    prepare_epoch,
    tensor,
)
from benchmarks.cpu.models import MODELS, Layer, Model
from benchmarks.cpu.tasks import ATTENTION_SLOPE, Attention, Epoch, SpMM, Task
from benchmarks.cpu.worker import Prepared


class Library:
    """`torch_geometric.nn` with torch_sparse and pyg-lib where they are installed.

    Args:
      patience: seconds of trials after which no further representation of the edges is tried.
    """

    def __init__(self, patience: float = 10.0) -> None:
        self._patience = patience
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")

    def load(self, data: Data) -> None:
        """Takes a graph."""
        self._data = data
        self._made: dict[tuple[str, bool, bool], Any] = {}

    def lay_out(self, task: Task) -> None:
        """Makes every representation of the edges that may be fastest."""
        if not isinstance(task, SpMM | Attention | Epoch):
            raise NotImplementedError("PyG has no such task")
        for name in _candidates(task):
            self._edges(name, task)

    def prepare(self, task: Task) -> Prepared:
        """Prepares a task, with the fastest representation of edges."""
        make = {SpMM: self._spmm, Attention: self._attention, Epoch: self._epoch}[type(task)]
        ways = {name: partial(make, name, task) for name in _candidates(task)}
        return _fastest(ways, self._patience)

    def _edges(self, name: str, task: Task) -> Any:
        """Edges for a task: a matrix, or edges sorted by receiver with their weights or None."""
        with_loops = isinstance(task, Epoch) and MODELS[task.model].needs_loops
        key = name, with_loops, isinstance(task, SpMM) and task.weighted
        if key not in self._made:
            make = _matrix if name == "CSR" else _edge_index
            self._made[key] = make(self._data, *key)
        return self._made[key]

    def _spmm(self, name: str, task: SpMM) -> Prepared:
        x = tensor(node_features(self._data.num_nodes, task.features))
        edges = self._edges(name, task)
        sum_of_neighbors = pyg_nn.SimpleConv(aggr="sum")

        @torch.no_grad()
        def compute() -> Any:
            if name == "CSR":
                return spmm(edges, x)
            if name == "EdgeIndex":
                return edges[0].matmul(x, edges[1], transpose=True)
            return sum_of_neighbors(x, *edges)

        return Prepared(lambda: {"y": compute().numpy()}, compute, name)

    def _attention(self, name: str, task: Attention) -> Prepared:
        attend = partial(_AttentionSum(), self._edges(name, task)[0])
        return prepare_attention(task, self._data, attend, name)

    def _epoch(self, name: str, task: Epoch) -> Prepared:
        model = MODELS[task.model]
        made = self._edges(name, task)
        edges, weight = (made, None) if name == "CSR" else made
        if task.model == "gcn":
            edges, weight = gcn_norm(edges, None, self._data.num_nodes, add_self_loops=False)
        return prepare_epoch(
            model, self._data, lambda layer: _convolution(model, layer, edges, weight), name
        )


def _matrix(data: Data, name: str, with_loops: bool, weighted: bool) -> Any:
    senders, receivers = data.edges(with_loops)
    values = data.edge_weight if weighted else np.ones(len(senders), np.float32)
    return csr_tensor(senders, receivers, values, data.num_nodes)


def _edge_index(data: Data, name: str, with_loops: bool, weighted: bool) -> tuple[Any, Any]:
    senders, receivers = data.edges(with_loops)
    order = np.lexsort((senders, receivers))
    edges = tensor(np.stack([senders[order], receivers[order]]).astype(np.int64))
    weight = tensor(data.edge_weight[order]) if weighted else None
    if name == "sorted edge_index":
        return edges, weight
    count = data.num_nodes
    ahead = np.sort(senders.astype(np.int64) * count + receivers)
    back = np.sort(receivers.astype(np.int64) * count + senders)
    index = EdgeIndex(
        edges,
        sparse_size=(count, count),
        sort_order="col",
        is_undirected=bool(np.array_equal(ahead, back)),
    )
    return index.fill_cache_(), weight


def _candidates(task: Task) -> tuple[str, ...]:
    """Representations of the edges, those that are usually fastest first."""
    if isinstance(task, Attention) or (isinstance(task, Epoch) and task.model == "gat"):
        return "sorted edge_index", "EdgeIndex"
    return "CSR", "EdgeIndex", "sorted edge_index"


def _fastest(ways: dict[str, Callable[[], Prepared]], patience: float) -> Prepared:
    """The fastest of several ways to prepare a task, in the order in which they are tried.

    No further one is tried when the patience is over; one that fails is left out.
    """
    times: dict[str, float] = {}
    failures = []
    start = time.perf_counter()
    for name, prepare in ways.items():
        if times and time.perf_counter() - start > patience:
            break
        try:
            run = prepare().run
            # The first run fills caches; one that takes very long is enough.
            times[name] = _seconds(run)
            if times[name] < patience:
                times[name] = _seconds(run)
        except Exception as error:
            failures.append(f"{name}: {type(error).__name__}: {error}")
    if not times:
        raise RuntimeError("; ".join(failures))
    # Prepared again: the trial has trained its model.
    return ways[min(times, key=lambda name: times[name])]()


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


class _AttentionSum(pyg_nn.MessagePassing):
    """The attention of `GATConv` on given values and logits."""

    def __init__(self) -> None:
        super().__init__(aggr="add", node_dim=0)

    def forward(self, edge_index: Any, x: Any, sender: Any, receiver: Any) -> Any:
        alpha = self.edge_updater(edge_index, alpha=(sender, receiver))
        return self.propagate(edge_index, x=x, alpha=alpha)

    def edge_update(self, alpha_j: Any, alpha_i: Any, index: Any, ptr: Any, dim_size: Any) -> Any:
        alpha = torch.nn.functional.leaky_relu(alpha_j + alpha_i, ATTENTION_SLOPE)
        return softmax(alpha, index, ptr, dim_size)

    def message(self, x_j: Any, alpha: Any) -> Any:
        return alpha.unsqueeze(-1) * x_j


def _convolution(model: Model, layer: Layer, edges: Any, weight: Any) -> Convolution:
    width_in, width = layer.in_features, layer.out_features
    if model.name == "gcn":
        gcn = pyg_nn.GCNConv(width_in, width, normalize=False)
        owned = {"kernel": (gcn.lin.weight, True), "bias": (gcn.bias, False)}
        return Convolution(gcn, lambda x: gcn(x, edges, weight), owned)
    if model.name == "sage":
        sage = pyg_nn.SAGEConv(width_in, width, aggr="mean")
        owned = {
            "self_kernel": (sage.lin_r.weight, True),
            "neighbor_kernel": (sage.lin_l.weight, True),
            "bias": (sage.lin_l.bias, False),
        }
        return Convolution(sage, lambda x: sage(x, edges), owned)
    gat = pyg_nn.GATConv(
        width_in, width, model.heads, concat=not layer.is_last, add_self_loops=False
    )
    owned = {
        "kernel": (gat.lin.weight, True),
        "attention_sender": (gat.att_src, False),
        "attention_receiver": (gat.att_dst, False),
        "bias": (gat.bias, False),
    }
    return Convolution(gat, lambda x: gat(x, edges), owned)
