"""DGL: its message-passing ops and its own GraphConv, SAGEConv and GATConv."""
# pyright: reportMissingImports=false

from __future__ import annotations

import sys
import types
from functools import partial
from typing import Any

import torch

from benchmarks.cpu.inputs import Data, node_features
from benchmarks.cpu.libraries.torch_training import (
    Convolution,
    prepare_attention,
    prepare_epoch,
    tensor,
)
from benchmarks.cpu.models import MODELS, Layer, Model
from benchmarks.cpu.tasks import ATTENTION_SLOPE, Attention, Epoch, SpMM, Task
from benchmarks.cpu.worker import Prepared

# Its native library is built for few versions of torch, and nothing here uses it.
sys.modules.setdefault("dgl.graphbolt", types.ModuleType("dgl.graphbolt"))

import dgl  # noqa: E402
from dgl import nn as dgl_nn  # noqa: E402


class Library:
    """`dgl.ops` and `dgl.nn.pytorch` on one graph with 32-bit ids."""

    def load(self, data: Data) -> None:
        """Takes a graph."""
        self._data = data
        self._graphs: dict[bool, Any] = {}

    def lay_out(self, task: Task) -> None:
        """Makes the graph in all its formats."""
        if not isinstance(task, SpMM | Attention | Epoch):
            raise NotImplementedError("DGL has no such task")
        with_loops = isinstance(task, Epoch) and MODELS[task.model].needs_loops
        if with_loops not in self._graphs:
            ends = tuple(map(tensor, self._data.edges(with_loops)))
            graph = dgl.graph(ends, num_nodes=self._data.num_nodes, idtype=torch.int32)
            graph.create_formats_()
            self._graphs[with_loops] = graph
        self._graph = self._graphs[with_loops]

    def prepare(self, task: Task) -> Prepared:
        """Prepares a task."""
        graph = self._graph
        if isinstance(task, SpMM):
            return self._spmm(graph, task)
        if isinstance(task, Attention):
            return prepare_attention(task, self._data, partial(_attend, graph), "dgl.ops")
        assert isinstance(task, Epoch)
        model = MODELS[task.model]
        return prepare_epoch(
            model, self._data, lambda layer: _convolution(model, layer, graph), "dgl.nn"
        )

    def _spmm(self, graph: Any, task: SpMM) -> Prepared:
        x = tensor(node_features(self._data.num_nodes, task.features))
        weight = tensor(self._data.edge_weight)[:, None]

        @torch.no_grad()
        def compute() -> Any:
            if task.weighted:
                return dgl.ops.u_mul_e_sum(graph, x, weight)
            return dgl.ops.copy_u_sum(graph, x)

        return Prepared(lambda: {"y": compute().numpy()}, compute, "dgl.ops")


def _attend(graph: Any, values: Any, sender_logits: Any, receiver_logits: Any) -> Any:
    logits = dgl.ops.u_add_v(graph, sender_logits[..., None], receiver_logits[..., None])
    logits = torch.nn.functional.leaky_relu(logits, ATTENTION_SLOPE)
    return dgl.ops.u_mul_e_sum(graph, values, dgl.ops.edge_softmax(graph, logits))


def _convolution(model: Model, layer: Layer, graph: Any) -> Convolution:
    width_in, width = layer.in_features, layer.out_features
    if model.name == "gcn":
        gcn = dgl_nn.GraphConv(width_in, width, norm="both", allow_zero_in_degree=True)
        owned = {"kernel": (gcn.weight, False), "bias": (gcn.bias, False)}
        return Convolution(gcn, lambda x: gcn(graph, x), owned)
    if model.name == "sage":
        sage = dgl_nn.SAGEConv(width_in, width, "mean")
        owned = {
            "self_kernel": (sage.fc_self.weight, True),
            "neighbor_kernel": (sage.fc_neigh.weight, True),
            "bias": (sage.fc_self.bias, False),
        }
        return Convolution(sage, lambda x: sage(graph, x), owned)
    return _attention_convolution(model.heads, layer, graph)


def _attention_convolution(heads: int, layer: Layer, graph: Any) -> Convolution:
    gat = dgl_nn.GATConv(
        layer.in_features,
        layer.out_features,
        heads,
        # After the mean of the heads one bias is left; DGL's would be one per head.
        bias=not layer.is_last,
        allow_zero_in_degree=True,
    )
    if layer.is_last:
        gat.mean_bias = torch.nn.Parameter(torch.zeros(layer.out_features))

    def apply(x: Any) -> Any:
        y = gat(graph, x)
        return y.mean(1) + gat.mean_bias if layer.is_last else y.flatten(1)

    owned = {
        "kernel": (gat.fc.weight, True),
        "attention_sender": (gat.attn_l, False),
        "attention_receiver": (gat.attn_r, False),
        "bias": (gat.mean_bias if layer.is_last else gat.bias, False),
    }
    return Convolution(gat, apply, owned)
