"""PyG and DGL: their layers of R-GCN, and PyG's HeteroConv, on typed graphs."""
# pyright: reportMissingImports=false

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from benchmarks.cpu.libraries.torch_training import Convolution, prepare_epoch, tensor
from benchmarks.cpu.models import Layer as Sizes
from benchmarks.cpu.worker import Prepared
from benchmarks.typed.tasks import ONE, Epoch, Layer, TypedData

Owned = Mapping[str, tuple[Any, bool]]
"""Parameters by jaxgraph's names; True marks [out, in] matrices."""


class Library:
    """One of the layers of R-GCN.

    Args:
      kind: "RGCNConv" or "FastRGCNConv" of PyG, or "RelGraphConv" of DGL.
      presorted: whether DGL's is told that edges are in the order of their types.
    """

    def __init__(self, kind: str, presorted: bool = False) -> None:
        self._kind, self._presorted = kind, presorted
        if kind == "RelGraphConv":
            # Its native library is built for few versions of torch, and nothing here uses it.
            sys.modules.setdefault("dgl.graphbolt", types.ModuleType("dgl.graphbolt"))
            from dgl import nn
        else:
            from torch_geometric import nn
        self._nn = nn

    def load(self, data: TypedData) -> None:
        """Makes the edges."""
        self._data, self._types = data, tensor(data.edge_type).long()
        ends, size = (tensor(data.senders), tensor(data.receivers)), data.num_nodes
        if self._kind == "RelGraphConv":
            import dgl

            self._edges = dgl.graph(ends, num_nodes=size, idtype=torch.int32)
            self._edges.create_formats_()
            keys = data.edge_type.astype(np.int64) * size + data.receivers
            _, pairs, counts = np.unique(keys, return_inverse=True, return_counts=True)
            self._norm = tensor((1 / counts[pairs]).astype(np.float32))[:, None]
        else:
            self._edges = torch.stack(ends).long()

    def lay_out(self, task: Any) -> None:
        """Refuses what DGL does not have."""
        if self._kind == "RelGraphConv" and isinstance(task, Layer) and task.ends != (ONE,):
            raise NotImplementedError("it has no such layer")

    def prepare(self, task: Any) -> Prepared:
        """Prepares a task."""
        if isinstance(task, Epoch):
            learned = iter([task.model.rows])
            return prepare_epoch(
                task.model, self._data, lambda layer: self._of_model(layer, next(learned, 0)), ""
            )
        arrays, gradients, edges = task.arrays(self._data)
        x = {name: tensor(array).requires_grad_() for name, array in arrays.items()}
        made = {ends: self._convolution(task) for ends in task.ends}
        owned = {f"{e[1]}/{own}": x for e in made for own, x in made[e].parameters.items()}
        with torch.no_grad():
            for name, value in task.parameters(self._data.num_types).items():
                parameter, is_transposed = owned[name]
                source = tensor(value.T if is_transposed else value)
                parameter.copy_(source.reshape(parameter.shape))
        if task.ends == (ONE,):
            apply = lambda x: {ONE[0]: made[ONE].apply(x[ONE[0]])}  # noqa: E731
        else:
            index = {e: tensor(np.stack([*edges[e].values()])) for e in edges}
            module = self._nn.HeteroConv({e: each.module for e, each in made.items()}, "sum")
            apply = lambda x: module(x, index)  # noqa: E731
        inputs = x | {name: parameter for name, (parameter, _) in owned.items()}

        def compute() -> tuple[dict[str, Any], tuple[Any, ...]]:
            y = apply(x)
            cotangents = [tensor(gradients[name]) for name in y]
            return y, torch.autograd.grad([*y.values()], [*inputs.values()], cotangents)

        def results() -> dict[str, np.ndarray]:
            y, found = compute()
            pulled = {f"y/{name}": value.detach() for name, value in y.items()}
            for name, gradient in zip(inputs, found, strict=True):
                pulled[name] = gradient.T if owned.get(name, (None, False))[1] else gradient
            return {name: value.contiguous().numpy() for name, value in pulled.items()}

        return Prepared(results, compute)

    def _of_model(self, layer: Sizes, learned: int) -> Convolution:
        found = self._relational(layer.in_features, layer.out_features, "kernel", "mean")
        if not learned:
            return found
        rows = found.module.rows = torch.nn.Parameter(torch.empty(learned, layer.in_features))
        named = {**found.parameters, "rows": (rows, False)}
        return Convolution(found.module, lambda x: found.apply(rows), named)

    def _convolution(self, task: Layer) -> Convolution:
        size = task.features
        if task.kind == "sage":
            sage = self._nn.SAGEConv((size, size), size)
            owned: Owned = {
                "self_kernel": (sage.lin_r.weight, True),
                "neighbor_kernel": (sage.lin_l.weight, True),
                "bias": (sage.lin_l.bias, False),
            }
            return Convolution(sage, sage, owned)
        if task.kind == "gatv2":
            gat = self._nn.GATv2Conv((size, size), size // 2, heads=2, add_self_loops=False)
            owned = {
                "sender_kernel": (gat.lin_l.weight, True),
                "receiver_kernel": (gat.lin_r.weight, True),
                "sender_bias": (gat.lin_l.bias, False),
                "receiver_bias": (gat.lin_r.bias, False),
                "attention": (gat.att, False),
                "bias": (gat.bias, False),
            }
            return Convolution(gat, gat, owned)
        return self._relational(size, size, task.kind, task.reduce)

    def _relational(self, width: int, out: int, kind: str, reduce: str) -> Convolution:
        make, sizes = getattr(self._nn, self._kind), (width, out, self._data.num_types)
        if self._kind == "RelGraphConv":
            conv = make(*sizes, {"kernel": None, "bases": "basis", "blocks": "bdd"}[kind], 4)
            norm = self._norm if reduce == "mean" else None
            how = {"norm": norm, "presorted": self._presorted}
            own = (conv.linear_r.W, getattr(conv.linear_r, "coeff", None), conv.loop_weight)
            apply = lambda x: conv(self._edges, x, self._types, **how)  # noqa: E731
            bias = conv.h_bias
        else:
            option = {"kernel": {}, "bases": {"num_bases": 4}, "blocks": {"num_blocks": 4}}[kind]
            conv = make(*sizes, aggr=reduce, is_sorted=True, **option)
            own, bias = (conv.weight, conv.comp, conv.root), conv.bias
            apply = lambda x: conv(x, self._edges, self._types)  # noqa: E731
        named = dict(zip((kind, "coefficients", "self_kernel"), own, strict=True)) | {"bias": bias}
        if kind != "bases":
            named.pop("coefficients")
        return Convolution(conv, apply, {name: (value, False) for name, value in named.items()})
