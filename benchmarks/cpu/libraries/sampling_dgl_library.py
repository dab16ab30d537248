"""DGL: its samplers, and training on its blocks."""
# pyright: reportMissingImports=false

from __future__ import annotations

import itertools
import sys
import types
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks.cpu.inputs import Data
from benchmarks.cpu.libraries.torch_training import tensor
from benchmarks.cpu.worker import Prepared
from benchmarks.sampling import tasks
from benchmarks.sampling.tasks import Sampling, Training, seeds_of

# Its native library is built for few versions of torch, and nothing here uses it.
sys.modules.setdefault("dgl.graphbolt", types.ModuleType("dgl.graphbolt"))

import dgl  # noqa: E402
from dgl import nn as dgl_nn  # noqa: E402


class Library:
    """`dgl.dataloading` on one graph.

    Args:
      bits: of the ids.
      workers: processes that make batches for training; 0: the process that trains.
    """

    def __init__(self, bits: int = 64, workers: int = 0) -> None:
        self._type = torch.int32 if bits == 32 else torch.int64
        self._workers = workers

    def load(self, data: Data) -> None:
        """Makes the graph in all its formats."""
        ends = tensor(data.senders), tensor(data.receivers)
        self._data = data
        self._graph = dgl.graph(ends, num_nodes=data.num_nodes, idtype=self._type)
        self._graph.create_formats_()
        self._graph.edata["weight"] = tensor(data.edge_weight)
        self._graph.ndata["x"] = tensor(data.nodes)
        self._graph.ndata["labels"] = tensor(data.labels.astype(np.int64))

    def lay_out(self, task: Sampling | Training) -> None:
        """Makes the sampler."""
        how = task.how if isinstance(task, Sampling) else "uniform"
        fanouts = list(task.fanouts)
        if how == "labor":
            self._sampler: Any = dgl.dataloading.LaborSampler(fanouts)
            return
        # With 32-bit ids, the blocks of the fused sampler crash DGL's kernels.
        is_fused = self._type == torch.int64
        options: dict[str, Any] = {"replace": how == "replace", "fused": is_fused}
        if how == "weighted":
            options["prob"] = "weight"
        if isinstance(task, Training):
            options |= {"prefetch_node_feats": ["x"], "prefetch_labels": ["labels"]}
        self._sampler = dgl.dataloading.NeighborSampler(fanouts, **options)

    def prepare(self, task: Sampling | Training) -> Prepared:
        """Prepares a task."""
        seeds = tensor(seeds_of(self._data, task)).to(self._type)
        return self._sampling(seeds) if isinstance(task, Sampling) else self._training(seeds)

    def _sampling(self, seeds: Any) -> Prepared:
        def batches() -> Any:
            order = seeds[torch.randperm(len(seeds))]
            for batch in order.split(tasks.BATCH):
                yield self._sampler.sample_blocks(self._graph, batch)[2]

        def run() -> None:
            for _ in batches():
                pass

        def results() -> dict[str, np.ndarray]:
            full = [x for x in batches() if x[-1].num_dst_nodes() == tasks.BATCH]
            return {
                "nodes": np.mean([[x.num_src_nodes() for x in blocks] for blocks in full], 0),
                "edges": np.mean([[x.num_edges() for x in blocks] for blocks in full], 0),
            }

        return Prepared(results, run)

    def _training(self, seeds: Any) -> Prepared:
        module = _SAGE(self._data.nodes.shape[1], self._data.num_classes)
        optimizer = torch.optim.Adam(module.parameters(), lr=tasks.LEARNING_RATE)
        loader = dgl.dataloading.DataLoader(
            self._graph,
            seeds,
            self._sampler,
            batch_size=tasks.BATCH,
            shuffle=True,
            num_workers=self._workers,
        )

        def run() -> None:
            for _, _, blocks in loader:
                optimizer.zero_grad()
                found = module(blocks, blocks[0].srcdata["x"])
                functional.cross_entropy(found, blocks[-1].dstdata["labels"]).backward()
                optimizer.step()

        def results() -> dict[str, np.ndarray]:
            run()
            return {}

        return Prepared(results, run)


class _SAGE(torch.nn.Module):
    """Dropout before every SAGEConv, as in jaxgraph; batch norm and ReLU after all but the last."""

    def __init__(self, in_features: int, classes: int) -> None:
        super().__init__()
        widths = [in_features, *[tasks.WIDTH] * (tasks.LAYERS - 1), classes]
        self.convolutions = torch.nn.ModuleList(
            dgl_nn.SAGEConv(*pair, "mean") for pair in itertools.pairwise(widths)
        )
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm1d(width) for width in widths[1:-1])

    def forward(self, blocks: Any, x: Any) -> Any:
        for index, (block, convolution) in enumerate(zip(blocks, self.convolutions, strict=True)):
            x = convolution(block, functional.dropout(x, tasks.DROPOUT, self.training))
            if index < len(self.norms):
                x = functional.relu(self.norms[index](x))
        return x
